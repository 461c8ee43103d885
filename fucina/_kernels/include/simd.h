/* SIMD primitives of the kernels: fixed 256-bit values, the same results on every target.
 *
 * f8  eight f32 lanes       w8  256 bits of integers (8 x i32, 16 x i16 or 32 x i8)
 *
 * A kernel written with these gives the same bits on every variant: f32 operations are IEEE single operations
 * per lane, a fused multiply-add is written where it is meant (the build forbids the compiler to invent one),
 * integer operations are exact. Each primitive stands twice: the instruction, where the target has it, and a
 * portable twin. Variants with wider registers use the 256-bit forms, so a lane always means the same thing.
 */
#ifndef FUCINA_SIMD_H
#define FUCINA_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define FU static inline __attribute__((always_inline))

typedef float f8 __attribute__((vector_size(32)));
typedef long long w8 __attribute__((vector_size(32)));
typedef int32_t fu_i32 __attribute__((vector_size(32)));
typedef uint32_t fu_u32 __attribute__((vector_size(32)));
typedef int16_t fu_i16 __attribute__((vector_size(32)));
typedef uint16_t fu_u16 __attribute__((vector_size(32)));
typedef int8_t fu_i8 __attribute__((vector_size(32)));
typedef uint8_t fu_u8 __attribute__((vector_size(32)));

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define FU_AVX2 1
#endif

/* ---- scalar conversions -------------------------------------------------------------------------------- */

FU float fu_bits_f32(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
FU uint32_t fu_f32_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }

/* IEEE binary16 to binary32, exact, NaN made quiet as the hardware does. */
FU float fu_f16_f32(uint16_t h) {
#ifdef FU_AVX2
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
#else
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu;
    if (rest >= 0x7c00u)
        return fu_bits_f32(sign | 0x7f800000u | (rest > 0x7c00u ? ((rest & 0x3ffu) << 13) | 0x400000u : 0));
    if (rest < 0x400u) {
        float f = (float)rest * 0x1p-24f;
        return sign ? -f : f;
    }
    return fu_bits_f32(sign | ((rest + 0x1c000u) << 13));
#endif
}

/* binary32 to binary16, to nearest even. */
FU uint16_t fu_f32_f16(float f) {
#ifdef FU_AVX2
    return (uint16_t)_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(f), 0));
#else
    uint32_t u = fu_f32_bits(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) {
        /* subnormal half: adding 0.5 puts the rounding at the 2^-24 place */
        uint32_t r = fu_f32_bits(fu_bits_f32(a) + 0.5f) - 0x3f000000u;
        return (uint16_t)(sign | r);
    }
    return (uint16_t)(sign | ((a + 0xc8000fffu + ((a >> 13) & 1u)) >> 13));
#endif
}

FU float fu_bf16_f32(uint16_t h) { return fu_bits_f32((uint32_t)h << 16); }

