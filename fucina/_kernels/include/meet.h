/* Where the threads of a program wait for each other. OpenMP's barrier spins for as long as the runtime was told to, also
 * when the thread it waits for needs the very CPU that it spins on: 50 us and more, at every barrier of a token, whenever
 * the system has put two threads on one CPU. This one gives the CPU away after a moment. */
#ifndef FUCINA_MEET_H
#define FUCINA_MEET_H

#include <stdint.h>

#if defined(__x86_64__) || defined(__i386__)
#define FU_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define FU_PAUSE() __asm__ volatile("yield")
#else
#define FU_PAUSE()
#endif

#if defined(_WIN32)
#define FU_YIELD() FU_PAUSE()
#else
#include <sched.h>
#define FU_YIELD() sched_yield()
#endif

/* Turns of waiting before the CPU is given away, about 10 us. */
#define FU_TURNS 300

typedef struct {
    int64_t arrived, phase;
} fu_meeting;

/* Wait until all `n` threads are here; what they wrote before can then be read. The last one to come gets 1 and does not
 * wait: whatever is for one thread to do, it does while the others wait, and then it lets them go (`fu_leave`). */
static inline int fu_meet(fu_meeting* m, int64_t n) {
    int64_t phase = __atomic_load_n(&m->phase, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&m->arrived, 1, __ATOMIC_ACQ_REL) == n) return 1;
    for (int turn = 0; __atomic_load_n(&m->phase, __ATOMIC_ACQUIRE) == phase; turn++) {
        if (turn < FU_TURNS)
            FU_PAUSE();
        else
            FU_YIELD();
    }
    return 0;
}

static inline void fu_leave(fu_meeting* m) {
    __atomic_store_n(&m->arrived, 0, __ATOMIC_RELAXED);
    __atomic_add_fetch(&m->phase, 1, __ATOMIC_RELEASE);
}

#endif
