"""Searches for the scale of a group, eight groups side by side: lanes are groups, elements follow one another.

The specification of each is the function of the same name in ``fucina._scalar._search``. Sums over the elements of a
group are chains in order, which a single group could only add one by one; eight groups make them vector operations.
"""

from libc.stdint cimport uint8_t

from simd cimport (
    f8, f8_abs, f8_add, f8_div, f8_gt, f8_load, f8_max, f8_min, f8_mul, f8_select, f8_set1, f8_store, f8_sub,
    f8_transpose, f8_zero, w8, w8_and, w8_or,
)

cdef extern from "search.h" nogil:
    int fu_nearest(float v)
    f8 f8_nearest(f8 v, int lo, int hi)
    void f8_codes(uint8_t* q, f8 v, float top)
    void f8_codes32(void* q, f8 a, f8 b, f8 c, f8 d)
    void fu_nibbles32(uint8_t* qs, const uint8_t* q)
    void fu_fifths32(uint8_t* qh, const uint8_t* q)
    f8 f8_half_away(f8 x)
    f8 f8_round_away(f8 v)
    int w8_any(w8 m)
    w8 w8_not(w8 m)
    w8 f8_ne(f8 a, f8 b)

cdef enum:
    GROUP = 32              # most elements of a group

# Groups whose largest magnitude is below this count as zero.
cdef extern from *:
    """
    #define FU_TINY 1e-15f
    """
    float FU_TINY


cdef inline void gather8(const float* const* rows, int n, f8* v) noexcept nogil:
    """v[i] = element i of eight rows of n (8, 16, ...) elements."""
    cdef int i, j
    for i in range(0, n, 8):
        for j in range(8):
            v[i + j] = f8_load(rows[j] + i)
        f8_transpose(v + i)


cdef inline void scatter8(f8* v, int n, uint8_t* const* rows) noexcept nogil:
    """The integers v[i], not negative, to bytes: the inverse of ``gather8``. Destroys ``v``."""
    cdef int i, j
    for i in range(0, n, 8):
        f8_transpose(v + i)
        for j in range(8):
            f8_codes(rows[j] + i, v[i + j], 255)


cdef inline f8 sum8(const f8* v, int n) noexcept nogil:
    cdef f8 total = v[0]
    cdef int i
    for i in range(1, n):
        total = f8_add(total, v[i])
    return total


cdef inline f8 largest8(const f8* x, int n) noexcept nogil:
    """The first element of largest magnitude."""
    cdef f8 top = f8_zero()
    cdef f8 size = f8_zero()
    cdef f8 a
    cdef w8 more
    cdef int i
    for i in range(n):
        a = f8_abs(x[i])
        more = f8_gt(a, size)
        size = f8_select(more, a, size)
        top = f8_select(more, x[i], top)
    return top


cdef inline f8 quotient8(f8 a, f8 b) noexcept nogil:
    """a / b where b is positive, else 0."""
    cdef w8 good = f8_gt(b, f8_zero())
    return f8_select(good, f8_div(a, f8_select(good, b, f8_set1(1))), f8_zero())


cdef inline void symmetric8(int n, int nmax, const f8* x, const f8* w, f8* code, f8* scale_out) noexcept nogil:
    """x ~ scale * (code - nmax), minimizing sum w (...)^2 over nineteen stretches."""
    cdef f8 wx[GROUP]
    cdef f8 trial[GROUP]
    cdef f8 top = largest8(x, n)
    cdef f8 xl, ll, inverse, scale, best, l
    cdef f8 base = f8_set1(<float> nmax)
    cdef w8 live = w8_not(f8_gt(f8_set1(FU_TINY), f8_abs(top)))
    cdef w8 better
    cdef int i, step
    top = f8_select(live, top, f8_set1(1))
    for i in range(n):
        wx[i] = f8_mul(w[i], x[i])
    scale = best = f8_zero()
    for step in range(-10, 10):
        # The plain stretch first, then -9 .. 9 without 0.
        if step == 0:
            continue
        inverse = f8_div(f8_set1(-<float> nmax if step == -10 else -(<float> nmax + <float> 0.1 * <float> step)), top)
        xl = ll = f8_zero()
        for i in range(n):
            l = f8_nearest(f8_mul(inverse, x[i]), -nmax, nmax - 1)
            trial[i] = l
            xl = f8_add(xl, f8_mul(wx[i], l))
            ll = f8_add(ll, f8_mul(f8_mul(w[i], l), l))
        if step == -10:
            for i in range(n):
                code[i] = trial[i]
            better = f8_ne(ll, f8_zero())
            scale = f8_select(better, f8_div(xl, f8_select(better, ll, f8_set1(1))), f8_zero())
            best = f8_mul(scale, xl)
            continue
        better = w8_and(f8_gt(ll, f8_zero()), f8_gt(f8_mul(xl, xl), f8_mul(best, ll)))
        if w8_any(better):
            scale = f8_select(better, quotient8(xl, ll), scale)
            best = f8_select(better, f8_mul(scale, xl), best)
            for i in range(n):
                code[i] = f8_select(better, trial[i], code[i])
    for i in range(n):
        code[i] = f8_select(live, f8_add(code[i], base), f8_zero())
    scale_out[0] = f8_select(live, scale, f8_zero())