FU uint16_t fu_f32_bf16(float f) {
    uint32_t u = fu_f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

#ifdef __FMA__
FU float fu_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
FU float fu_fma(float a, float b, float c) { return fmaf(a, b, c); }
#endif

/* ---- f32 lanes ----------------------------------------------------------------------------------------- */

FU f8 f8_load(const float* p) { f8 v; memcpy(&v, p, 32); return v; }
FU void f8_store(float* p, f8 v) { memcpy(p, &v, 32); }
FU f8 f8_set1(float x) { return (f8){x, x, x, x, x, x, x, x}; }
FU f8 f8_zero(void) { return (f8){0}; }
FU f8 f8_add(f8 a, f8 b) { return a + b; }
FU f8 f8_sub(f8 a, f8 b) { return a - b; }
FU f8 f8_mul(f8 a, f8 b) { return a * b; }
FU f8 f8_div(f8 a, f8 b) { return a / b; }

FU f8 f8_fma(f8 a, f8 b, f8 c) {
#ifdef FU_AVX2
    return (f8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    f8 r;
    for (int i = 0; i < 8; i++) r[i] = fu_fma(a[i], b[i], c[i]);
    return r;
#endif
}

FU f8 f8_sqrt(f8 a) {
#ifdef FU_AVX2
    return (f8)_mm256_sqrt_ps((__m256)a);
#else
    f8 r;
    for (int i = 0; i < 8; i++) r[i] = sqrtf(a[i]);
    return r;
#endif
}

/* a > b ? a : b: the second operand where the comparison is false (NaN, equal), as x86 has it. */
FU f8 f8_max(f8 a, f8 b) {
#ifdef FU_AVX2
    return (f8)_mm256_max_ps((__m256)a, (__m256)b);
#else
    f8 r;
    for (int i = 0; i < 8; i++) r[i] = a[i] > b[i] ? a[i] : b[i];
    return r;
#endif
}

FU f8 f8_min(f8 a, f8 b) {
#ifdef FU_AVX2
    return (f8)_mm256_min_ps((__m256)a, (__m256)b);
#else
    f8 r;
    for (int i = 0; i < 8; i++) r[i] = a[i] < b[i] ? a[i] : b[i];
    return r;
#endif
}

/* mask lanes are all ones or all zeros */
FU w8 f8_gt(f8 a, f8 b) { return (w8)(a > b); }
FU w8 f8_isnan(f8 a) { return (w8)(a != a); }
FU f8 f8_select(w8 mask, f8 yes, f8 no) { return (f8)(((w8)yes & mask) | ((w8)no & ~mask)); }
FU f8 f8_abs(f8 a) { return (f8)((fu_u32)a & 0x7fffffffu); }
FU f8 f8_and_bits(f8 a, uint32_t m) { return (f8)((fu_u32)a & m); }

FU f8 f8_load_f16(const uint16_t* p) {
#ifdef FU_AVX2
    return (f8)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
    f8 r;
    for (int i = 0; i < 8; i++) r[i] = fu_f16_f32(p[i]);
    return r;
#endif
}

FU f8 f8_load_bf16(const uint16_t* p) {
    fu_u32 r;
#ifdef FU_AVX2
    r = (fu_u32)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
#else
    for (int i = 0; i < 8; i++) r[i] = (uint32_t)p[i] << 16;
#endif
    return (f8)r;
}

FU void f8_store_f16(uint16_t* p, f8 v) {
#ifdef FU_AVX2
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph((__m256)v, 0));
#else
    for (int i = 0; i < 8; i++) p[i] = fu_f32_f16(v[i]);
#endif
}

FU f8 f8_from_i32(w8 v) {
#ifdef FU_AVX2
    return (f8)_mm256_cvtepi32_ps((__m256i)v);
#else
    return __builtin_convertvector((fu_i32)v, f8);
#endif
}

/* Round to nearest even; the caller keeps |x| below 2^22. */
FU w8 f8_round_i32(f8 x) { return (w8)((fu_i32)(x + 12582912.0f) - 0x4b400000); }

/* 2^n for integer n in [-126, 127], given as the bits of n + 1.5*2^23 (see fu_exp8). */
FU f8 f8_pow2_bits(w8 n) { return (f8)(((fu_i32)n << 23) + 0x3f800000); }

/* The sum of eight lanes as a fixed tree: (0+4)+(2+6) + (1+5)+(3+7). */
FU float f8_hsum(f8 v) {
#ifdef FU_AVX2
    __m128 q = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
#else
    float a = v[0] + v[4], b = v[1] + v[5], c = v[2] + v[6], d = v[3] + v[7];
    return (a + c) + (b + d);
#endif
}

/* The largest lane, when none is NaN. */
FU float f8_hmax(f8 v) {
#ifdef FU_AVX2
    __m128 m = _mm_max_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
#else
    float m = v[0];
    for (int i = 1; i < 8; i++) m = v[i] > m ? v[i] : m;
    return m;
#endif
}

/* 1 when every lane of |x| is finite. */
FU int f8_isfinite_all(f8 a) {
#ifdef FU_AVX2
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, _mm256_set1_ps(INFINITY), _CMP_LT_OQ)) == 255;
#else
    int ok = 1;
    for (int i = 0; i < 8; i++) ok &= a[i] < INFINITY;
    return ok;
#endif
}

