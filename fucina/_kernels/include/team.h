/* How threads share work that is not cut into equal parts beforehand. */
#ifndef FUCINA_TEAM_H
#define FUCINA_TEAM_H

#include <stdint.h>

#ifdef _OPENMP
#include <omp.h>
/* Threads of the parallel region that this is called in: a runtime may give fewer than were asked for. */
static inline int64_t fu_present(void) { return omp_get_num_threads(); }
static inline int64_t fu_place(void) { return omp_get_thread_num(); }
#else
static inline int64_t fu_present(void) { return 1; }
static inline int64_t fu_place(void) { return 0; }
#endif

/* The next ticket of a counter that several threads draw from. */
static inline int64_t fu_ticket(int64_t* counter) { return __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED); }

/* How many were drawn, as far as this thread has heard. */
static inline int64_t fu_drawn(const int64_t* counter) { return __atomic_load_n(counter, __ATOMIC_RELAXED); }

#endif
