"""Replays a list of validated steps inside one parallel region.

A step is a core of some kernel, its arguments, and the number of shares it is cut into: threads draw shares from a
counter, so a thread that was held up simply draws fewer. A step of one share is done by whichever thread draws it. At a
barrier all threads wait; between two barriers steps must not depend on each other, unless they are chained: a share of a
chain is that share of all its steps, done by the thread that drew it. Nothing here knows what a core computes, and a core
gives the same values for any number of shares, so a program has the bits of its steps called one by one.
"""

from cython.parallel cimport parallel

from libc.stdint cimport int64_t

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


cdef struct Step:
    int64_t core, args      # addresses
    int64_t shares, flags
    int64_t drawn           # the next share


cdef void replay(Step* steps, Py_ssize_t count, fu_meeting* meeting) noexcept nogil:
    cdef Step* end = steps + count
    cdef Step* step = steps
    cdef Step* link
    cdef int64_t share, threads = fu_present()
    while step < end:
        if not step.flags & CHAINED:
            while True:
                share = fu_ticket(&step.drawn)
                if share >= step.shares:
                    break
                (<core_t> step.core)(<const void*> step.args, share, step.shares)
                link = step + 1
                while link < end and link.flags & CHAINED:
                    (<core_t> link.core)(<const void*> link.args, share, step.shares)
                    link += 1
        if step.flags & BARRIER and threads > 1:
            fu_meet(meeting, threads)
        step += 1


def replay_unchecked(int64_t[:, ::1] steps, Py_ssize_t nth):
    """Run the ``steps`` [count, 5] on ``nth`` threads: addresses of core and arguments, shares, flags, a counter."""
    cdef Step* first = <Step*> &steps[0, 0]
    cdef Py_ssize_t i, count = steps.shape[0]
    cdef fu_meeting meeting
    meeting.arrived = 0
    meeting.phase = 0
    for i in range(count):
        first[i].drawn = 0
    with nogil:
        if nth <= 1:
            replay(first, count, &meeting)
        else:
            with parallel(num_threads=<int> nth):
                replay(first, count, &meeting)