/* 8 x 8 transposition of 32-bit words. */
FU void f8_transpose(f8* r) {
#ifdef FU_AVX2
    __m256 t0 = _mm256_unpacklo_ps((__m256)r[0], (__m256)r[1]), t1 = _mm256_unpackhi_ps((__m256)r[0], (__m256)r[1]);
    __m256 t2 = _mm256_unpacklo_ps((__m256)r[2], (__m256)r[3]), t3 = _mm256_unpackhi_ps((__m256)r[2], (__m256)r[3]);
    __m256 t4 = _mm256_unpacklo_ps((__m256)r[4], (__m256)r[5]), t5 = _mm256_unpackhi_ps((__m256)r[4], (__m256)r[5]);
    __m256 t6 = _mm256_unpacklo_ps((__m256)r[6], (__m256)r[7]), t7 = _mm256_unpackhi_ps((__m256)r[6], (__m256)r[7]);
    __m256 s0 = _mm256_shuffle_ps(t0, t2, 0x44), s1 = _mm256_shuffle_ps(t0, t2, 0xee);
    __m256 s2 = _mm256_shuffle_ps(t1, t3, 0x44), s3 = _mm256_shuffle_ps(t1, t3, 0xee);
    __m256 s4 = _mm256_shuffle_ps(t4, t6, 0x44), s5 = _mm256_shuffle_ps(t4, t6, 0xee);
    __m256 s6 = _mm256_shuffle_ps(t5, t7, 0x44), s7 = _mm256_shuffle_ps(t5, t7, 0xee);
    r[0] = (f8)_mm256_permute2f128_ps(s0, s4, 0x20); r[1] = (f8)_mm256_permute2f128_ps(s1, s5, 0x20);
    r[2] = (f8)_mm256_permute2f128_ps(s2, s6, 0x20); r[3] = (f8)_mm256_permute2f128_ps(s3, s7, 0x20);
    r[4] = (f8)_mm256_permute2f128_ps(s0, s4, 0x31); r[5] = (f8)_mm256_permute2f128_ps(s1, s5, 0x31);
    r[6] = (f8)_mm256_permute2f128_ps(s2, s6, 0x31); r[7] = (f8)_mm256_permute2f128_ps(s3, s7, 0x31);
#else
    for (int i = 0; i < 8; i++)
        for (int j = i + 1; j < 8; j++) {
            uint32_t a = fu_f32_bits(r[i][j]), b = fu_f32_bits(r[j][i]);
            r[i][j] = fu_bits_f32(b);
            r[j][i] = fu_bits_f32(a);
        }
#endif
}

/* ---- integer lanes ------------------------------------------------------------------------------------- */

FU w8 w8_load(const void* p) { w8 v; memcpy(&v, p, 32); return v; }
FU void w8_store(void* p, w8 v) { memcpy(p, &v, 32); }
FU w8 w8_zero(void) { return (w8){0}; }
/* No loops over lanes: a memset counts as a call, and loops around a call do not unroll. */
FU w8 w8_set1_u8(int x) { return (w8)((fu_u8){0} + (uint8_t)x); }
FU w8 w8_set1_i16(int x) { return (w8)((fu_i16){0} + (int16_t)x); }
FU w8 w8_set1_i32(int x) { return (w8)(fu_i32){x, x, x, x, x, x, x, x}; }
FU w8 w8_and(w8 a, w8 b) { return a & b; }
FU w8 w8_or(w8 a, w8 b) { return a | b; }
FU w8 w8_shr16(w8 a, int n) { return (w8)((fu_u16)a >> n); }
FU w8 w8_shl16(w8 a, int n) { return (w8)((fu_u16)a << n); }
FU w8 w8_shr32(w8 a, int n) { return (w8)((fu_u32)a >> n); }
FU w8 w8_shl32(w8 a, int n) { return (w8)((fu_u32)a << n); }
FU w8 w8_sar16(w8 a, int n) { return (w8)((fu_i16)a >> n); }
FU w8 w8_sar32(w8 a, int n) { return (w8)((fu_i32)a >> n); }
FU w8 w8_add16(w8 a, w8 b) { return (w8)((fu_u16)a + (fu_u16)b); }
FU w8 w8_add32(w8 a, w8 b) { return (w8)((fu_u32)a + (fu_u32)b); }
FU w8 w8_sub32(w8 a, w8 b) { return (w8)((fu_u32)a - (fu_u32)b); }

/* Four bytes in every 32-bit lane: an activation group as eight rows see it. */
FU w8 w8_bcast32(const void* p) {
    int32_t x;
    memcpy(&x, p, 4);
#ifdef FU_AVX2
    return (w8)_mm256_set1_epi32(x);
#else
    return w8_set1_i32(x);
#endif
}

