/* Rounding and packing of codes, eight groups or eight elements at a time; beside simd.h, for the encoders. */
#ifndef FUCINA_SEARCH_H
#define FUCINA_SEARCH_H

#include "simd.h"

/* Round to nearest even by adding 1.5 * 2^23; beyond 2^22 (also infinity, NaN) the result wraps as the bits do. */
FU int fu_nearest(float v) { return (int)(fu_f32_bits(v + 12582912.0f) & 0x7fffffu) - 0x400000; }

/* The same, clamped to lo..hi, as float lanes. */
FU f8 f8_nearest(f8 v, int lo, int hi) {
    fu_i32 i = ((fu_i32)(v + 12582912.0f) & 0x7fffff) - 0x400000;
#ifdef FU_AVX2
    i = (fu_i32)_mm256_min_epi32(_mm256_max_epi32((__m256i)i, _mm256_set1_epi32(lo)), _mm256_set1_epi32(hi));
#else
    fu_i32 low = i < lo, high = i > hi;
    i = (lo & low) | (hi & high) | (i & ~(low | high));
#endif
    return f8_from_i32((w8)i);
}

/* Towards zero, at most top, as bytes; what is not finite becomes 0. */
FU void f8_codes(uint8_t* q, f8 v, float top) {
    fu_i32 small = f8_abs(v) < 0x1p30f;
    v = (f8)((fu_i32)v & small);
    v = f8_min(v, f8_set1(top));
#ifdef FU_AVX2
    __m256i t = _mm256_cvttps_epi32((__m256)v);
    __m128i h = _mm_packs_epi32(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1));
    _mm_storel_epi64((__m128i*)q, _mm_packs_epi16(h, h));
#else
    for (int i = 0; i < 8; i++) q[i] = (uint8_t)(int8_t)v[i];
#endif
}

/* To nearest, halves away from zero, for magnitudes under 2^22. The fraction that truncation leaves is exact. */
FU f8 f8_round_away(f8 v) {
    f8 whole = __builtin_convertvector(__builtin_convertvector(v, fu_i32), f8);
    f8 frac = v - whole;
    fu_i32 up = frac >= 0.5f, down = frac <= -0.5f;
    return whole - __builtin_convertvector(up - down, f8);
}

FU int w8_any(w8 m) { return (m[0] | m[1] | m[2] | m[3]) != 0; }
FU w8 w8_not(w8 m) { return ~m; }
FU w8 f8_ne(f8 a, f8 b) { return (w8)(a != b); }

#endif