cdef inline void symmetric_descent8(int n, int nmax, const f8* x, f8* code, f8* scale_out) noexcept nogil:
    """The same with weights x^2, by improving one code at a time, at most five rounds."""
    cdef f8 w[GROUP]
    cdef f8 wx[GROUP]
    cdef f8 top = largest8(x, n)
    cdef f8 base = f8_set1(<float> nmax)
    cdef w8 live = w8_not(f8_gt(f8_set1(FU_TINY), f8_abs(top)))
    cdef w8 better, changed
    cdef f8 inverse, xl, ll, l, sx, s2, sx1, s21, fresh
    cdef int i, _turn
    inverse = f8_div(f8_set1(-<float> nmax), f8_select(live, top, f8_set1(1)))
    xl = ll = f8_zero()
    for i in range(n):
        w[i] = f8_mul(x[i], x[i])
        wx[i] = f8_mul(w[i], x[i])
        l = code[i] = f8_nearest(f8_mul(inverse, x[i]), -nmax, nmax - 1)
        xl = f8_add(xl, f8_mul(wx[i], l))
        ll = f8_add(ll, f8_mul(f8_mul(w[i], l), l))
    for _turn in range(5):
        changed = f8_gt(f8_zero(), f8_zero())
        for i in range(n):
            l = code[i]
            sx = f8_sub(xl, f8_mul(wx[i], l))
            s2 = f8_sub(ll, f8_mul(f8_mul(w[i], l), l))
            fresh = f8_nearest(f8_div(f8_mul(x[i], s2), sx), -nmax, nmax - 1)
            sx1 = f8_add(sx, f8_mul(wx[i], fresh))
            s21 = f8_add(s2, f8_mul(f8_mul(w[i], fresh), fresh))
            better = w8_and(f8_gt(sx, f8_zero()), f8_ne(fresh, l))
            better = w8_and(better, f8_gt(s21, f8_zero()))
            better = w8_and(better, f8_gt(f8_mul(f8_mul(sx1, sx1), ll), f8_mul(f8_mul(xl, xl), s21)))
            code[i] = f8_select(better, fresh, l)
            xl = f8_select(better, sx1, xl)
            ll = f8_select(better, s21, ll)
            changed = w8_or(changed, better)
        if not w8_any(changed):
            break
    for i in range(n):
        code[i] = f8_select(live, f8_add(code[i], base), f8_zero())
    scale_out[0] = f8_select(live, quotient8(xl, ll), f8_zero())


cdef inline f8 min_error8(int n, const f8* x, const f8* w, f8 scale, const f8* code, f8 low,
                          bint absolute) noexcept nogil:
    cdef f8 total = f8_zero()
    cdef f8 e
    cdef int i
    for i in range(n):
        e = f8_sub(f8_add(f8_mul(scale, code[i]), low), x[i])
        e = f8_abs(e) if absolute else f8_mul(e, e)
        total = f8_add(total, f8_mul(w[i], e))
    return total