/* Pairs of (unsigned byte) * (signed byte) summed to i16. The caller proves that no sum leaves i16. */
FU w8 w8_maddubs(w8 u, w8 s) {
#ifdef FU_AVX2
    return (w8)_mm256_maddubs_epi16((__m256i)u, (__m256i)s);
#else
    fu_i16 ue = (fu_i16)((fu_u16)u & 0xff), uo = (fu_i16)((fu_u16)u >> 8);
    fu_i16 se = (fu_i16)((fu_u16)s << 8) >> 8, so = (fu_i16)s >> 8;
    return (w8)(ue * se + uo * so);
#endif
}

/* Pairs of i16 * i16 summed to i32. */
FU w8 w8_madd(w8 a, w8 b) {
#ifdef FU_AVX2
    return (w8)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
    fu_i32 ae = (fu_i32)((fu_u32)a << 16) >> 16, ao = (fu_i32)a >> 16;
    fu_i32 be = (fu_i32)((fu_u32)b << 16) >> 16, bo = (fu_i32)b >> 16;
    return (w8)(ae * be + ao * bo);
#endif
}

FU w8 w8_abs8(w8 a) {
#ifdef FU_AVX2
    return (w8)_mm256_abs_epi8((__m256i)a);
#else
    fu_i8 v = (fu_i8)a, m = v >> 7;
    return (w8)((v ^ m) - m);
#endif
}

/* a with the sign of b (zero where b is zero). */
FU w8 w8_sign8(w8 a, w8 b) {
#ifdef FU_AVX2
    return (w8)_mm256_sign_epi8((__m256i)a, (__m256i)b);
#else
    fu_i8 v = (fu_i8)a, s = (fu_i8)b, m = s >> 7;
    return (w8)(((v ^ m) - m) & (fu_i8)(s != 0));
#endif
}

/* Byte k of every 32-bit lane in all four bytes of the lane, k = 0..3. */
FU w8 w8_spread8(w8 a, int k) {
#ifdef FU_AVX2
    const __m256i base = _mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12,
                                          0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
    return (w8)_mm256_shuffle_epi8((__m256i)a, _mm256_add_epi8(base, _mm256_set1_epi8((char)k)));
#else
    return (w8)((((fu_u32)a >> (8 * k)) & 0xff) * 0x01010101u);
#endif
}

/* Unsigned byte k of every 32-bit lane as both i16 of the lane. */
FU w8 w8_dup_u8_i16(w8 a, int k) {
#ifdef FU_AVX2
    const __m256i base = _mm256_setr_epi8(0, -128, 0, -128, 4, -128, 4, -128, 8, -128, 8, -128, 12, -128, 12, -128,
                                          0, -128, 0, -128, 4, -128, 4, -128, 8, -128, 8, -128, 12, -128, 12, -128);
    return (w8)_mm256_shuffle_epi8((__m256i)a, _mm256_add_epi8(base, _mm256_set1_epi8((char)k)));
#else
    return (w8)((((fu_u32)a >> (8 * k)) & 0xff) * 0x00010001u);
#endif
}

/* Signed byte k of every 32-bit lane as both i16 of the lane. */
FU w8 w8_dup_i8_i16(w8 a, int k) {
#ifdef FU_AVX2
    const __m256i base = _mm256_setr_epi8(-128, 0, -128, 0, -128, 4, -128, 4, -128, 8, -128, 8, -128, 12, -128, 12,
                                          -128, 0, -128, 0, -128, 4, -128, 4, -128, 8, -128, 8, -128, 12, -128, 12);
    return (w8)_mm256_srai_epi16(_mm256_shuffle_epi8((__m256i)a, _mm256_add_epi8(base, _mm256_set1_epi8((char)k))), 8);
#else
    return (w8)((fu_i16)((fu_u16)w8_dup_u8_i16(a, k) << 8) >> 8);
#endif
}

