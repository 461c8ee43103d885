/* Primitives that expand compact blocks of eight rows to code words; each lane of 32 bits belongs to one row. */
#ifndef FUCINA_CODES_H
#define FUCINA_CODES_H

#include "simd.h"

FU w8 w8_xor(w8 a, w8 b) { return a ^ b; }
FU w8 w8_add8(w8 a, w8 b) { return (w8)((fu_u8)a + (fu_u8)b); }
FU w8 w8_sub8(w8 a, w8 b) { return (w8)((fu_u8)a - (fu_u8)b); }
FU w8 w8_mul32(w8 a, int n) { return (w8)((fu_u32)a * (uint32_t)n); }

/* The low 16 bits of two lanes side by side. */
FU w8 w8_pack16(w8 low, w8 high) { return (w8)(((fu_u32)low & 0xffff) | ((fu_u32)high << 16)); }

/* 0xff in byte i of a lane where bit (4g + i) of the lane is set, g = 0..7. */
FU w8 w8_bit_mask(w8 word, int g) {
    fu_u8 byte = (fu_u8)w8_spread8(word, g >> 1);
    fu_u8 mask = (fu_u8)w8_set1_i32(g & 1 ? (int)0x80402010u : 0x08040201);
    return (w8)((fu_u8)((byte & mask) == mask));
}

/* table[b] for every byte b, b = 0..15. */
FU w8 w8_table16(w8 index, const int8_t* table) {
#ifdef FU_AVX2
    return (w8)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table)), (__m256i)index);
#else
    fu_i8 r;
    for (int i = 0; i < 32; i++) r[i] = table[((fu_u8)index)[i] & 15];
    return (w8)r;
#endif
}

/* Point at[r] of 8 bytes for every row r: its first four bytes and its last four. */
FU void w8_points8(const uint8_t* grid, const uint32_t* at, w8* first, w8* last) {
#ifdef FU_AVX2
    __m128d a[4];
    for (int i = 0; i < 4; i++)
        a[i] = _mm_loadh_pd(_mm_load_sd((const double*)(grid + 8 * (size_t)at[2 * i])),
                            (const double*)(grid + 8 * (size_t)at[2 * i + 1]));
    __m256 u = (__m256)_mm256_insertf128_pd(_mm256_castpd128_pd256(a[0]), a[2], 1);
    __m256 v = (__m256)_mm256_insertf128_pd(_mm256_castpd128_pd256(a[1]), a[3], 1);
    *first = (w8)_mm256_shuffle_ps(u, v, 0x88);
    *last = (w8)_mm256_shuffle_ps(u, v, 0xdd);
#else
    for (int r = 0; r < 8; r++) {
        memcpy((char*)first + 4 * r, grid + 8 * (size_t)at[r], 4);
        memcpy((char*)last + 4 * r, grid + 8 * (size_t)at[r] + 4, 4);
    }
#endif
}

/* Point at[r] of 4 bytes for every row r. */
FU w8 w8_points4(const uint8_t* grid, const uint32_t* at) {
    uint32_t v[8];
    for (int r = 0; r < 8; r++) memcpy(v + r, grid + 4 * (size_t)at[r], 4);
    return (w8)(fu_u32){v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]};
}

/* 2^(e - 128) of eight bytes e; the two smallest are subnormal. */
FU f8 f8_e8m0_half(const uint8_t* p) {
    fu_u32 e = {p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7]};
    fu_u32 tiny = (fu_u32)(e < 2);
    return (f8)((((e - 1) << 23) & ~tiny) | ((0x00200000u << (e & 1)) & tiny));
}

/* Half of an unsigned float of 4 exponent and 3 mantissa bits in the low 7 bits of a lane of 8; 127 counts as zero.
 * Its bits in the places of a binary32 are the number times 2^-120, exact also where it is subnormal. */
FU f8 f8_ue4m3_half(w8 lanes) {
    fu_u32 s = (fu_u32)lanes;
    f8 v = (f8)((s & 127) << 20) * 0x1p119f;
    return (f8)((fu_u32)v & (fu_u32)(s != 127));
}