cdef inline void with_min8(int n, int nmax, const f8* x, const f8* w, float start, float stretch, int count,
                           bint absolute, f8* code, f8* scale_out, f8* min_out) noexcept nogil:
    """x ~ scale * code - min with codes 0 .. nmax: least squares for each of ``count + 1`` stretches of the range."""
    cdef f8 trial[GROUP]
    cdef f8 low = x[0]
    cdef f8 high = x[0]
    cdef f8 sum_w = w[0]
    cdef f8 sum_x = f8_mul(w[0], x[0])
    cdef f8 zero = f8_zero()
    cdef f8 used, inverse, scale, best, l, wl, sum_l, sum_l2, sum_xl, det, new_scale, new_low, e
    cdef w8 flat, better, above
    cdef int i, step
    for i in range(1, n):
        low = f8_min(x[i], low)
        high = f8_max(x[i], high)
        sum_w = f8_add(sum_w, w[i])
        sum_x = f8_add(sum_x, f8_mul(w[i], x[i]))
    low = f8_min(zero, low)
    flat = w8_not(f8_gt(high, low))
    used = low
    inverse = f8_div(f8_set1(<float> nmax), f8_sub(high, low))
    scale = f8_div(f8_set1(1), inverse)
    for i in range(n):
        code[i] = f8_nearest(f8_mul(inverse, f8_sub(x[i], low)), 0, nmax)
    best = min_error8(n, x, w, scale, code, low, absolute)
    for step in range(count + 1):
        inverse = f8_div(f8_set1(start + stretch * <float> step + <float> nmax), f8_sub(high, used))
        sum_l = sum_l2 = sum_xl = zero
        for i in range(n):
            l = f8_nearest(f8_mul(inverse, f8_sub(x[i], used)), 0, nmax)
            trial[i] = l
            wl = f8_mul(w[i], l)
            sum_l = f8_add(sum_l, wl)
            sum_l2 = f8_add(sum_l2, f8_mul(wl, l))
            sum_xl = f8_add(sum_xl, f8_mul(wl, x[i]))
        det = f8_sub(f8_mul(sum_w, sum_l2), f8_mul(sum_l, sum_l))
        new_scale = f8_div(f8_sub(f8_mul(sum_w, sum_xl), f8_mul(sum_x, sum_l)), det)
        new_low = f8_div(f8_sub(f8_mul(sum_l2, sum_x), f8_mul(sum_l, sum_xl)), det)
        above = f8_gt(new_low, zero)
        if w8_any(above):
            new_scale = f8_select(above, f8_div(sum_xl, sum_l2), new_scale)
            new_low = f8_select(above, zero, new_low)
        e = min_error8(n, x, w, new_scale, trial, new_low, absolute)
        better = w8_and(f8_gt(det, zero), f8_gt(best, e))
        if w8_any(better):
            best = f8_select(better, e, best)
            scale = f8_select(better, new_scale, scale)
            used = f8_select(better, new_low, used)
            for i in range(n):
                code[i] = f8_select(better, trial[i], code[i])
    for i in range(n):
        code[i] = f8_select(flat, zero, code[i])
    scale_out[0] = f8_select(flat, zero, scale)
    min_out[0] = f8_sub(f8_set1(<float> -0.0), f8_select(flat, low, used))


cdef inline float positive(int n, int nmax, const float* x, const float* w, uint8_t* code) noexcept nogil:
    """One group of non-negative x ~ scale * code, codes 0 .. nmax: nine stretches, then one code at a time."""
    cdef float top = 0
    cdef float inverse, scale, best, trial, total, e, xl, ll, sx, s2
    cdef int i, step, l, _turn, changed
    for i in range(n):
        top = x[i] if x[i] > top else top
    if top < FU_TINY:
        for i in range(n):
            code[i] = 0
        return 0
    inverse = <float> nmax / top
    best = 0
    for step in range(-5, 5):
        # The plain stretch first, then -4 .. 4 without 0.
        if step == 0:
            continue
        trial = inverse if step == -5 else (<float> 0.1 * <float> step + <float> nmax) / top
        scale = <float> 1.0 / trial
        total = 0
        for i in range(n):
            l = fu_nearest(trial * x[i])
            l = l & 255 if step == -5 else min(l, nmax)
            e = x[i] - scale * <float> l
            total += w[i] * e * e
        if step == -5:
            best = total
        elif total < best:
            best = total
            inverse = trial
    xl = ll = 0
    for i in range(n):
        l = min(fu_nearest(inverse * x[i]), nmax)
        code[i] = <uint8_t> l
        xl += w[i] * x[i] * <float> l
        ll += w[i] * <float> l * <float> l
    for _turn in range(5):
        changed = 0
        for i in range(n):
            sx = xl - w[i] * x[i] * <float> code[i]
            s2 = ll - w[i] * <float> code[i] * <float> code[i]
            if sx > 0 and s2 > 0:
                l = min(fu_nearest(x[i] * s2 / sx), nmax)
                if l != code[i]:
                    sx += w[i] * x[i] * <float> l
                    s2 += w[i] * <float> l * <float> l
                    if sx * sx * ll > xl * xl * s2:
                        code[i] = <uint8_t> l
                        xl = sx
                        ll = s2
                        changed = 1
        if not changed:
            break
    return xl / ll if ll > 0 else 0
