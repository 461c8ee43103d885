/* Elementary functions on eight f32 lanes: one polynomial each, no branches, the same bits on every variant.
 *
 * exp: x = n ln2 + r, |r| <= ln2 / 2. z = x * log2(e) + 1.5 * 2^23 rounds to the integer n; two multiply-adds take n ln2
 * off in two parts (Cody and Waite); a degree-5 polynomial gives e^r - 1. The scale 2^n is applied as two powers of two
 * of half the size, so that results overflow to infinity and fade through the subnormals without special cases.
 * Constants are those of the widely used single-precision vector exp with about 2 ulp of error.
 */
#ifndef FUCINA_VMATH_H
#define FUCINA_VMATH_H

#include "simd.h"

FU f8 f8_exp(f8 x) {
    f8 c = f8_min(f8_set1(89.0f), f8_max(f8_set1(-104.0f), x)); /* NaN stays: max and min return their second operand */
    f8 z = f8_fma(c, f8_set1(0x1.715476p+0f), f8_set1(0x1.8p23f));
    f8 n = z - 0x1.8p23f;
    f8 r = f8_fma(n, f8_set1(-0x1.7f7d1cp-20f), f8_fma(n, f8_set1(-0x1.62e4p-1f), c));
    f8 r2 = r * r;
    f8 p = f8_fma(f8_fma(f8_fma(f8_set1(0x1.0e4020p-7f), r, f8_set1(0x1.573e2ep-5f)), r2,
                         f8_fma(f8_set1(0x1.555e66p-3f), r, f8_set1(0x1.fffdb6p-2f))),
                  r2, f8_set1(0x1.ffffecp-1f) * r);
    fu_i32 k = (fu_i32)z - 0x4b400000, h = k >> 1;
    f8 s1 = (f8)((h << 23) + 0x3f800000), s2 = (f8)(((k - h) << 23) + 0x3f800000);
    return f8_fma(p, s1, s1) * s2;
}

/* 1 / (1 + e^-x) */
FU f8 f8_sigmoid(f8 x) { return f8_set1(1.0f) / (f8_exp(-x) + 1.0f); }

/* x / (1 + e^-x) */
FU f8 f8_silu(f8 x) { return x / (f8_exp(-x) + 1.0f); }

/* 0.5 x (1 + tanh(u)) = x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3) */
FU f8 f8_gelu(f8 x) {
    f8 u = f8_set1(0.7978845608028654f) * x * f8_fma(f8_set1(0.044715f) * x, x, f8_set1(1.0f));
    return x / (f8_exp(u * -2.0f) + 1.0f);
}

/* gelu through half precision on both sides, identity beyond 10, zero below -10: ggml's table of 65536 entries. */
FU f8 f8_gelu_quant(f8 x) {
    uint16_t h[8];
    f8_store_f16(h, x);
    f8_store_f16(h, f8_gelu(f8_load_f16(h)));
    f8 y = f8_load_f16(h);
    y = f8_select((w8)(x >= 10.0f), x, y);
    return f8_select((w8)(x <= -10.0f), f8_zero(), y);
}

/* (1 - t) / (1 + t), t = e^-2|x|; an odd Taylor polynomial below 1/8, where that form cancels. The sign is that of x,
 * also of -0. */
FU f8 f8_tanh(f8 x) {
    f8 a = f8_abs(x), t = f8_exp(a * -2.0f), x2 = x * x;
    f8 big = (1.0f - t) / (1.0f + t);
    f8 p = f8_fma(f8_fma(f8_fma(f8_set1(-17.0f / 315.0f), x2, f8_set1(2.0f / 15.0f)), x2, f8_set1(-1.0f / 3.0f)), x2 * x, x);
    return (f8)((fu_u32)f8_select((w8)(a < 0.125f), p, big) | ((fu_u32)x & 0x80000000u));
}

/* Larger or smaller, NaN where either operand is NaN. */
FU f8 f8_maximum(f8 a, f8 b) { return f8_select(f8_isnan(a), a, f8_select((w8)(a > b), a, b)); }
FU f8 f8_minimum(f8 a, f8 b) { return f8_select(f8_isnan(a), a, f8_select((w8)(a < b), a, b)); }

#endif
