"""Dots of blocks of weights and blocks of activations, as they lie in memory: out[t, o] = a[t] . w[o].

Not the product for speed, which is ``linear_quant``, but the plain contract between two byte layouts. Integer sums are
exact, for all byte values; floats are rounded at every step, nothing is fused, blocks come in order. Per block, with the
scales dw and da, P = sum(q * a), A = sum(a), and M the block's offset or scale of mins:

    q4_0 q8_0      s = s + (P * dw) * da
    q5_0           s = s + P * (dw * da)
    q4_1 q5_1      s = s + da * (dw * P + M * A);  with q8_1:  s = s + (P * (dw * da) + M * sum stored)
    q4_k q5_k      s = s - (M * da) * sum_j mn_j * asum_j;  s = s + (dw * da) * sum_j sc_j * P_j
    q6_k           for each of 16 groups:  s = s + ((dw * da) * sc_g) * P_g

A thread owns rows of weights and unpacks each block once for all rows of activations.
"""

from libc.stdint cimport int8_t, int16_t, uint8_t, uint16_t
from libc.string cimport memcpy

from blocks cimport Block, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0
from simd cimport fu_f16_f32
from team cimport core_t, run_team, share_start

cdef struct Args:
    const char* w
    const uint8_t* a
    float* out
    Py_ssize_t m, n, w_bytes, a_bytes, blocks, size     # size: bytes of a block of activations
    int layout


cdef struct Unpacked:
    int8_t[256] q
    int[16] sc
    int[8] mn
    float d, m


cdef inline int fifth(const uint8_t* qh, int i) noexcept nogil:
    return (qh[i >> 3] >> (i & 7) & 1) << 4


cdef inline int dot(const int8_t* q, const int8_t* a, int n) noexcept nogil:
    cdef int s = 0, i
    for i in range(n):
        s += <int> q[i] * <int> a[i]
    return s


cdef inline float half_at(const uint8_t* p) noexcept nogil:
    cdef uint16_t h
    memcpy(&h, p, 2)
    return fu_f16_f32(h)


cdef inline void unpack(const Block* p, Unpacked* u) noexcept nogil:
    cdef int i, j, code
    u.d = fu_f16_f32(p.d)
    if Block is Q8_0:
        memcpy(&u.q[0], &p.qs[0], 32)
    elif Block is Q4_0 or Block is Q4_1:
        j = 8 if Block is Q4_0 else 0
        for i in range(16):
            u.q[i] = (p.qs[i] & 15) - j
            u.q[i + 16] = (p.qs[i] >> 4) - j
    elif Block is Q5_0 or Block is Q5_1:
        j = 16 if Block is Q5_0 else 0
        for i in range(16):
            u.q[i] = (p.qs[i] & 15 | fifth(p.qh, i)) - j
            u.q[i + 16] = (p.qs[i] >> 4 | fifth(p.qh, i + 16)) - j
    elif Block is Q6_K:
        for i in range(16):
            u.sc[i] = p.scales[i]
        for i in range(256):
            # half i / 128, run of 32 inside it, byte inside the run
            code = p.ql[(i >> 7) * 64 + (i & 63)]
            code = code >> 4 if i & 64 else code & 15
            u.q[i] = (code | (p.qh[(i >> 7) * 32 + (i & 31)] >> 2 * (i >> 5 & 3) & 3) << 4) - 32
    else:
        for j in range(4):
            u.sc[j] = p.scales[j] & 63
            u.mn[j] = p.scales[j + 4] & 63
            u.sc[j + 4] = p.scales[j + 8] & 15 | p.scales[j] >> 6 << 4
            u.mn[j + 4] = p.scales[j + 8] >> 4 | p.scales[j + 4] >> 6 << 4
        for j in range(8):
            for i in range(32):
                code = p.qs[(j >> 1) * 32 + i]
                code = code >> 4 if j & 1 else code & 15
                if Block is Q5_K:
                    code |= (p.qh[i] >> j & 1) << 4
                u.q[32 * j + i] = code
    if Block is Q4_1 or Block is Q5_1:
        u.m = fu_f16_f32(p.m)
    elif Block is Q4_K or Block is Q5_K:
        u.m = fu_f16_f32(p.dmin)


