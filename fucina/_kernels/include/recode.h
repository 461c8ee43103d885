/* Bytes in panels: five-bit codes; of q1_0 and tq1_0 turned in words of four rows, five digits of base 3 split into two
 * and three. */
#ifndef FUCINA_RECODE_H
#define FUCINA_RECODE_H

#include "codes.h"

/* Of two digits f: the first byte whose leading digits they are, ceil(256 / 9 * f), and how far it is from 27 f. */
static const int8_t fu_first_byte[16] = {0, 29, 57, 86, 114, (int8_t)143, (int8_t)171, (int8_t)200, (int8_t)228};
static const int8_t fu_byte_gap[16] = {0, 2, 3, 5, 6, 8, 9, 11, 12};
/* Of a number from 0 to 8: its two digits; nine times it, as far as that is asked for. */
static const int8_t fu_third[16] = {0, 0, 0, 1, 1, 1, 2, 2, 2};
static const int8_t fu_unit[16] = {0, 1, 2, 0, 1, 2, 0, 1, 2};
static const int8_t fu_nine[16] = {0, 9, 18};

/* Word g of the eight words of five-bit codes in five; g is a constant. */
FU w8 w8_five_code(const char* p, int g) {
    const char* q = p + 32 * (g - 5);
    if (g < 5) return w8_load(p + 32 * g) & w8_set1_u8(31);
    w8 high = w8_shr16(w8_load(q), 3) & w8_set1_u8(28);
    if (g < 7) return high | (w8_shr16(w8_load(q + 96), 5) & w8_set1_u8(3));
    return high | (w8_shr16(w8_load(p + 96), 6) & w8_set1_u8(2)) | (w8_shr16(w8_load(p + 128), 7) & w8_set1_u8(1));
}

/* Bytes times k, 0 to 256, over 256. */
FU w8 w8_part8(w8 x, int k) {
#ifdef FU_AVX2
    const __m256i odd_bytes = _mm256_set1_epi16((short)0xff00);
    if (k < 128) {
        __m256i even = _mm256_maddubs_epi16((__m256i)x, _mm256_set1_epi16((short)k));
        __m256i odd = _mm256_maddubs_epi16((__m256i)x, _mm256_set1_epi16((short)(k << 8)));
        return (w8)_mm256_blendv_epi8(_mm256_srli_epi16(even, 8), odd, odd_bytes);
    }
    const __m256i by = _mm256_set1_epi16((short)k);
    __m256i even = _mm256_mulhi_epu16((__m256i)w8_shl16(x, 8), by), odd = _mm256_mullo_epi16((__m256i)w8_shr16(x, 8), by);
    return (w8)_mm256_blendv_epi8(even, odd, odd_bytes);
#else
    return (w8)((((fu_u16)x & 255) * (uint16_t)k >> 8) | (((fu_u16)x >> 8) * (uint16_t)k & 0xff00));
#endif
}

/* Halves of a vector as 4 x 4 bytes, transposed: words of four rows become byte 0 of the four, their bytes 1, and so on. */
FU w8 w8_turn8(w8 x) {
#ifdef FU_AVX2
    return (w8)_mm256_shuffle_epi8((__m256i)x, _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,
                                                                0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
#else
    fu_u8 r;
    for (int i = 0; i < 32; i++) r[i] = ((fu_u8)x)[(i & 16) + 4 * (i & 3) + (i >> 2 & 3)];
    return (w8)r;
#endif
}

/* The low halves of eight words, then the high ones. */
FU w8 w8_apart16(w8 x) {
#ifdef FU_AVX2
    const __m256i pick = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,
                                          0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    return (w8)_mm256_permute4x64_epi64(_mm256_shuffle_epi8((__m256i)x, pick), 0xd8);
#else
    fu_u16 r;
    for (int i = 0; i < 16; i++) r[i] = ((fu_u16)x)[2 * (i & 7) + (i >> 3)];
    return (w8)r;
#endif
}

#endif