/* Bytes of 7 bits become bytes of 8 bits with an even number of ones. */
FU w8 w8_even_parity(w8 x) {
    fu_u32 y = (fu_u32)x;
    y ^= y >> 4;            /* what leaks in from the next byte stays above the bits that count */
    y ^= y >> 2;
    y ^= y >> 1;
    return (w8)((fu_u32)x | ((y & 0x01010101u) << 7));
}

/* Four fields of two bits in the low byte of a lane to its four bytes. */
FU w8 w8_crumbs(w8 v) {
    fu_u32 s = (fu_u32)v & 255;
    s |= s << 12;
    s |= s << 6;
    return (w8)(s & 0x03030303u);
}

/* 3 x / 256, the leading base-3 digit of a byte: averages of x - 1 with half of itself, rounded up, end up in the same
 * quarter. */
FU w8 w8_trit(w8 x) {
#ifdef FU_AVX2
    __m256i y = _mm256_subs_epu8((__m256i)x, _mm256_set1_epi8(1));
    y = _mm256_avg_epu8(y, _mm256_avg_epu8(y, _mm256_setzero_si256()));
    return (w8)_mm256_and_si256(_mm256_srli_epi16(y, 6), _mm256_set1_epi8(3));
#else
    return (w8)(((fu_u8)((fu_u8)x > 85) & 1) + ((fu_u8)((fu_u8)x > 170) & 1));
#endif
}

/* Bytes 0, 4, 8, 12, then 1, 5, 9, 13 and so on, of both halves. */
FU w8 w8_every4(w8 a) {
    const fu_u8 v = (fu_u8)a, from = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,
                                      16, 20, 24, 28, 17, 21, 25, 29, 18, 22, 26, 30, 19, 23, 27, 31};
    return (w8)__builtin_shuffle(v, from);
}

/* Bytes 0, 8, 16, 24, then 1, 9, 17, 25 and so on. */
FU w8 w8_every8(w8 a) {
    const fu_u8 v = (fu_u8)a, from = {0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27,
                                      4, 12, 20, 28, 5, 13, 21, 29, 6, 14, 22, 30, 7, 15, 23, 31};
    return (w8)__builtin_shuffle(v, from);
}

/* Signed byte k of every lane. */
FU w8 w8_byte_i32(w8 a, int k) { return (w8)((fu_i32)((fu_u32)a << (24 - 8 * k)) >> 24); }

/* ---- runs of words; unrolled here, so that shifts and masks are constants ------------------------------ */

/* The 32 bits of every lane to eight words, `value` where a bit is set. */
FU void codes_of_bits(char* to, w8 word, int value) {
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) w8_store(to + 32 * g, w8_bit_mask(word, g) & w8_set1_u8(value));
}

/* Products of the 32 bits of every lane with activations in the order of w8_every8, in i16. */
FU w8 w8_dot_bits(w8 word, const int8_t* a) {
    w8 s = w8_zero();
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++)
        s = w8_add16(s, w8_maddubs(w8_shr16(word, g) & w8_set1_u8(1), w8_bcast32(a + 4 * g)));
    return s;
}

/* The same with 16 fields of two bits, and activations in the order of w8_every4. */
FU w8 w8_dot_crumbs(w8 word, const int8_t* a) {
    w8 s = w8_zero();
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++)
        s = w8_add16(s, w8_maddubs(w8_shr16(word, 2 * g) & w8_set1_u8(3), w8_bcast32(a + 4 * g)));
    return s;
}

/* The sixteen fields of two bits of every lane to four words. */
FU void codes_of_crumbs(char* to, w8 word) {
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++) w8_store(to + 32 * g, w8_crumbs(w8_shr32(word, 8 * g)));
}

/* Bytes, negated where bits 4g to 4g + 3 of `signs` are set, plus a bias. */
FU w8 w8_signed(w8 point, w8 signs, int g, int bias) {
    w8 mask = w8_bit_mask(signs, g);
    return w8_add8(w8_sub8(point ^ mask, mask), w8_set1_u8(bias));
}

