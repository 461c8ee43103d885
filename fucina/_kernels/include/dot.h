/* Sums of products of unsigned with signed bytes, four neighbours of a row at a time.
 *
 * A "part" is such a sum that may not be one number per row yet. Where processors have an instruction for four products
 * (AVX-VNNI, AVX-512 VNNI) it is one already, eight i32, and nothing bounds it. Elsewhere it is sixteen i16, two products
 * each per step, and whoever adds to it proves that no sum leaves i16; a multiplication of pairs makes it whole, which a
 * scale comes along with for nothing. Kernels are written for the narrow parts: `per` says how many words of products
 * fit. All sums are exact, so both give the same bits.
 */
#ifndef FUCINA_DOT_H
#define FUCINA_DOT_H

#include "simd.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define FU_VNNI(s, u, v) (w8)_mm256_dpbusd_epi32((__m256i)(s), (__m256i)(u), (__m256i)(v))
#elif defined(__AVXVNNI__)
#define FU_VNNI(s, u, v) (w8)_mm256_dpbusd_avx_epi32((__m256i)(s), (__m256i)(u), (__m256i)(v))
#endif

/* Are parts whole, and what is added to signed codes of 8 bits then: products with 255 fit as well as others. */
#ifdef FU_VNNI
enum { PARTS_ARE_WHOLE = 1, S8_BIAS = 128 };
#else
enum { PARTS_ARE_WHOLE = 0, S8_BIAS = 0 };
#endif

/* Are there registers for 32 codes of each row of two panels? 32 of them, with nothing lost to widening parts. */
#if defined(FU_VNNI) && defined(__AVX512VL__)
enum { ROOM_FOR_TWO = 1 };
#else
enum { ROOM_FOR_TWO = 0 };
#endif

/* s + the products of u and v. */
FU w8 part_more(w8 s, w8 u, w8 v) {
#ifdef FU_VNNI
    return FU_VNNI(s, u, v);
#else
    return w8_add16(s, w8_maddubs(u, v));
#endif
}

FU w8 part_add(w8 s, w8 t) { return PARTS_ARE_WHOLE ? w8_add32(s, t) : w8_add16(s, t); }
FU w8 part_shl(w8 s, int n) { return PARTS_ARE_WHOLE ? w8_shl32(s, n) : w8_shl16(s, n); }
FU w8 part_sar(w8 s, int n) { return PARTS_ARE_WHOLE ? w8_sar32(s, n) : w8_sar16(s, n); }

/* One i32 per row, times a scale, which both i16 of a lane hold. */
FU w8 part_total_by(w8 s, w8 scale) {
#ifdef FU_VNNI
    return (w8)_mm256_mullo_epi32((__m256i)s, (__m256i)w8_sar32(scale, 16));
#else
    return w8_madd(s, scale);
#endif
}

/* Compilers know what to do with a factor of one. */
FU w8 part_total(w8 s) { return part_total_by(s, w8_set1_i16(1)); }

/* s + `words` words of codes times four activations each. */
FU w8 part_dot(w8 s, const w8* w, const int8_t* a, int words) {
#pragma GCC unroll 8
    for (int g = 0; g < words; g++) s = part_more(s, w[g], w8_bcast32(a + 4 * g));
    return s;
}

/* The same for two panels, w and u: loads of activations serve both. Sums wait for each other, and what waits fills the
 * room in which processors look for other work: in two halves 1.1 to 1.2 times as fast (AMD Zen 4, 2026-11). */
FU void part_dot_two(w8* s, const w8* w, const w8* u, const int8_t* a, int words) {
    w8 t[2] = {w8_zero(), w8_zero()};
    int half = PARTS_ARE_WHOLE ? words / 2 : 0;
#pragma GCC unroll 8
    for (int g = 0; g < words - half; g++) {
        w8 v = w8_bcast32(a + 4 * g);
        s[0] = part_more(s[0], w[g], v);
        s[1] = part_more(s[1], u[g], v);
        if (half) {
            v = w8_bcast32(a + 4 * (g + half));
            t[0] = part_more(t[0], w[g + half], v);
            t[1] = part_more(t[1], u[g + half], v);
        }
    }
    s[0] = part_add(s[0], t[0]);
    s[1] = part_add(s[1], t[1]);
}

/* One word of two panels times the same activations, here and not where a compiler would gather them: sums that are
 * placed leave registers to what comes next. */
FU void part_more_two(w8* s, w8 w, w8 u, const int8_t* a) {
    w8 v = w8_bcast32(a);
    s[0] = w8_here(part_more(s[0], w, v));
    s[1] = w8_here(part_more(s[1], u, v));
}

/* Sums of such products, `per` words of which fit a part, times a scale. */
FU w8 w8_dot_by(const w8* w, const int8_t* a, int words, int per, w8 scale) {
    if (PARTS_ARE_WHOLE) per = words;
    w8 s = part_total_by(part_dot(w8_zero(), w, a, per), scale);
#pragma GCC unroll 8
    for (int g = per; g < words; g += per)
        s = w8_add32(s, part_total_by(part_dot(w8_zero(), w + g, a + 4 * g, per), scale));
    return s;
}

FU w8 w8_dot(const w8* w, const int8_t* a, int words, int per) {
    return w8_dot_by(w, a, words, per, w8_set1_i16(1));
}

/* s + signed codes times activations, which take the sign of the code; |code| may be 128, activations stay within
 * -127..127: 2 * 128 * 127 < 2^15. */
FU w8 part_signed(w8 s, w8 w, const int8_t* a) { return part_more(s, w8_abs8(w), w8_sign8(w8_bcast32(a), w)); }

/* Signed codes of 8 bits as `w8_dot_s8` takes them. Products with S8_BIAS are in its sums. */
FU w8 w8_codes_s8(w8 v) { return S8_BIAS ? v ^ w8_set1_u8(128) : v; }

/* Sums of 32 products with such codes, times a scale. */
FU w8 w8_dot_s8_by(const w8* w, const int8_t* a, w8 scale) {
    if (S8_BIAS) return w8_dot_by(w, a, 8, 8, scale);
    w8 s = w8_zero();
#pragma GCC unroll 4
    for (int g = 0; g < 8; g += 2)
        s = w8_add32(s, w8_add32(part_total_by(part_signed(w8_zero(), w[g], a + 4 * g), scale),
                                 part_total_by(part_signed(w8_zero(), w[g + 1], a + 4 * g + 4), scale)));
    return s;
}

FU w8 w8_dot_s8(const w8* w, const int8_t* a) { return w8_dot_s8_by(w, a, w8_set1_i16(1)); }

#endif
