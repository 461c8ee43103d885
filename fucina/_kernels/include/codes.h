/* Primitives that expand compact blocks of eight rows to code words; each lane of 32 bits belongs to one row. */
#ifndef FUCINA_CODES_H
#define FUCINA_CODES_H

#include "dot.h"

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

/* Half k of every 32-bit lane in both halves of the lane. */
FU w8 w8_dup16(w8 a, int k) {
#ifdef FU_AVX2
    const __m256i base = _mm256_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13,
                                          0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13);
    return (w8)_mm256_shuffle_epi8((__m256i)a, _mm256_add_epi8(base, _mm256_set1_epi8((char)(2 * k))));
#else
    return (w8)((((fu_u32)a >> (16 * k)) & 0xffff) * 0x00010001u);
#endif
}

/* The low halves of lanes times `low`, the high ones times `high`, 16 bits each. */
FU w8 w8_mul16(w8 a, int low, int high) { return (w8)((fu_u16)a * (fu_u16)w8_set1_i32(low | high << 16)); }

/* Two indices of every row: the bytes at at + 4r or, `wide`, the halves of the word there. One load for both: loads
 * are what gathering points is short of. */
FU void fu_pairs(const char* at, int wide, uint32_t (*index)[8]) {
#pragma GCC unroll 8
    for (int r = 0; r < 8; r++) {
        uint32_t pair;
        uint16_t bytes;
        if (wide) {
            memcpy(&pair, at + 4 * r, 4);
        } else {
            memcpy(&bytes, at + 4 * r, 2);
            pair = bytes;
        }
        __asm__("" : "+r"(pair));       /* or compilers shift 16 bits and widen them again */
        index[0][r] = pair & (wide ? 0xffff : 0xff);
        index[1][r] = pair >> (wide ? 16 : 8);
    }
}

/* Two points of 8 bytes for every row, four words. */
FU void w8_points8(const uint8_t* grid, const char* at, int wide, w8* w) {
    uint32_t index[2][8];
    fu_pairs(at, wide, index);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
#ifdef FU_AVX2
        __m128d a[4];
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++)
            a[r] = _mm_loadh_pd(_mm_load_sd((const double*)(grid + 8 * (size_t)index[i][2 * r])),
                                (const double*)(grid + 8 * (size_t)index[i][2 * r + 1]));
        __m256 u = (__m256)_mm256_insertf128_pd(_mm256_castpd128_pd256(a[0]), a[2], 1);
        __m256 v = (__m256)_mm256_insertf128_pd(_mm256_castpd128_pd256(a[1]), a[3], 1);
        w[2 * i] = (w8)_mm256_shuffle_ps(u, v, 0x88);
        w[2 * i + 1] = (w8)_mm256_shuffle_ps(u, v, 0xdd);
#else
        for (int r = 0; r < 8; r++) {
            memcpy((char*)(w + 2 * i) + 4 * r, grid + 8 * (size_t)index[i][r], 4);
            memcpy((char*)(w + 2 * i + 1) + 4 * r, grid + 8 * (size_t)index[i][r] + 4, 4);
        }
#endif
    }
}

/* Two points of 4 bytes for every row, two words. */
FU void w8_points4(const uint8_t* grid, const char* at, int wide, w8* w) {
    uint32_t index[2][8];
    fu_pairs(at, wide, index);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        int32_t v[8];
#pragma GCC unroll 8
        for (int r = 0; r < 8; r++) memcpy(v + r, grid + 4 * (size_t)index[i][r], 4);
#ifdef FU_AVX2
        __m128i low = _mm_cvtsi32_si128(v[0]), high = _mm_cvtsi32_si128(v[4]);
        low = _mm_insert_epi32(_mm_insert_epi32(_mm_insert_epi32(low, v[1], 1), v[2], 2), v[3], 3);
        high = _mm_insert_epi32(_mm_insert_epi32(_mm_insert_epi32(high, v[5], 1), v[6], 2), v[7], 3);
        w[i] = (w8)_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
#else
        w[i] = (w8)(fu_i32){v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]};
#endif
    }
}

/* 2^(e - 128) of eight bytes e; the two smallest are subnormal. */
FU f8 f8_e8m0_half(const uint8_t* p) {
    fu_u32 e = {p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7]};
    fu_u32 tiny = (fu_u32)(e < 2);
    return (f8)((((e - 1) << 23) & ~tiny) | ((0x00200000u << (e & 1)) & tiny));
}

/* Unsigned floats of 4 exponent and 3 mantissa bits in the low 7 bits of bytes: 127 counts as zero. */
FU w8 w8_ue4m3(w8 v) { return v & ~(w8)((fu_u8)v == 127); }

/* Half of number k of every lane of them. Its bits in the places of a binary32 are the number times 2^-120, exact also
 * where it is subnormal. */
