"""Replays a list of validated steps inside one parallel region.

A step is a core of some kernel, its arguments, and the number of shares it is cut into: threads draw shares from a
counter, so a thread that was held up simply draws fewer. A step of one share is done by whichever thread draws it. At a
barrier all threads wait; between two barriers steps must not depend on each other, unless they are chained: a share of a
chain is that share of all its steps, done by the thread that drew it. Nothing here knows what a core computes, and a core
gives the same values for any number of shares, so a program has the bits of its steps called one by one.
"""

from cython.parallel cimport parallel

from libc.stdint cimport int64_t
from libc.string cimport memset

from team cimport core_t, fu_ticket

cdef extern from "meet.h" nogil:
    ctypedef struct fu_meeting:
        int64_t arrived
        int64_t phase
    int64_t fu_present()
    void fu_meet(fu_meeting* m, int64_t n)

cdef enum:
    BARRIER = 1     # wait for all threads after this step
    CHAINED = 2     # each share is done right after the same share of the step before


cdef void replay(const int64_t* cores, const int64_t* args, const int64_t* shares, const int64_t* flags, int64_t* counters,
                 Py_ssize_t count, fu_meeting* meeting) noexcept nogil:
    cdef Py_ssize_t i, j
    cdef int64_t share, threads = fu_present()
    for i in range(count):
        if not flags[i] & CHAINED:
            while True:
                share = fu_ticket(counters + i)
                if share >= shares[i]:
                    break
                (<core_t> cores[i])(<const void*> args[i], share, shares[i])
                j = i + 1
                while j < count and flags[j] & CHAINED:
                    (<core_t> cores[j])(<const void*> args[j], share, shares[i])
                    j += 1
        if flags[i] & BARRIER and threads > 1:
            fu_meet(meeting, threads)


def replay_unchecked(const int64_t[::1] cores, const int64_t[::1] args, const int64_t[::1] shares,
                     const int64_t[::1] flags, int64_t[::1] counters, Py_ssize_t nth):
    """Run the steps whose core addresses and argument addresses are given, on ``nth`` threads."""
    cdef Py_ssize_t count = cores.shape[0]
    cdef fu_meeting meeting
    meeting.arrived = 0
    meeting.phase = 0
    memset(&counters[0], 0, count * sizeof(int64_t))
    with nogil:
        if nth <= 1:
            replay(&cores[0], &args[0], &shares[0], &flags[0], &counters[0], count, &meeting)
        else:
            with parallel(num_threads=<int> nth):
                replay(&cores[0], &args[0], &shares[0], &flags[0], &counters[0], count, &meeting)