/* Bytes 2k and 2k+1 (k = 0, 1) of every 32-bit lane as the two i16 of the lane. */
FU w8 w8_pair_u8_i16(w8 a, int k) {
#ifdef FU_AVX2
    const __m256i base = _mm256_setr_epi8(0, -128, 1, -128, 4, -128, 5, -128, 8, -128, 9, -128, 12, -128, 13, -128,
                                          0, -128, 1, -128, 4, -128, 5, -128, 8, -128, 9, -128, 12, -128, 13, -128);
    return (w8)_mm256_shuffle_epi8((__m256i)a, _mm256_add_epi8(base, _mm256_set1_epi8((char)(2 * k))));
#else
    fu_u32 v = (fu_u32)a >> (16 * k);
    return (w8)((v & 0xff) | ((v & 0xff00) << 8));
#endif
}

FU w8 w8_pair_i8_i16(w8 a, int k) {
#ifdef FU_AVX2
    const __m256i base = _mm256_setr_epi8(-128, 0, -128, 1, -128, 4, -128, 5, -128, 8, -128, 9, -128, 12, -128, 13,
                                          -128, 0, -128, 1, -128, 4, -128, 5, -128, 8, -128, 9, -128, 12, -128, 13);
    return (w8)_mm256_srai_epi16(
        _mm256_shuffle_epi8((__m256i)a, _mm256_add_epi8(base, _mm256_set1_epi8((char)(2 * k)))), 8);
#else
    return (w8)((fu_i16)((fu_u16)w8_pair_u8_i16(a, k) << 8) >> 8);
#endif
}

/* 0x10 in byte i of a lane where bit (4g + i) of the lane's word is set: the fifth bits of group g, g = 0..7. */
FU w8 w8_fifth_bits(w8 qh, int g) {
    fu_u8 byte = (fu_u8)w8_spread8(qh, g >> 1);
    fu_u8 mask = (fu_u8)w8_set1_i32(g & 1 ? (int)0x80402010u : 0x08040201);
    return (w8)((fu_u8)((byte & mask) == mask) & 16);
}

/* The low (which = 0) or high (1) f16 of eight 32-bit words, as f32. */
FU f8 f8_from_f16_of_words(w8 words, int which) {
#ifdef FU_AVX2
    const __m256i pick = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,
                                          0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    __m256i v = _mm256_permute4x64_epi64(_mm256_shuffle_epi8((__m256i)words, pick), 0xd8);
    return (f8)_mm256_cvtph_ps(which ? _mm256_extracti128_si256(v, 1) : _mm256_castsi256_si128(v));
#else
    f8 r;
    for (int i = 0; i < 8; i++) r[i] = fu_f16_f32((uint16_t)(((fu_u32)words)[i] >> (16 * which)));
    return r;
#endif
}

/* Four consecutive words of eight rows, at `off` bytes, to [word][row]: 128 bytes at dst. */
FU void w8_transpose4(const char* const* src, long off, char* dst) {
#ifdef FU_AVX2
    __m256 a[4];
    for (int i = 0; i < 4; i++)
        a[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps((const float*)(src[i] + off))),
                                    _mm_loadu_ps((const float*)(src[i + 4] + off)), 1);
    __m256 t0 = _mm256_unpacklo_ps(a[0], a[1]), t1 = _mm256_unpackhi_ps(a[0], a[1]);
    __m256 t2 = _mm256_unpacklo_ps(a[2], a[3]), t3 = _mm256_unpackhi_ps(a[2], a[3]);
    _mm256_storeu_ps((float*)dst, _mm256_shuffle_ps(t0, t2, 0x44));
    _mm256_storeu_ps((float*)(dst + 32), _mm256_shuffle_ps(t0, t2, 0xee));
    _mm256_storeu_ps((float*)(dst + 64), _mm256_shuffle_ps(t1, t3, 0x44));
    _mm256_storeu_ps((float*)(dst + 96), _mm256_shuffle_ps(t1, t3, 0xee));
#else
    for (int w = 0; w < 4; w++)
        for (int i = 0; i < 8; i++) memcpy(dst + 32 * w + 4 * i, src[i] + off + 4 * w, 4);
#endif
}

/* A value that is computed where it is written: compilers put long sums together at their end and keep every term
 * until then, more than there are registers. */
FU w8 w8_here(w8 v) {
#if defined(__AVX512VL__)
    __asm__("" : "+v"(v));      /* any of 32 registers */
#elif defined(FU_AVX2)
    __asm__("" : "+x"(v));
#endif
    return v;
}