FU f8 f8_ue4m3_half(w8 v, int k) {
    fu_u32 s = k < 3 ? (fu_u32)v << (20 - 8 * k) : (fu_u32)v >> 4;
    return (f8)(s & (127u << 20)) * 0x1p119f;
}

/* Bytes of 7 bits become bytes of 8 bits with an even number of ones. */
FU w8 w8_even_parity(w8 x) {
    static const int8_t odd[16] = {0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0};
    return x | w8_table16((x ^ w8_shr16(x, 4)) & w8_set1_u8(15), odd);
}

/* Bytes, negated where bits 4g to 4g + 3 of `signs` are set: adding carries such a bit into the byte's sign, and
 * leaves no zero. */
FU w8 w8_signed(w8 v, w8 signs, int g) {
    w8 bits = w8_spread8(signs, g >> 1) & w8_set1_i32(g & 1 ? (int)0x80402010u : 0x08040201);
    return w8_sign8(v, w8_add8(bits, w8_set1_i32(g & 1 ? 0x40406070 : 0x787c7e7f)));
}

/* Four fields of two bits in the low byte of a lane to its four bytes. */
FU w8 w8_crumbs(w8 v) {
    fu_u32 s = (fu_u32)v & 255;
    s |= s << 12;
    s |= s << 6;
    return (w8)(s & 0x03030303u);
}

/* Bytes k, k + 4, k + 8 and k + 12 of sixteen in every lane. */
FU w8 w8_every4(const int8_t* a, int k) {
#ifdef FU_AVX2
    return (w8)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)a)),
                                   _mm256_set1_epi32(0x0c080400 + 0x01010101 * k));
#else
    const uint8_t* p = (const uint8_t*)a + k;
    return w8_set1_i32((int)(p[0] | p[4] << 8 | p[8] << 16 | (uint32_t)p[12] << 24));
#endif
}

/* Bytes k, k + 8, k + 16 and k + 24 of 32 in every lane. */
FU w8 w8_every8(const int8_t* a, int k) {
#ifdef FU_AVX2
    const __m256i pairs = _mm256_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15,
                                           0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    __m256i u = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)a)), pairs);
    __m256i v = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)(a + 16))), pairs);
    u = k < 4 ? _mm256_unpacklo_epi16(u, v) : _mm256_unpackhi_epi16(u, v);
    return (w8)_mm256_shuffle_epi8(u, _mm256_set1_epi32(0x03020100 + 0x04040404 * (k & 3)));
#else
    const uint8_t* p = (const uint8_t*)a + k;
    return w8_set1_i32((int)(p[0] | p[8] << 8 | p[16] << 16 | (uint32_t)p[24] << 24));
#endif
}

/* Signed byte k of every lane. */
FU w8 w8_byte_i32(w8 a, int k) { return (w8)((fu_i32)((fu_u32)a << (24 - 8 * k)) >> 24); }

/* ---- runs of words; unrolled here, so that shifts and masks are constants ------------------------------ */

/* The 32 bits of every lane to eight words, `value` where a bit is set. */
FU void codes_of_bits(char* to, w8 word, int value) {
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) w8_store(to + 32 * g, w8_bit_mask(word, g) & w8_set1_u8(value));
}

/* Products of the 32 bits of every lane with activations, a part, eightfold: bits stay where they are in their nibbles,
 * and sums of lower ones are doubled on the way, 8 * 2 * 127 * 8 = 16256. */
FU w8 w8_dot_bits8(w8 word, const int8_t* a) {
    w8 high = w8_shr16(word, 4), s = w8_zero();
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++) {
        w8 bit = w8_set1_u8(1 << g);
        s = part_more(part_shl(s, 1), word & bit, w8_every8(a, g));
        s = part_more(s, high & bit, w8_every8(a, g + 4));
    }
    return s;
}

/* The same with two words of 16 fields of two bits each, fourfold: 4 * 2 * 127 * (12 + 4 * 3) = 24384. */
FU w8 w8_dot_crumbs4(w8 word, w8 next, const int8_t* a) {
    w8 low = w8_set1_u8(3), high = w8_set1_u8(12), s = w8_zero(), t = w8_zero();
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++) {
        w8 v = w8_shr16(g & 2 ? next : word, 4 * (g & 1));
        s = part_more(s, v & low, w8_every4(a + 8 * (g & 2), 2 * (g & 1)));
        t = part_more(t, v & high, w8_every4(a + 8 * (g & 2), 2 * (g & 1) + 1));
    }
    return part_add(part_shl(s, 2), t);
}

/* The sixteen fields of two bits of every lane to four words. */
FU void codes_of_crumbs(char* to, w8 word) {
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++) w8_store(to + 32 * g, w8_crumbs(w8_shr32(word, 8 * g)));
}

#endif
