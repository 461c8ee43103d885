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

/* Towards zero, as 32 bytes in order; magnitudes under 128. */
FU void f8_codes32(void* q, f8 a, f8 b, f8 c, f8 d) {
#ifdef FU_AVX2
    __m256i ab = _mm256_packs_epi32(_mm256_cvttps_epi32((__m256)a), _mm256_cvttps_epi32((__m256)b));
    __m256i cd = _mm256_packs_epi32(_mm256_cvttps_epi32((__m256)c), _mm256_cvttps_epi32((__m256)d));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((__m256i*)q, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(ab, cd), order));
#else
    f8 v[4] = {a, b, c, d};
    for (int i = 0; i < 32; i++) ((int8_t*)q)[i] = (int8_t)v[i >> 3][i & 7];
#endif
}

/* 32 codes to nibbles: the first 16 low, the others high. */
FU void fu_nibbles32(uint8_t* qs, const uint8_t* q) {
#ifdef FU_AVX2
    const __m128i mask = _mm_set1_epi8(15);
    __m128i low = _mm_and_si128(_mm_loadu_si128((const __m128i*)q), mask);
    __m128i high = _mm_and_si128(_mm_loadu_si128((const __m128i*)(q + 16)), mask);
    _mm_storeu_si128((__m128i*)qs, _mm_or_si128(low, _mm_slli_epi16(high, 4)));
#else
    for (int i = 0; i < 16; i++) qs[i] = (uint8_t)((q[i] & 15) | q[i + 16] << 4);
#endif
}

/* Bit 4 of 32 codes as 4 bytes. */
FU void fu_fifths32(uint8_t* qh, const uint8_t* q) {
#ifdef FU_AVX2
    int bits = _mm256_movemask_epi8(_mm256_slli_epi16(_mm256_loadu_si256((const __m256i*)q), 3));
    memcpy(qh, &bits, 4);
#else
    for (int i = 0; i < 4; i++) qh[i] = 0;
    for (int i = 0; i < 32; i++) qh[i >> 3] |= (uint8_t)((q[i] >> 4 & 1) << (i & 7));
#endif
}

/* x +- 0.5 less half a step at 0.5: truncated, that is x to nearest with halves away from zero. */
FU f8 f8_half_away(f8 x) {
    fu_u32 sign = (fu_u32)x & 0x80000000u;
    return x + (f8)(sign | (fu_u32)f8_set1(0x1.fffffep-2f));
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
