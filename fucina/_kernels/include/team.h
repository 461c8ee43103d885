/* What the team needs of OpenMP that Cython has no words for; one thread where the compiler has no OpenMP. */
#ifndef FUCINA_TEAM_H
#define FUCINA_TEAM_H

#include <stdint.h>

#ifdef _OPENMP
static inline void fu_barrier(void) {
#pragma omp barrier
}
#else
static inline void fu_barrier(void) {}
#endif

/* The next ticket of a counter that several threads draw from. */
static inline int64_t fu_ticket(int64_t* counter) { return __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED); }

#endif
