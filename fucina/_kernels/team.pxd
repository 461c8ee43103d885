"""The one driver of single operations: a core computes share ``ith`` of ``nth``, the team runs all shares.

Shares are handed out dynamically and there may be more of them than threads, which evens out a core that was
taken away by a neighbour. A core must compute the same values for any ``nth``.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cython.parallel cimport prange
from libc.stdint cimport int64_t

cdef extern from "team.h" nogil:
    int64_t fu_ticket(int64_t* counter)
    int64_t fu_drawn(const int64_t* counter)

ctypedef void (*core_t)(const void* args, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil


cdef inline void run_team(core_t core, const void* args, Py_ssize_t shares, Py_ssize_t threads) noexcept nogil:
    cdef Py_ssize_t i
    if threads <= 1 or shares <= 1:
        core(args, 0, 1)
    else:
        for i in prange(shares, num_threads=<int>threads, schedule="dynamic", chunksize=1):
            core(args, i, shares)


cdef inline Py_ssize_t share_start(Py_ssize_t total, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    """First item of share ``ith`` when ``total`` items are split evenly in order."""
    return total * ith // nth


cdef inline tuple step_of(core_t core, const void* args, Py_ssize_t size, const Py_ssize_t* rows):
    """A step of a program: the core's address, a copy of its arguments, and where among them the number of rows is."""
    return <Py_ssize_t> core, PyBytes_FromStringAndSize(<const char*> args, size), <const char*> rows - <const char*> args
