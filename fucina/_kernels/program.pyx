"""Replays a list of validated steps inside one parallel region.

A step is a core of some kernel, its arguments, and the number of shares it is cut into. Threads draw shares as everywhere
(``team.pxd``), those of their own part first. (One counter for all shares: tokens of SmolLM2 on two threads took 1.06 to
1.09 times as long. AMD Zen 3, 2026-11.)

At a barrier all threads wait; between two barriers steps must not depend on each other, unless they are chained: a share
of a chain is that share of all its steps, done by the thread that drew it. Steps of a single share that follow a barrier
are done at it, while the other threads still wait: half of the barriers of a token are spared. Nothing here knows what a
core computes, and a core gives the same values for any number of shares, so a program has the bits of its steps called one
by one.
"""

from cython.parallel cimport parallel

from libc.stdint cimport int64_t
from libc.string cimport memset

from team cimport core_t, fu_present, next_share

cdef extern from "meet.h" nogil:
    ctypedef struct fu_meeting:
        int64_t arrived
        int64_t phase
    int fu_meet(fu_meeting* m, int64_t n)
    void fu_leave(fu_meeting* m)

cdef enum:
    BARRIER = 1     # wait for all threads after this step
    CHAINED = 2     # each share is done right after the same share of the step before
    ALONE = 4       # one share, done at the barrier before it, by the thread that came last


cdef struct Step:
    int64_t core, args      # addresses
    int64_t shares, flags


cdef void replay(const Step* steps, Py_ssize_t count, int64_t* drawn, fu_meeting* meeting) noexcept nogil:
    cdef const Step* end = steps + count
    cdef const Step* step = steps
    cdef const Step* link
    cdef int64_t share, turn, threads = fu_present()
    cdef Py_ssize_t alone
    while step < end:
        if not step.flags & CHAINED:
            turn = 0
            share = next_share(step.shares, drawn, count, &turn)
            while share >= 0:
                (<core_t> step.core)(<const void*> step.args, share, step.shares)
                link = step + 1
                while link < end and link.flags & CHAINED:
                    (<core_t> link.core)(<const void*> link.args, share, step.shares)
                    link += 1
                share = next_share(step.shares, drawn, count, &turn)
        link = step + 1
        if step.flags & BARRIER and threads > 1:
            while link < end and link.flags & ALONE:
                link += 1
            if fu_meet(meeting, threads):
                for alone in range(1, link - step):
                    (<core_t> step[alone].core)(<const void*> step[alone].args, 0, 1)
                fu_leave(meeting)
        drawn += link - step
        step = link


def replay_unchecked(const int64_t[:, ::1] steps, int64_t[:, ::1] drawn, Py_ssize_t nth):
    """Run the ``steps`` [count, 4] on ``nth`` threads: addresses of core and arguments, shares, flags. ``drawn`` [nth
    or more, count] is memory for counters, a row of them for each thread."""
    cdef const Step* first = <const Step*> &steps[0, 0]
    cdef Py_ssize_t count = steps.shape[0]
    cdef fu_meeting meeting
    meeting.arrived = 0
    meeting.phase = 0
    memset(&drawn[0, 0], 0, count * nth * sizeof(int64_t))
    with nogil:
        if nth <= 1:
            replay(first, count, &drawn[0, 0], &meeting)
        else:
            with parallel(num_threads=<int> nth):
                replay(first, count, &drawn[0, 0], &meeting)