cdef inline float step(const Block* tag, const Unpacked* u, const uint8_t* a, int layout, float s) noexcept nogil:
    """One block more; ``tag`` only selects the format."""
    cdef float da
    cdef const int8_t* q
    cdef int16_t[16] sums
    cdef int i, j, mins = 0, total = 0
    if Block is Q4_K or Block is Q5_K or Block is Q6_K:
        if layout == 2:
            memcpy(&da, a, 4)
            q = <const int8_t*> (a + 4)
            memcpy(&sums[0], a + 260, 32)
        else:
            da = half_at(a)
            q = <const int8_t*> (a + 2)
            memcpy(&sums[0], a + 274, 32)
        if Block is Q6_K:
            for j in range(16):
                s = s + u.d * da * <float> u.sc[j] * <float> dot(u.q + 16 * j, q + 16 * j, 16)
            return s
        for j in range(8):
            mins += u.mn[j] * (sums[2 * j] + sums[2 * j + 1])
        s = s - u.m * da * <float> mins
        for j in range(8):
            total += u.sc[j] * dot(u.q + 32 * j, q + 32 * j, 32)
        return s + u.d * da * <float> total
    da = half_at(a)
    q = <const int8_t*> (a + (4 if layout == 1 else 2))
    total = dot(&u.q[0], q, 32)
    if Block is Q4_0 or Block is Q8_0:
        return s + <float> total * u.d * da
    elif Block is Q5_0:
        return s + <float> total * (u.d * da)
    else:
        if layout == 1:
            return s + (<float> total * (u.d * da) + u.m * half_at(a + 2))
        for i in range(32):
            mins += q[i]
        return s + da * (u.d * <float> total + u.m * <float> mins)


cdef void dots(const Block* args, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    """Share ``ith`` of the rows of weights. The pointer's type only selects the format; it points to ``Args``."""
    cdef const Args* g = <const Args*> args
    cdef Py_ssize_t o, b, t
    cdef Unpacked u
    for o in range(share_start(g.n, ith, nth), share_start(g.n, ith + 1, nth)):
        for t in range(g.m):
            g.out[t * g.n + o] = 0
        for b in range(g.blocks):
            unpack(<const Block*> (g.w + o * g.w_bytes) + b, &u)
            for t in range(g.m):
                g.out[t * g.n + o] = step(args, &u, g.a + t * g.a_bytes + b * g.size, g.layout, g.out[t * g.n + o])


cdef core_t core_of(int code) noexcept nogil:
    if code == 0:
        return <core_t> dots[Q4_0]
    if code == 1:
        return <core_t> dots[Q4_1]
    if code == 2:
        return <core_t> dots[Q5_0]
    if code == 3:
        return <core_t> dots[Q5_1]
    if code == 4:
        return <core_t> dots[Q8_0]
    if code == 5:
        return <core_t> dots[Q4_K]
    if code == 6:
        return <core_t> dots[Q5_K]
    return <core_t> dots[Q6_K]


def block_dot_into_unchecked(int code, int layout, const unsigned char[:, ::1] w, const unsigned char[:, ::1] a,
                             float[:, ::1] out, Py_ssize_t nth):
    """``out`` [m, n]: rows of blocks ``a`` [m, bytes] times rows of blocks ``w`` [n, bytes].

    ``code`` is the number of the weights' format (0 to 7), ``layout`` that of the activations; which ones meet is
    decided above. Codes of q8_0 weights may be -128.
    """
    cdef Args g
    g.w = <const char*> &w[0, 0]
    g.a = &a[0, 0]
    g.out = &out[0, 0]
    g.m = a.shape[0]
    g.n = w.shape[0]
    g.w_bytes = w.shape[1]
    g.a_bytes = a.shape[1]
    g.size = 292 if layout == 2 else 306 if layout == 3 else 36 if layout == 1 else 34
    g.blocks = g.a_bytes // g.size
    g.layout = layout
    with nogil:
        run_team(core_of(code), &g, min(g.n, 4 * nth) if nth > 1 else 1, nth)
