"""Activations to int8 blocks, the right-hand sides of quantized products.

Computes, per block of B elements x:

    q8_0, q8_1 (B = 32)   d = max|x| / 127,  q = round_half_away(x / d),  stored scale f16(d);
                          q8_0 keeps S = sum(q),  q8_1 keeps s = f16(d * sum(q))
    q8_k (B = 256)        c = -127 / (first x of largest magnitude),  q = min(round_half_even(c * x), 127),
                          d = 1 / c,  sums of q over 16 and over 32 elements

A block that holds a non-finite value gets d = NaN and q = 0, so that its row of the product is NaN; a block whose
scale has no finite inverse counts as zero. q never is -128: the sign trick of the products relies on it.

Memory: columns (rows of x) are grouped in tiles of ``tile``; block b of column r in a tile of nc columns that
starts at column t is entry ``t * nb + b * nc + (r - t)`` of ``qs``, ``d`` and ``aux``. A product walks blocks
outside and columns inside, so it reads these arrays from front to back, whatever k is; strided rows would fall
into the same cache set when k is a power of two.
"""

from libc.math cimport INFINITY, NAN
from libc.stdint cimport int8_t, int16_t, int32_t

from simd cimport (
    f8, f8_abs, f8_hmax, f8_isfinite_all, f8_load, f8_max, f8_mul, f8_set1, f8_zero, fu_f16_f32, fu_f32_f16, w8, w8_store,
    w8_zero,
)
from team cimport share_start

cdef extern from "act.h" nogil:
    w8 fu_round_away(f8 x)
    w8 fu_round_even(f8 x)
    w8 fu_narrow(w8 a, w8 b, w8 c, w8 d)
    void fu_sums16(w8 q, int32_t* first, int32_t* last)
    int fu_first_equal(f8 v, float x)
    f8 f8_load_i8(const int8_t* p)

cdef enum:
    Q8_0 = 0
    Q8_1 = 1
    Q8_K = 2

cdef struct ActArgs:
    const float* x
    int8_t* qs
    float* d
    char* aux
    Py_ssize_t m, k, tile
    int kind


cdef inline Py_ssize_t act_block(int kind) noexcept nogil:
    """Elements per block."""
    return 256 if kind == Q8_K else 32


cdef inline Py_ssize_t act_aux(int kind) noexcept nogil:
    """Bytes of sums per block: one number, or 16 + 8 of 16 bits."""
    return 48 if kind == Q8_K else 4


cdef inline int amax_of(const float* x, int n, float* amax) noexcept nogil:
    """max|x| of n elements (a multiple of 32); returns whether all are finite."""
    cdef f8 m = f8_zero(), v
    cdef int i, finite = 1
    for i in range(0, n, 8):
        v = f8_abs(f8_load(x + i))
        finite &= f8_isfinite_all(v)
        m = f8_max(m, v)
    amax[0] = f8_hmax(m)
    return finite


cdef inline float scale_of(const float* x, int n, float* inv) noexcept nogil:
    """max|x| / 127 and its inverse; 0 where there is none, NaN with 0 for a block that is not finite."""
    cdef float amax
    cdef int finite = amax_of(x, n, &amax)
    cdef float scale = amax / <float>127.0
    inv[0] = <float>1.0 / scale if finite and scale > 0 else <float>0.0
    if inv[0] == INFINITY:
        inv[0] = 0
        scale = 0
    return scale if finite else <float>NAN


cdef inline w8 codes32(const float* x, float by, bint to_even) noexcept nogil:
    """32 elements times ``by``, rounded; zeros where ``by`` is 0, whatever they are."""
    cdef w8 t[4]
    cdef f8 v
    cdef int i
    if by == 0:
        return w8_zero()
    for i in range(4):
        v = f8_mul(f8_load(x + 8 * i), f8_set1(by))
        t[i] = fu_round_even(v) if to_even else fu_round_away(v)
    return fu_narrow(t[0], t[1], t[2], t[3])


cdef inline void block32(const float* x, int8_t* q, float* d, char* aux, int kind) noexcept nogil:
    cdef float inv
    cdef int32_t first, last
    cdef float scale = scale_of(x, 32, &inv)
    cdef w8 v = codes32(x, inv, False)
    w8_store(q, v)
    fu_sums16(v, &first, &last)
    d[0] = fu_f16_f32(fu_f32_f16(scale))
    if kind == Q8_1:
        (<float*> aux)[0] = fu_f16_f32(fu_f32_f16(scale * <float> (first + last)))
    else:
        (<int32_t*> aux)[0] = first + last


cdef inline void block256(const float* x, int8_t* q, float* d, char* aux) noexcept nogil:
    cdef float amax, c = 0
    cdef int32_t first, last
    cdef w8 v
    cdef int i, j, lane
    cdef int16_t* sums = <int16_t*> aux
    cdef int finite = amax_of(x, 256, &amax)
    if finite and amax > 0:
        i = 0
        lane = 8
        while lane == 8:
            lane = fu_first_equal(f8_abs(f8_load(x + i)), amax)
            i += 8
        c = <float>-127.0 / x[i - 8 + lane]
        if c == INFINITY or c == -INFINITY:
            c = 0
    d[0] = <float>NAN if not finite else (<float>1.0 / c if c != 0 else <float>0.0)
    for j in range(8):
        v = codes32(x + 32 * j, c, True)
        w8_store(q + 32 * j, v)
        fu_sums16(v, &first, &last)
        sums[2 * j] = <int16_t> first
        sums[2 * j + 1] = <int16_t> last
        sums[16 + j] = <int16_t> (first + last)


cdef inline void quantize_act(const ActArgs* a, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    cdef Py_ssize_t size = act_block(a.kind)
    cdef Py_ssize_t aux_bytes = act_aux(a.kind)
    cdef Py_ssize_t nb = a.k // size
    cdef Py_ssize_t r, b, t, nc, at
    for r in range(share_start(a.m, ith, nth), share_start(a.m, ith + 1, nth)):
        t = r // a.tile * a.tile
        nc = min(a.tile, a.m - t)
        for b in range(nb):
            at = t * nb + b * nc + (r - t)
            if a.kind == Q8_K:
                block256(a.x + r * a.k + b * size, a.qs + at * size, a.d + at, a.aux + at * aux_bytes)
            else:
                block32(a.x + r * a.k + b * size, a.qs + at * size, a.d + at, a.aux + at * aux_bytes, a.kind)
