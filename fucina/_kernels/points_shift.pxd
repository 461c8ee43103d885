"""The search of iq1: points of -1, 0, 1 with a common shift up or down by an eighth.

Sorted weights are cut into three parts, one per digit, at all places and for all shifts: prefix sums say how well each
of them fits. The specification is ``fucina._scalar.encode_iq``.
"""

from libc.float cimport FLT_MAX
from libc.math cimport fabsf
from libc.stdint cimport uint8_t

from points_search cimport Tables, closest, look_up

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