/* Indices go through memory: eight loads are cheaper than taking lanes out of a register, as compilers would. */
FU void fu_in_memory(uint32_t* at) { __asm__ volatile("" : "+m"(*(uint32_t(*)[8])at)); }

/* Eight signed points of 4 bytes. Their indices: the bytes of two words, and bit g of `high` above byte g. */
FU void codes_of_points4(char* to, const uint8_t* grid, const char* low, w8 high, w8 signs, int bias) {
    uint32_t at[8][8];
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
        w8 byte = w8_shr32(w8_load(low + 32 * (g >> 2)), 8 * (g & 3)) & w8_set1_i32(255);
        w8_store(at[g], byte | (w8_shl32(w8_shr32(high, g), 8) & w8_set1_i32(256)));
        fu_in_memory(at[g]);
    }
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) w8_store(to + 32 * g, w8_signed(w8_points4(grid, at[g]), signs, g, bias));
}

/* Two signed points of 8 bytes by their indices; bytes 0 and 1 of `signs`, or 2 and 3 (`half` = 1). */
FU void codes_of_points8(char* to, const uint8_t* grid, w8 index0, w8 index1, w8 signs, int half, int bias) {
    uint32_t at[2][8];
    w8 first, last;
    w8_store(at[0], index0);
    w8_store(at[1], index1);
    fu_in_memory(at[0]);
    fu_in_memory(at[1]);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        w8_points8(grid, at[i], &first, &last);
        w8_store(to + 64 * i, w8_signed(first, signs, 4 * half + 2 * i, bias));
        w8_store(to + 64 * i + 32, w8_signed(last, signs, 4 * half + 2 * i + 1, bias));
    }
}

/* Four points of -1, 0, 1 as 8 (p + 1), and 2 more unless bit i of `minus` says that the shift is downwards. Indices:
 * the bytes of `low`, and bits i * step to i * step + 2 of `high` above byte i. */
FU void codes_of_eighths(char* to, const uint8_t* grid, w8 low, w8 high, int step, w8 minus) {
    uint32_t at[4][8];
    w8 first, last;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        w8 top = w8_shl32(w8_shr32(high, step * i) & w8_set1_i32(7), 8);
        w8_store(at[i], (w8_shr32(low, 8 * i) & w8_set1_i32(255)) | top);
        fu_in_memory(at[i]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        w8 set = w8_sub8(w8_zero(), w8_spread8(w8_shr32(minus, i) & w8_set1_i32(1), 0));
        w8 shift = (w8)(~(fu_u8)set & (fu_u8)w8_set1_u8(2));
        w8_points8(grid, at[i], &first, &last);
        w8_store(to + 64 * i, w8_shl16(w8_add8(first, w8_set1_u8(1)), 3) | shift);
        w8_store(to + 64 * i + 32, w8_shl16(w8_add8(last, w8_set1_u8(1)), 3) | shift);
    }
}

/* Sum over four groups of signed*signed bytes in i16 (needs |w| <= 32, a within -127..127). */
FU w8 w8_dot4_s(const w8* w, const int8_t* a) {
    w8 s = w8_maddubs(w8_abs8(w[0]), w8_sign8(w8_bcast32(a), w[0]));
    s = w8_add16(s, w8_maddubs(w8_abs8(w[1]), w8_sign8(w8_bcast32(a + 4), w[1])));
    s = w8_add16(s, w8_maddubs(w8_abs8(w[2]), w8_sign8(w8_bcast32(a + 8), w[2])));
    return w8_add16(s, w8_maddubs(w8_abs8(w[3]), w8_sign8(w8_bcast32(a + 12), w[3])));
}

/* One group of signed*signed bytes in i16 (|w| may be 128). */
FU w8 w8_mul_s8(w8 w, const int8_t* a) { return w8_maddubs(w8_abs8(w), w8_sign8(w8_bcast32(a), w)); }

#endif
