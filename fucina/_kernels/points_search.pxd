"""The search for points of a lattice when a group of weights is encoded: signs, magnitudes and a scale.

Candidates for the scale are tried in turn: round to digits, look the position up, and where the lattice has no point
there take the best of the nearby ones. The specification is ``fucina._scalar.encode_iq``.
"""

from libc.math cimport INFINITY, sqrtf
from libc.stdint cimport int8_t, int32_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memset

from search cimport f8_codes, f8_nearest, fu_nearest, positive
from simd cimport f8, f8_load, f8_mul, f8_set1, f8_sub

# What the last step looks up again: points that were not hit exactly, all of a group with such a point, or all.
cdef enum:
    OFF = 0
    ALL = 1
    ALWAYS = 2

cdef struct Tables:
    const int8_t* points
    const int32_t* where
    const uint16_t* near

# One way to encode a group of n elements: lattice (dims, base), number and spacing of candidates, threshold of zero.
cdef struct Plan:
    int n, dims, base, steps, redo, even
    float stretch, tiny


cdef inline int look_up(const Tables* t, int dims, int base, const uint8_t* q) noexcept nogil:
    """The point at a position, or the negative entry of a list."""
    cdef int i
    cdef int position = 0
    for i in range(dims - 1, -1, -1):
        position = base * position + q[i]
    return t.where[position]


cdef inline int closest(const Tables* t, int dims, int base, int entry, const float* x, const float* w, float scale,
                        const float* levels) noexcept nogil:
    """Of the points in a list the one with the smallest sum w (scale * level - x)^2, the first of equal ones."""
    cdef const uint16_t* member = t.near - 1 - entry
    cdef const int8_t* p
    cdef float errors[64]
    cdef float e, total
    cdef float best = INFINITY
    cdef int i, d, j
    cdef int found = member[1]
    for i in range(dims):
        for d in range(base):
            e = scale * levels[d] - x[i]
            errors[8 * i + d] = w[i] * e * e
    for j in range(1, member[0] + 1):
        p = t.points + dims * member[j]
        total = errors[p[0] >> 1]
        for i in range(1, dims):
            total += errors[8 * i + (p[i] >> 1)]
        if total < best:
            best = total
            found = member[j]
    return found


cdef inline void digits(float inv, const float* size, const Plan* p, uint8_t* q) noexcept nogil:
    """Numbers of the odd levels nearest to inv * size."""
    cdef f8 v
    cdef int i
    for i in range(0, p.n, 8):
        v = f8_mul(f8_set1(<float> 0.5), f8_sub(f8_mul(f8_set1(inv), f8_load(size + i)), f8_set1(1)))
        f8_codes(q + i, f8_nearest(v, 0, p.base - 1), 255)