/* A value whose words will be broadcast from memory: compilers would take them from a register, with two shuffles each. */
FU void w8_in_memory(w8* v) { __asm__("" : "+m"(*v)); }

FU void fu_prefetch(const void* p) { __builtin_prefetch(p); }
/* The same where it is written: compilers gather the one above at the top of a loop, and a burst of them waits. */
FU void fu_prefetch_here(const void* p) {
    __builtin_prefetch(p);
    __asm__ volatile("");
}

/* ---- f64 lanes ----------------------------------------------------------------------------------------- */

typedef double d4 __attribute__((vector_size(32)));

#ifdef __FMA__
FU double fu_fmad(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
FU double fu_fmad(double a, double b, double c) { return fma(a, b, c); }
#endif

FU d4 d4_load(const double* p) { d4 v; memcpy(&v, p, 32); return v; }
FU void d4_store(double* p, d4 v) { memcpy(p, &v, 32); }
FU d4 d4_set1(double x) { return (d4){x, x, x, x}; }
FU d4 d4_zero(void) { return (d4){0}; }

FU d4 d4_fma(d4 a, d4 b, d4 c) {
#ifdef FU_AVX2
    return (d4)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
    d4 r;
    for (int i = 0; i < 4; i++) r[i] = fu_fmad(a[i], b[i], c[i]);
    return r;
#endif
}

/* 4 x 4 transposition. */
FU void d4_transpose(d4* r) {
#ifdef FU_AVX2
    __m256d t0 = _mm256_unpacklo_pd((__m256d)r[0], (__m256d)r[1]), t1 = _mm256_unpackhi_pd((__m256d)r[0], (__m256d)r[1]);
    __m256d t2 = _mm256_unpacklo_pd((__m256d)r[2], (__m256d)r[3]), t3 = _mm256_unpackhi_pd((__m256d)r[2], (__m256d)r[3]);
    r[0] = (d4)_mm256_permute2f128_pd(t0, t2, 0x20);
    r[1] = (d4)_mm256_permute2f128_pd(t1, t3, 0x20);
    r[2] = (d4)_mm256_permute2f128_pd(t0, t2, 0x31);
    r[3] = (d4)_mm256_permute2f128_pd(t1, t3, 0x31);
#else
    for (int i = 0; i < 4; i++)
        for (int j = i + 1; j < 4; j++) {
            double a = r[i][j];
            r[i][j] = r[j][i];
            r[j][i] = a;
        }
#endif
}

/* Four 32-bit words of eight rows, `stride` bytes apart, as four columns. Two rows meet in one register while they are
 * loaded, so that every shuffle stays within its lane. */
FU void f8_load_columns(const void* p, long stride, f8* r) {
#ifdef FU_AVX2
    __m256 a[4];
    for (int i = 0; i < 4; i++)
        a[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps((const float*)((const char*)p + i * stride))),
                                    _mm_loadu_ps((const float*)((const char*)p + (i + 4) * stride)), 1);
    __m256 t0 = _mm256_unpacklo_ps(a[0], a[1]), t1 = _mm256_unpackhi_ps(a[0], a[1]);
    __m256 t2 = _mm256_unpacklo_ps(a[2], a[3]), t3 = _mm256_unpackhi_ps(a[2], a[3]);
    r[0] = (f8)_mm256_shuffle_ps(t0, t2, 0x44);
    r[1] = (f8)_mm256_shuffle_ps(t0, t2, 0xee);
    r[2] = (f8)_mm256_shuffle_ps(t1, t3, 0x44);
    r[3] = (f8)_mm256_shuffle_ps(t1, t3, 0xee);
#else
    for (int j = 0; j < 4; j++) {
        float col[8];
        for (int i = 0; i < 8; i++) memcpy(col + i, (const char*)p + i * stride + 4 * j, 4);
        memcpy(r + j, col, 32);
    }
#endif
}

/* ---- 16-bit floats in panels --------------------------------------------------------------------------- */

FU void f8_store_bf16(uint16_t* p, f8 v) {
    fu_u32 u = (fu_u32)v, nan = (fu_u32)((u & 0x7fffffffu) > 0x7f800000u);
    fu_u32 r = (((u + 0x7fffu + ((u >> 16) & 1u)) & ~nan) | ((u | 0x400000u) & nan)) >> 16;
    for (int i = 0; i < 8; i++) p[i] = (uint16_t)r[i];
}

