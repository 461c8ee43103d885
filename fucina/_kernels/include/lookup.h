/* Primitives of sums that are looked up: bytes of four panels by position, base-32 digits of sums. */
#ifndef FUCINA_LOOKUP_H
#define FUCINA_LOOKUP_H

#include "codes.h"

/* The same word, turned (recode.h), of four panels to its four bytes, each of 32 rows. A half of a vector holds four rows
 * of every panel: a0 b0 a1 b1 a2 b2 a3 b3, c0 d0 c1 d1 c2 d2 c3 d3; the other half their rows 4 to 7. */
FU void w8_join_bytes(const char* const* panels, long at, w8* v) {
#ifdef FU_AVX2
    __m256i w[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) w[i] = (__m256i)w8_load(panels[i] + at);
    __m256i ab = _mm256_unpacklo_epi8(w[0], w[1]), cd = _mm256_unpacklo_epi8(w[2], w[3]);
    v[0] = (w8)_mm256_unpacklo_epi64(ab, cd);
    v[1] = (w8)_mm256_unpackhi_epi64(ab, cd);
    ab = _mm256_unpackhi_epi8(w[0], w[1]);
    cd = _mm256_unpackhi_epi8(w[2], w[3]);
    v[2] = (w8)_mm256_unpacklo_epi64(ab, cd);
    v[3] = (w8)_mm256_unpackhi_epi64(ab, cd);
#else
    char to[4][32];
    for (int k = 0; k < 4; k++)
        for (int r = 0; r < 8; r++)
            for (int i = 0; i < 4; i++) {
                const char* from = panels[i] + at + 16 * (r / 4) + 4 * k + r % 4;
                to[k][16 * (r / 4) + 8 * (i / 2) + 2 * (r % 4) + i % 2] = *from;
            }
    memcpy(v, to, sizeof to);
#endif
}

/* Bytes of a and b in turn, within halves of a vector: the first eight of them (high = 0) or the others. */
FU w8 w8_zip8(w8 a, w8 b, int high) {
#ifdef FU_AVX2
    return (w8)(high ? _mm256_unpackhi_epi8((__m256i)a, (__m256i)b) : _mm256_unpacklo_epi8((__m256i)a, (__m256i)b));
#else
    fu_u8 r;
    for (int i = 0; i < 32; i++) r[i] = ((fu_u8)(i % 2 ? b : a))[16 * (i / 16) + 8 * high + i % 16 / 2];
    return (w8)r;
#endif
}

/* The low bytes of sixteen a, then those of sixteen b. */
FU void w8_store_bytes(char* to, w8 a, w8 b) {
#ifdef FU_AVX2
    const __m256i low = _mm256_set1_epi16(255);
    __m256i v = _mm256_packus_epi16(_mm256_and_si256((__m256i)a, low), _mm256_and_si256((__m256i)b, low));
    w8_store(to, (w8)_mm256_permute4x64_epi64(v, 0xd8));
#else
    for (int i = 0; i < 16; i++) {
        to[i] = (char)((fu_u16)a)[i];
        to[16 + i] = (char)((fu_u16)b)[i];
    }
#endif
}

#endif