cdef inline void sums(const Tables* t, const Plan* p, const int* index, const float* size, const float* w, float* qx,
                      float* qq) noexcept nogil:
    """Least squares sums of points against magnitudes."""
    cdef float q
    cdef int i, g
    qx[0] = qq[0] = 0
    for g in range(p.n // p.dims):
        for i in range(p.dims):
            q = <float> t.points[p.dims * index[g] + i]
            qx[0] += w[p.dims * g + i] * size[p.dims * g + i] * q
            qq[0] += w[p.dims * g + i] * q * q


cdef inline float grid(const Tables* t, const Plan* p, const float* size, const float* w, float start, float top,
                       int* index) noexcept nogil:
    """The points of a group and its scale."""
    cdef float odd[8]
    cdef float root[32]
    cdef int trial[8]
    cdef int hit[8]
    cdef int trial_hit[8]
    cdef uint8_t q[32]
    cdef float inv, qx, qq
    cdef float scale = start
    cdef float best = 0
    cdef int groups = p.n // p.dims
    cdef int i, g, step, missed
    for i in range(8):
        odd[i] = <float> (2 * i + 1)
        hit[i] = p.redo == OFF
        index[i] = 0
    for i in range(p.n):
        root[i] = sqrtf(w[i])
    for step in range(-p.steps, p.steps + 1):
        inv = (<float> (2 * p.base - 1) + <float> step * p.stretch) / top
        digits(inv, size, p, q)
        for g in range(groups):
            trial[g] = look_up(t, p.dims, p.base, q + p.dims * g)
            trial_hit[g] = trial[g] >= 0
            if trial[g] < 0:
                trial[g] = closest(t, p.dims, p.base, trial[g], size + p.dims * g, root + p.dims * g,
                                   <float> 1.0 / inv, odd)
        sums(t, p, trial, size, w, &qx, &qq)
        if qq > 0 and qx * qx > best * qq:
            scale = qx / qq
            best = scale * qx
            for g in range(groups):
                index[g] = trial[g]
                hit[g] = trial_hit[g]
    missed = p.redo == ALWAYS
    for g in range(groups):
        missed |= not hit[g]
    if missed and scale > 0:
        digits(<float> 1.0 / scale, size, p, q)
        for g in range(groups):
            if hit[g] and p.redo == OFF:
                continue
            index[g] = look_up(t, p.dims, p.base, q + p.dims * g)
            if index[g] < 0:
                index[g] = closest(t, p.dims, p.base, index[g], size + p.dims * g, root + p.dims * g, scale, odd)
        sums(t, p, index, size, w, &qx, &qq)
        if qq > 0:
            scale = qx / qq
    return scale


cdef inline void magnitudes(const Plan* p, const float* x, const float* w, float* size, uint8_t* signs) noexcept nogil:
    """Magnitudes and sign bytes; with ``even`` the cheapest sign is wrong where the number of minus signs is odd."""
    cdef float cost, least
    cdef int i, g, minus, count, cheapest
    for g in range(p.n // 8):
        minus = count = 0
        for i in range(8 * g, 8 * g + 8):
            size[i] = x[i] if x[i] >= 0 else -x[i]
            if not x[i] >= 0:
                minus |= 1 << (i & 7)
                count += 1
        if p.even and count & 1:
            cheapest = 8 * g
            least = w[cheapest] * x[cheapest] * x[cheapest]
            for i in range(8 * g + 1, 8 * g + 8):
                cost = w[i] * x[i] * x[i]
                if cost < least:
                    least = cost
                    cheapest = i
            size[cheapest] = -size[cheapest]
            minus ^= 1 << (cheapest & 7)
        signs[g] = <uint8_t> (minus & 127 if p.even else minus)


cdef inline float group(const Tables* t, const Plan* p, const float* x, const float* w, int* index,
                        uint8_t* signs) noexcept nogil:
    """Points, sign bytes and scale of one group; -1 for a group that is all zero (points and signs are zero then)."""
    cdef float size[32]
    cdef uint8_t codes[32]
    cdef float top, scale
    cdef int i
    magnitudes(p, x, w, size, signs)
    top = size[0]
    for i in range(1, p.n):
        top = size[i] if size[i] > top else top
    if not (top == 0 or top < p.tiny):
        if p.redo == ALWAYS:
            scale = positive(p.n, 4, size, w, codes)
            top = scale * 3
        else:
            scale = top / <float> (2 * p.base - 1)
        if p.redo != ALWAYS or top > 0:
            scale = grid(t, p, size, w, scale, top, index)
            if scale < 0:
                scale = -scale
                for i in range(p.n // 8):
                    signs[i] = ~signs[i] & (127 if p.even else 255)
            return scale
    for i in range(p.n // p.dims):
        index[i] = 0
    memset(signs, 0, p.n // 8)
    return -1


cdef inline void weights(const float* x, const float* importance, int n, float sigma2, float* w) noexcept nogil:
    """importance sqrt(sigma2 + x^2), or x^2 without importance."""
    cdef int i
    for i in range(n):
        w[i] = importance[i] * sqrtf(sigma2 + x[i] * x[i]) if importance != NULL else x[i] * x[i]


cdef inline float halves(const float* scale, int n, int nmax, uint8_t* code) noexcept nogil:
    """Scales ~ d (2 c + 1): the codes c, the largest of which is nmax, and d."""
    cdef float top = 0
    cdef float d, inv
    cdef int i, c
    for i in range(n):
        top = scale[i] if scale[i] > top else top
    d = top / <float> (2 * nmax + 1)
    inv = <float> 1.0 / d
    for i in range(n):
        c = fu_nearest(<float> 0.5 * (inv * max(scale[i], <float> 0.0) - 1)) if d > 0 else 0
        code[i] = <uint8_t> max(0, min(nmax, c))
    return d


cdef inline void put32(uint8_t* p, uint32_t word) noexcept nogil:
    p[0] = word & 255
    p[1] = word >> 8 & 255
    p[2] = word >> 16 & 255
    p[3] = word >> 24