/* Words that hold two bf16: the low ones and the high ones as f32. */
FU f8 f8_from_bf16_low(f8 v) { return (f8)((fu_u32)v << 16); }
FU f8 f8_from_bf16_high(f8 v) { return (f8)((fu_u32)v & 0xffff0000u); }

/* The eight f16 of the low (which = 0) or high (1) half of v as f32. */
FU f8 f8_from_f16_half(w8 v, int which) {
#ifdef FU_AVX2
    return (f8)_mm256_cvtph_ps(which ? _mm256_extracti128_si256((__m256i)v, 1) : _mm256_castsi256_si128((__m256i)v));
#else
    f8 r;
    for (int i = 0; i < 8; i++) r[i] = fu_f16_f32(((fu_u16)v)[8 * which + i]);
    return r;
#endif
}

/* Sixteen 16-bit values of eight rows: r[j] then holds column j in its low and column j + 8 in its high half. */
FU void w8_transpose16(w8* r) {
#ifdef FU_AVX2
    __m256i s[8], t[8];
    for (int i = 0; i < 4; i++) {
        s[2 * i] = _mm256_unpacklo_epi16((__m256i)r[2 * i], (__m256i)r[2 * i + 1]);
        s[2 * i + 1] = _mm256_unpackhi_epi16((__m256i)r[2 * i], (__m256i)r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            t[4 * i + 2 * j] = _mm256_unpacklo_epi32(s[4 * i + j], s[4 * i + 2 + j]);
            t[4 * i + 2 * j + 1] = _mm256_unpackhi_epi32(s[4 * i + j], s[4 * i + 2 + j]);
        }
    for (int j = 0; j < 4; j++) {
        r[2 * j] = (w8)_mm256_unpacklo_epi64(t[j], t[4 + j]);
        r[2 * j + 1] = (w8)_mm256_unpackhi_epi64(t[j], t[4 + j]);
    }
#else
    uint16_t old[8][16], new[8][16];
    memcpy(old, r, sizeof(old));
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < 8; i++) {
            new[j][i] = old[i][j];
            new[j][8 + i] = old[i][8 + j];
        }
    memcpy(r, new, sizeof(new));
#endif
}

/* The same of rows that are `stride` bytes apart. */
FU void w8_load_columns16(const void* p, long stride, w8* r) {
    for (int i = 0; i < 8; i++) r[i] = w8_load((const char*)p + i * stride);
    w8_transpose16(r);
}

/* Eight 32-bit values of eight rows: r[j] then holds column j. */
FU void w8_transpose32(w8* r) {
    f8 t[8];
    for (int i = 0; i < 8; i++) t[i] = (f8)r[i];
    f8_transpose(t);
    for (int i = 0; i < 8; i++) r[i] = (w8)t[i];
}

/* The low half, or the high one, to memory. */
FU void w8_store_half(void* p, w8 v, int high) { memcpy(p, (const char*)&v + 16 * high, 16); }

/* ---- constants ------------------------------------------------------------------------------------------ */

/* Streams in which one column reads long rows of short blocks. Four where registers are 256 bits wide (AMD Zen 3); with
 * two, tokens on AMD Zen 4 take 0.83 of the time with one and two threads where q8_0 is most of the bytes (Gemma 3 270M),
 * 0.92 to 1.05 with other formats (2026-11). */
#ifdef __AVX512VL__
enum { FU_STREAMS = 2 };
#else
enum { FU_STREAMS = 4 };
#endif

/* Bytes that a tile of several dense panels fetches ahead, in all of them together. Tokens of F16 and BF16 weights with
 * 1 KB were 1.05 to 1.12 times as fast as with 2 KB on one thread, 0.99 to 1.07 on two (AMD Zen 4, with AVX2 and with
 * AVX-512, 2026-11); less and more took longer. On AMD Zen 3 only 2 KB and 8 KB were compared, and 8 KB took longer. */
enum { FU_DENSE_AHEAD = 1024 };

/* A panel row of zeros: where a sum starts. */
static const char fu_zeros[64] __attribute__((aligned(64))) = {0};

#endif
