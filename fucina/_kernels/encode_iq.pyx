"""Encoding to grid blocks, byte for byte as ggml does.

A group of weights becomes signs and points of a lattice, or points of -1, 0, 1 with a common shift. Candidates for the
scale of a group are tried in turn: round to digits, look the position up, and where the lattice has no point there take
the best of the nearby ones. The specification is ``fucina._scalar.encode_iq``; the tables are those of
``fucina.formats.lattices.search_tables``.
"""

from libc.float cimport FLT_MAX
from libc.math cimport INFINITY, fabsf, sqrtf
from libc.stdint cimport int8_t, int32_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from blocks cimport (
    IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, NUM_IQ1_S, NUM_IQ2_S, NUM_IQ2_XS, NUM_IQ2_XXS, NUM_IQ3_S,
    NUM_IQ3_XXS,
)
from encode_rows cimport EncodeArgs, encode_rows, encode_t, mean_square
from search cimport f8_codes, f8_nearest, fu_nearest, positive
from simd cimport f8, f8_load, f8_mul, f8_set1, f8_sub, fu_f32_f16
from team cimport core_t, run_team

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


# ---- points of a lattice -----------------------------------------------------------------------------------

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


# ---- signs and points --------------------------------------------------------------------------------------

cdef void iq2_xxs(const float* x, const float* importance, Py_ssize_t n, const void* tables,
                  uint8_t* out) noexcept nogil:
    cdef Plan plan
    cdef IQ2_XXS* p = <IQ2_XXS*> out
    cdef float w[32]
    cdef float scale[8]
    cdef int index[8]
    cdef uint8_t signs[4]
    cdef uint8_t code[8]
    cdef uint32_t word[8]
    cdef float d, sigma2
    cdef Py_ssize_t b
    cdef int i, j
    plan.n, plan.dims, plan.base, plan.steps, plan.redo, plan.even = 32, 8, 3, 6, ALWAYS, 1
    plan.stretch, plan.tiny = <float> 0.1, <float> 1e-15
    for b in range(n // 256):
        sigma2 = mean_square(x, 256, 1)
        for j in range(8):
            weights(x + 32 * j, importance + 256 * b + 32 * j, 32, sigma2, w)
            scale[j] = group(<const Tables*> tables, &plan, x + 32 * j, w, index, signs)
            word[j] = 0
            for i in range(4):
                p[b].qs[8 * j + i] = <uint8_t> index[i]
                word[j] |= <uint32_t> signs[i] << 7 * i
        d = halves(scale, 8, 15, code)
        p[b].d = fu_f32_f16(d)
        for j in range(8):
            put32(p[b].qs + 8 * j + 4, word[j] | <uint32_t> code[j] << 28)
        if not d > 0:
            memset(p + b, 0, sizeof(IQ2_XXS))
        x += 256


cdef void iq2_xs(const float* x, const float* importance, Py_ssize_t n, const void* tables,
                 uint8_t* out) noexcept nogil:
    cdef Plan plan
    cdef IQ2_XS* p = <IQ2_XS*> out
    cdef float w[16]
    cdef float scale[16]
    cdef int index[8]
    cdef uint8_t signs[2]
    cdef uint8_t code[16]
    cdef float d, sigma2
    cdef Py_ssize_t b
    cdef int i, j
    plan.n, plan.dims, plan.base, plan.steps, plan.redo, plan.even = 16, 8, 3, 9, OFF, 1
    plan.stretch, plan.tiny = <float> 0.1, <float> 1e-15
    for b in range(n // 256):
        sigma2 = mean_square(x, 256, 1)
        for j in range(16):
            weights(x + 16 * j, importance + 256 * b + 16 * j, 16, sigma2, w)
            scale[j] = group(<const Tables*> tables, &plan, x + 16 * j, w, index, signs)
            for i in range(2):
                p[b].qs[2 * j + i] = <uint16_t> (index[i] | signs[i] << 9)
        d = halves(scale, 16, 15, code)
        p[b].d = fu_f32_f16(d)
        for j in range(8):
            p[b].scales[j] = code[2 * j] | code[2 * j + 1] << 4
        if not d > 0:
            memset(p + b, 0, sizeof(IQ2_XS))
        x += 256


cdef void iq2_s(const float* x, const float* importance, Py_ssize_t n, const void* tables, uint8_t* out) noexcept nogil:
    cdef Plan plan
    cdef IQ2_S* p = <IQ2_S*> out
    cdef float w[16]
    cdef float scale[16]
    cdef int index[8]
    cdef uint8_t code[16]
    cdef float sigma2
    cdef Py_ssize_t b
    cdef int i, j
    plan.n, plan.dims, plan.base, plan.steps, plan.redo, plan.even = 16, 8, 3, 9, OFF, 0
    plan.stretch, plan.tiny = <float> 0.1, <float> 1e-8
    for b in range(n // 256):
        sigma2 = mean_square(x, 256, 2)
        memset(p[b].qh, 0, 8)
        for j in range(16):
            weights(x + 16 * j, importance + 256 * b + 16 * j if importance != NULL else NULL, 16, sigma2, w)
            if importance == NULL:
                for i in range(16):
                    w[i] = <float> 0.25 * sigma2 + w[i]
            scale[j] = group(<const Tables*> tables, &plan, x + 16 * j, w, index, p[b].signs + 2 * j)
            for i in range(2):
                p[b].qs[2 * j + i] = index[i] & 255
                p[b].qh[j >> 1] |= index[i] >> 8 << 2 * (2 * (j & 1) + i)
        p[b].d = fu_f32_f16(halves(scale, 16, 15, code) * <float> 0.9875)
        for j in range(8):
            p[b].scales[j] = code[2 * j] | code[2 * j + 1] << 4
        x += 256


cdef void iq3_xxs(const float* x, const float* importance, Py_ssize_t n, const void* tables,
                  uint8_t* out) noexcept nogil:
    cdef Plan plan
    cdef IQ3_XXS* p = <IQ3_XXS*> out
    cdef float w[32]
    cdef float scale[8]
    cdef int index[8]
    cdef uint8_t signs[4]
    cdef uint8_t code[8]
    cdef uint32_t word[8]
    cdef float d, sigma2
    cdef Py_ssize_t b
    cdef int i, j
    plan.n, plan.dims, plan.base, plan.steps, plan.redo, plan.even = 32, 4, 8, 15, OFF, 1
    plan.stretch, plan.tiny = <float> 0.2, <float> 1e-8
    for b in range(n // 256):
        sigma2 = mean_square(x, 256, 2)
        for j in range(8):
            weights(x + 32 * j, importance + 256 * b + 32 * j if importance != NULL else NULL, 32, sigma2, w)
            scale[j] = group(<const Tables*> tables, &plan, x + 32 * j, w, index, signs)
            word[j] = 0
            for i in range(4):
                word[j] |= <uint32_t> signs[i] << 7 * i
            for i in range(8):
                p[b].qs[8 * j + i] = <uint8_t> index[i]
        d = halves(scale, 8, 15, code)
        p[b].d = fu_f32_f16(d * <float> 1.0125)
        for j in range(8):
            put32(p[b].gas + 4 * j, word[j] | <uint32_t> code[j] << 28)
        if not d > 0:
            memset(p + b, 0, sizeof(IQ3_XXS))
        x += 256


cdef void iq3_s(const float* x, const float* importance, Py_ssize_t n, const void* tables, uint8_t* out) noexcept nogil:
    """Groups that are all zero take no room in ggml's indices and signs: what follows moves up."""
    cdef Plan plan
    cdef IQ3_S* p = <IQ3_S*> out
    cdef float w[32]
    cdef float scale[8]
    cdef int index[8]
    cdef uint8_t signs[4]
    cdef uint8_t code[8]
    cdef float sigma2
    cdef Py_ssize_t b
    cdef int i, j, at
    plan.n, plan.dims, plan.base, plan.steps, plan.redo, plan.even = 32, 4, 8, 9, ALL, 0
    plan.stretch, plan.tiny = <float> 0.2, 0
    for b in range(n // 256):
        memset(p + b, 0, sizeof(IQ3_S))
        sigma2 = mean_square(x, 256, 2)
        at = 0
        for j in range(8):
            weights(x + 32 * j, importance + 256 * b + 32 * j if importance != NULL else NULL, 32, sigma2, w)
            scale[j] = group(<const Tables*> tables, &plan, x + 32 * j, w, index, signs)
            if scale[j] < 0:
                continue
            for i in range(8):
                p[b].qs[8 * at + i] = index[i] & 255
                p[b].qh[j] |= index[i] >> 8 << i
            memcpy(p[b].signs + 4 * at, signs, 4)
            at += 1
        p[b].d = fu_f32_f16(halves(scale, 8, 15, code) * <float> 1.033)
        for j in range(4):
            p[b].scales[j] = code[2 * j] | code[2 * j + 1] << 4
        x += 256


# ---- points with a shift -----------------------------------------------------------------------------------

cdef inline void shift_levels(float* up, float* down) noexcept nogil:
    cdef int i
    for i in range(3):
        up[i] = <float> (i - 1) + <float> 0.125
        down[i] = <float> (i - 1) - <float> 0.125


cdef inline void sort(const float* x, int n, int* order) noexcept nogil:
    """Order of the elements by value; equal ones stay in their order."""
    cdef int i, j
    for i in range(n):
        j = i
        while j > 0 and x[order[j - 1]] > x[i]:
            order[j] = order[j - 1]
            j -= 1
        order[j] = i


cdef inline void cut(const int* order, int n, int first, int second, int mirrored, uint8_t* q) noexcept nogil:
    """Digits 0, 1, 2 of sorted elements, cut before ``first`` and ``second``; mirrored for a negative scale."""
    cdef int i, d
    for i in range(n):
        d = (i >= first) + (i >= second)
        q[order[i]] = <uint8_t> (2 - d if mirrored else d)


cdef inline float shifted_points(const Tables* t, int groups, const uint8_t* q, const float* x, const float* w,
                                 float scale, const float* const* levels, int* index) noexcept nogil:
    """Points of groups of 8; where one was not on the lattice, the scale is fitted again."""
    cdef float v
    cdef float qx = 0
    cdef float qq = 0
    cdef int g, i
    cdef int missed = 0
    for g in range(groups):
        index[g] = look_up(t, 8, 3, q + 8 * g)
        if index[g] < 0:
            missed = 1
            index[g] = closest(t, 8, 3, index[g], x + 8 * g, w + 8 * g, scale, levels[g])
    if missed:
        for g in range(groups):
            for i in range(8):
                v = levels[g][t.points[8 * index[g] + i] >> 1]
                qx += w[8 * g + i] * v * x[8 * g + i]
                qq += w[8 * g + i] * v * v
        if qx > 0 and qq > 0:
            return qx / qq
    return scale


cdef inline float iq1_s_group(const Tables* t, const float* x, const float* w, int* index, int* down) noexcept nogil:
    """32 elements with one shift, found together with the cuts by trying all of them; -1 when all are zero."""
    cdef float levels[2][3]
    cdef const float* chosen[4]
    cdef const float* v
    cdef float sx[33]
    cdef float sw[33]
    cdef int order[32]
    cdef uint8_t q[32]
    cdef float qx, qq
    cdef float scale = 0
    cdef float best = -FLT_MAX
    cdef float top = 0
    cdef int i, j, k
    cdef int first = -1
    cdef int second = -1
    cdef int mirrored
    down[0] = 0
    for i in range(4):
        index[i] = 0
    for i in range(32):
        top = fabsf(x[i]) if fabsf(x[i]) > top else top
    if top < <float> 1e-12:
        return -1
    shift_levels(levels[0], levels[1])
    sort(x, 32, order)
    sx[0] = sw[0] = 0
    for i in range(32):
        sx[i + 1] = sx[i] + w[order[i]] * x[order[i]]
        sw[i + 1] = sw[i] + w[order[i]]
    for i in range(33):
        for j in range(i, 33):
            for k in range(2):
                v = levels[k]
                qx = (sx[i] - sx[0]) * v[0] + (sx[j] - sx[i]) * v[1] + (sx[32] - sx[j]) * v[2]
                qq = (sw[i] - sw[0]) * v[0] * v[0] + (sw[j] - sw[i]) * v[1] * v[1] + (sw[32] - sw[j]) * v[2] * v[2]
                if qq > 0 and qx * qx > best * qq:
                    scale = qx / qq
                    best = scale * qx
                    first = i
                    second = j
                    down[0] = k
    if first < 0:
        return -1
    mirrored = scale < 0
    cut(order, 32, first, second, mirrored, q)
    down[0] ^= mirrored
    for i in range(4):
        chosen[i] = levels[down[0]]
    return shifted_points(t, 4, q, x, w, fabsf(scale), chosen, index)


cdef void iq1_s(const float* x, const float* importance, Py_ssize_t n, const void* tables, uint8_t* out) noexcept nogil:
    cdef IQ1_S* p = <IQ1_S*> out
    cdef float w[32]
    cdef float scale[8]
    cdef int index[4]
    cdef int down[8]
    cdef int word[8]
    cdef uint8_t code[8]
    cdef float d, sigma2
    cdef Py_ssize_t b
    cdef int i, j
    for b in range(n // 256):
        sigma2 = mean_square(x, 256, 2)
        for j in range(8):
            weights(x + 32 * j, importance + 256 * b + 32 * j, 32, sigma2, w)
            scale[j] = iq1_s_group(<const Tables*> tables, x + 32 * j, w, index, down + j)
            word[j] = 0
            for i in range(4):
                p[b].qs[4 * j + i] = index[i] & 255
                word[j] |= index[i] >> 8 << 3 * i
        d = halves(scale, 8, 7, code)
        p[b].d = fu_f32_f16(d * <float> 1.125)
        for j in range(8):
            p[b].qh[j] = <uint16_t> (word[j] | ((code[j] | down[j] << 3) << 12 if d > 0 else 0))
        x += 256


cdef inline float iq1_m_group(const Tables* t, const float* x, const float* w, int* index, int* variant) noexcept nogil:
    """16 elements, each half with its own shift (bits 1 and 0 of ``variant``); -1 when all are zero."""
    cdef float levels[2][3]
    cdef const float* chosen[2]
    cdef const float* v
    cdef float sx[2][17]
    cdef float sw[2][17]
    cdef float qx[2][2]
    cdef float qq[2][2]
    cdef int order[16]
    cdef uint8_t q[16]
    cdef float a, b, middle
    cdef float scale = 0
    cdef float best = -FLT_MAX
    cdef float top = 0
    cdef int i, j, k, h
    cdef int first = -1
    cdef int second = -1
    cdef int mirrored
    variant[0] = index[0] = index[1] = 0
    for i in range(16):
        top = fabsf(x[i]) if fabsf(x[i]) > top else top
    if top < <float> 1e-7:
        return -1
    shift_levels(levels[0], levels[1])
    sort(x, 16, order)
    for h in range(2):
        sx[h][0] = sw[h][0] = 0
        for i in range(16):
            j = order[i]
            sx[h][i + 1] = sx[h][i] + w[j] * x[j] if j >> 3 == h else sx[h][i]
            sw[h][i + 1] = sw[h][i] + w[j] if j >> 3 == h else sw[h][i]
    for i in range(17):
        for j in range(i, 17):
            # Neighbouring levels differ by one: the sum over three parts is total * v2 - the first two sums.
            for h in range(2):
                middle = sx[h][i] + sx[h][j]
                for k in range(2):
                    v = levels[k]
                    qx[h][k] = sx[h][16] * v[2] - middle
                    qq[h][k] = (sw[h][16] * v[2] * v[2] + sw[h][i] * (v[0] * v[0] - v[1] * v[1])
                                + sw[h][j] * (v[1] * v[1] - v[2] * v[2]))
            for k in range(4):
                a = qx[0][k >> 1] + qx[1][k & 1]
                b = qq[0][k >> 1] + qq[1][k & 1]
                if b > 0 and a * a > best * b:
                    scale = a / b
                    best = scale * a
                    first = i
                    second = j
                    variant[0] = k
    if first < 0:
        return -1
    mirrored = scale < 0
    cut(order, 16, first, second, mirrored, q)
    if mirrored:
        variant[0] = 3 - variant[0]
    chosen[0] = levels[variant[0] >> 1]
    chosen[1] = levels[variant[0] & 1]
    return shifted_points(t, 2, q, x, w, fabsf(scale), chosen, index)


cdef void iq1_m(const float* x, const float* importance, Py_ssize_t n, const void* tables, uint8_t* out) noexcept nogil:
    """The scale of the block is fitted at the end and spread over the top nibbles of the four words of scales."""
    cdef IQ1_M* p = <IQ1_M*> out
    cdef const Tables* t = <const Tables*> tables
    cdef float levels[2][3]
    cdef float w[256]
    cdef float scale[16]
    cdef int index[32]
    cdef int variant[16]
    cdef uint8_t code[16]
    cdef float d, sigma2, q, qx, qq
    cdef Py_ssize_t b
    cdef int i, j, down, bits, word
    shift_levels(levels[0], levels[1])
    for b in range(n // 256):
        memset(p + b, 0, sizeof(IQ1_M))
        sigma2 = mean_square(x, 256, 2)
        weights(x, importance + 256 * b if importance != NULL else NULL, 256, sigma2, w)
        for j in range(16):
            scale[j] = iq1_m_group(t, x + 16 * j, w + 16 * j, index + 2 * j, variant + j)
        d = halves(scale, 16, 7, code)
        qx = qq = 0
        for j in range(32):
            down = variant[j >> 1] >> 1 if not j & 1 else variant[j >> 1] & 1
            p[b].qs[j] = index[j] & 255
            p[b].qh[j >> 1] |= (index[j] >> 8 | (down << 3 if d > 0 else 0)) << 4 * (j & 1)
            for i in range(8):
                q = levels[down][t.points[8 * index[j] + i] >> 1] * <float> (2 * code[j >> 1] + 1)
                qx += w[8 * j + i] * q * x[8 * j + i]
                qq += w[8 * j + i] * q * q
        if d > 0 and qq > 0:
            d = qx / qq
        bits = fu_f32_f16(d * <float> 1.1125)
        for j in range(4):
            word = code[4 * j] | code[4 * j + 1] << 3 | code[4 * j + 2] << 6 | code[4 * j + 3] << 9
            p[b].scales[j] = <uint16_t> (word | (bits >> 4 * j & 15) << 12)
        x += 256


cdef encode_t encoder_of(int number) noexcept nogil:
    if number == NUM_IQ2_XXS:
        return iq2_xxs
    if number == NUM_IQ2_XS:
        return iq2_xs
    if number == NUM_IQ2_S:
        return iq2_s
    if number == NUM_IQ3_XXS:
        return iq3_xxs
    if number == NUM_IQ3_S:
        return iq3_s
    if number == NUM_IQ1_S:
        return iq1_s
    return iq1_m


def encode_rows_into_unchecked(int number, const int8_t[:, ::1] points, const int32_t[::1] where,
                               const uint16_t[::1] near, const float[:, ::1] x, const float[::1] imatrix,
                               unsigned char[:, ::1] out, unsigned char[::1] finite, Py_ssize_t nth):
    """Rows of ``x`` to rows of blocks; ``imatrix`` (or None) weighs the errors; rows that are not ``finite`` are zero."""
    cdef EncodeArgs a
    cdef Tables t
    t.points = &points[0, 0]
    t.where = &where[0]
    t.near = &near[0]
    a.x = &x[0, 0]
    a.importance = NULL
    if imatrix is not None:
        a.importance = &imatrix[0]
    a.tables = &t
    a.out = &out[0, 0]
    a.finite = &finite[0]
    a.rows = x.shape[0]
    a.k = x.shape[1]
    a.row_bytes = out.shape[1]
    a.encode = encoder_of(number)
    with nogil:
        run_team(<core_t> encode_rows, &a, min(a.rows, 4 * nth), nth)
