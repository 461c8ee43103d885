"""What the machine can do at best: loops that do one thing, for ``tools/bench_peak.py``.

Rates of other kernels are given as fractions of these, measured in the same run. Nothing is computed here.
"""

from cython.parallel cimport parallel, prange, threadid
from libc.stdint cimport int64_t
from libc.string cimport memset

from dot cimport PARTS_ARE_WHOLE, part_more, part_total
from simd cimport (
    f8, f8_add, f8_fma, f8_set1, f8_store, w8, w8_add32, w8_load, w8_or, w8_set1_i32, w8_store, w8_zero,
)
from team cimport fu_present

cdef extern from "meet.h" nogil:
    ctypedef struct fu_meeting:
        pass
    int fu_meet(fu_meeting* m, int64_t n)
    void fu_leave(fu_meeting* m)

cdef enum:
    CHAINS = 12     # covers two pipes with a latency of four and leaves registers for the operands


cdef float fma_chains(Py_ssize_t count) noexcept nogil:
    cdef f8 s[CHAINS]
    cdef f8 a = f8_set1(<float> 0.999), b = f8_set1(<float> 0.001)
    cdef float lane[8]
    cdef Py_ssize_t _
    cdef int j
    for j in range(CHAINS):
        s[j] = f8_set1(j)
    for _ in range(count):
        for j in range(CHAINS):
            s[j] = f8_fma(a, s[j], b)
    for j in range(1, CHAINS):
        s[0] = f8_add(s[0], s[j])
    f8_store(lane, s[0])
    return lane[0]


cdef int dot_chains(Py_ssize_t count) noexcept nogil:
    """Unsigned by signed bytes to 32 bits, as products with 8-bit weights need it: three instructions for 32 products, or
    one."""
    cdef w8 s[CHAINS]
    cdef w8 u = w8_set1_i32(0x01020304)
    cdef int lane[8]
    cdef Py_ssize_t _
    cdef int j
    for j in range(CHAINS):
        s[j] = w8_set1_i32(j)
    for _ in range(count):
        for j in range(CHAINS):
            if PARTS_ARE_WHOLE:
                s[j] = part_more(s[j], u, u)
            else:
                s[j] = w8_add32(s[j], part_total(part_more(w8_zero(), s[j], s[j])))
    for j in range(1, CHAINS):
        s[0] = w8_add32(s[0], s[j])
    w8_store(lane, s[0])
    return lane[0]


cdef long long read_part(const unsigned char* p, Py_ssize_t nbytes) noexcept nogil:
    """Four streams, which reach more of the memory than one."""
    cdef w8 s[4]
    cdef long long lane[4]
    cdef Py_ssize_t quarter = nbytes // 4 // 64 * 64, i = 0
    cdef int j
    for j in range(4):
        s[j] = w8_set1_i32(0)
    while i < quarter:
        for j in range(4):
            s[j] = w8_or(s[j], w8_or(w8_load(p + j * quarter + i), w8_load(p + j * quarter + i + 32)))
        i += 64
    w8_store(lane, w8_or(w8_or(s[0], s[1]), w8_or(s[2], s[3])))
    return lane[0]


def fma(Py_ssize_t count, Py_ssize_t nth):
    """Per thread ``count`` times 12 x 8 fused multiply-adds of f32; returns their number."""
    cdef Py_ssize_t _
    cdef float keep = 0
    with nogil:
        for _ in prange(nth, num_threads=<int> nth, schedule="static", chunksize=1):
            keep += fma_chains(count)
    return 8 * CHAINS * count * nth + (keep > 1e30)


def dot8(Py_ssize_t count, Py_ssize_t nth):
    """Per thread ``count`` times 12 x 32 multiply-adds of bytes; returns their number."""
    cdef Py_ssize_t _
    cdef int keep = 0
    with nogil:
        for _ in prange(nth, num_threads=<int> nth, schedule="static", chunksize=1):
            keep += dot_chains(count)
    return 32 * CHAINS * count * nth + (keep == 12345)


def read(const unsigned char[::1] memory, Py_ssize_t nth):
    """Read ``memory`` once, a part per thread; returns the number of bytes."""
    cdef Py_ssize_t part = memory.shape[0] // nth // 256 * 256, i
    cdef long long keep = 0
    with nogil:
        for i in prange(nth, num_threads=<int> nth, schedule="static", chunksize=1):
            keep += read_part(&memory[i * part], part)
    return part * nth + (keep == 12345)


def regions(Py_ssize_t count, int[::1] slots, Py_ssize_t nth):
    """Open and close ``count`` parallel regions in which every thread writes one number; ``slots`` has 16 per thread."""
    cdef Py_ssize_t _
    cdef int* slot = &slots[0]
    with nogil:
        for _ in range(count):
            with parallel(num_threads=<int> nth):
                slot[16 * threadid()] += 1


def barriers(Py_ssize_t count, Py_ssize_t nth):
    """Wait ``count`` times for all threads inside one region, as programs do."""
    cdef fu_meeting meeting
    memset(&meeting, 0, sizeof(meeting))
    with nogil, parallel(num_threads=<int> nth):
        wait(&meeting, count)


cdef void wait(fu_meeting* meeting, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t _
    for _ in range(count):
        if fu_meet(meeting, fu_present()):
            fu_leave(meeting)
