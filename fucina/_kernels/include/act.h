/* What activations of 8 bits need beside simd.h: rounding, narrowing to bytes and back, sums of bytes. */
#ifndef FUCINA_ACT_H
#define FUCINA_ACT_H

#include "simd.h"

/* Eight f32 of magnitude under 2^22 to i32, half away from zero. The largest f32 below a half, added away from zero,
 * carries exactly the fractions from a half on over to the next integer. */
FU w8 fu_round_away(f8 x) {
    fu_u32 sign = (fu_u32)x & 0x80000000u;
    return (w8)__builtin_convertvector(x + (f8)(sign | 0x3effffffu), fu_i32);
}

/* The same, half to even. Adding 1.5 * 2^23 leaves the rounded integer in the low bits. */
FU w8 fu_round_even(f8 x) { return (w8)((fu_i32)(x + 12582912.0f) - 0x4b400000); }

/* Four times eight i32 to 32 bytes in order; beyond -128 and 127 they stay there. */
FU w8 fu_narrow(w8 a, w8 b, w8 c, w8 d) {
#ifdef FU_AVX2
    __m256i ab = _mm256_packs_epi32((__m256i)a, (__m256i)b), cd = _mm256_packs_epi32((__m256i)c, (__m256i)d);
    return (w8)_mm256_permutevar8x32_epi32(_mm256_packs_epi16(ab, cd), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
#else
    fu_i32 v[4] = {(fu_i32)a, (fu_i32)b, (fu_i32)c, (fu_i32)d};
    fu_i8 r;
    for (int i = 0; i < 32; i++) {
        int32_t x = v[i / 8][i % 8];
        r[i] = (int8_t)(x > 127 ? 127 : x < -128 ? -128 : x);
    }
    return (w8)r;
#endif
}

/* Sums of the first and of the last 16 signed bytes. */
FU void fu_sums16(w8 q, int32_t* first, int32_t* last) {
#ifdef FU_AVX2
    __m256i fours = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), (__m256i)q), _mm256_set1_epi16(1));
    __m128i pairs = _mm_hadd_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
    pairs = _mm_hadd_epi32(pairs, pairs);
    *first = _mm_cvtsi128_si32(pairs);
    *last = _mm_extract_epi32(pairs, 1);
#else
    int32_t a = 0, b = 0;
    for (int i = 0; i < 16; i++) {
        a += ((fu_i8)q)[i];
        b += ((fu_i8)q)[16 + i];
    }
    *first = a;
    *last = b;
#endif
}

/* Number of the first lane that equals x, 8 when none does. */
FU int fu_first_equal(f8 v, float x) {
#ifdef FU_AVX2
    return __builtin_ctz(256 | _mm256_movemask_ps(_mm256_cmp_ps((__m256)v, _mm256_set1_ps(x), _CMP_EQ_OQ)));
#else
    int i = 0;
    while (i < 8 && v[i] != x) i++;
    return i;
#endif
}

/* Eight signed bytes as f32. */
FU f8 f8_load_i8(const int8_t* p) {
#ifdef FU_AVX2
    return (f8)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
    f8 r;
    for (int i = 0; i < 8; i++) r[i] = (float)p[i];
    return r;
#endif
}

#endif
