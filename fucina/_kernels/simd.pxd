"""The primitives of include/simd.h as Cython sees them: opaque 256-bit values and always-inlined functions."""

from libc.stdint cimport uint16_t, uint32_t


cdef extern from "simd.h" nogil:
    ctypedef struct f8:      # eight f32 lanes
        pass
    ctypedef struct w8:      # 256 bits of integer lanes
        pass

    float fu_fma(float a, float b, float c)
    float fu_f16_f32(uint16_t h)
    uint16_t fu_f32_f16(float f)
    float fu_bf16_f32(uint16_t h)
    uint16_t fu_f32_bf16(float f)
    void fu_prefetch(const void* p)
    void fu_prefetch_here(const void* p)
    w8 w8_here(w8 v)
    void w8_in_memory(w8* v)

    f8 f8_load(const float* p)
    void f8_store(float* p, f8 v)
    f8 f8_load_f16(const uint16_t* p)
    f8 f8_load_bf16(const uint16_t* p)
    void f8_store_f16(uint16_t* p, f8 v)
    f8 f8_set1(float x)
    f8 f8_zero()
    f8 f8_add(f8 a, f8 b)
    f8 f8_sub(f8 a, f8 b)
    f8 f8_mul(f8 a, f8 b)
    f8 f8_div(f8 a, f8 b)
    f8 f8_fma(f8 a, f8 b, f8 c)
    f8 f8_sqrt(f8 a)
    f8 f8_max(f8 a, f8 b)
    f8 f8_min(f8 a, f8 b)
    w8 f8_gt(f8 a, f8 b)
    w8 f8_isnan(f8 a)
    f8 f8_select(w8 mask, f8 yes, f8 no)
    f8 f8_abs(f8 a)
    f8 f8_from_i32(w8 v)
    float f8_hsum(f8 v)
    float f8_hmax(f8 v)
    int f8_isfinite_all(f8 a)
    void f8_transpose(f8* rows)

    w8 w8_load(const void* p)
    void w8_store(void* p, w8 v)
    w8 w8_zero()
    w8 w8_set1_u8(int x)
    w8 w8_set1_i16(int x)
    w8 w8_set1_i32(int x)
    w8 w8_and(w8 a, w8 b)
    w8 w8_or(w8 a, w8 b)
    w8 w8_shr16(w8 a, int n)
    w8 w8_shl16(w8 a, int n)
    w8 w8_shr32(w8 a, int n)
    w8 w8_shl32(w8 a, int n)
    w8 w8_sar16(w8 a, int n)
    w8 w8_sar32(w8 a, int n)
    w8 w8_add16(w8 a, w8 b)
    w8 w8_add32(w8 a, w8 b)
    w8 w8_sub32(w8 a, w8 b)
    w8 w8_bcast32(const void* p)
    w8 w8_maddubs(w8 u, w8 s)
    w8 w8_madd(w8 a, w8 b)
    w8 w8_abs8(w8 a)
    w8 w8_dup_u8_i16(w8 a, int k)
    w8 w8_dup_i8_i16(w8 a, int k)
    w8 w8_pair_u8_i16(w8 a, int k)
    w8 w8_pair_i8_i16(w8 a, int k)
    w8 w8_fifth_bits(w8 qh, int g)
    f8 f8_from_f16_of_words(w8 words, int which)
    void w8_transpose4(const char* const* src, long off, char* dst)


cdef extern from "simd.h" nogil:
    ctypedef struct d4:      # four f64 lanes
        pass

    double fu_fmad(double a, double b, double c)
    d4 d4_load(const double* p)
    void d4_store(double* p, d4 v)
    d4 d4_set1(double x)
    d4 d4_zero()
    d4 d4_fma(d4 a, d4 b, d4 c)
    void d4_transpose(d4* rows)

    void f8_store_bf16(uint16_t* p, f8 v)
    f8 f8_from_bf16_low(f8 v)
    f8 f8_from_bf16_high(f8 v)
    f8 f8_from_f16_half(w8 v, int which)
    void f8_load_columns(const void* p, long stride, f8* columns)
    void w8_load_columns16(const void* p, long stride, w8* columns)
    void w8_transpose16(w8* r)
    void w8_transpose32(w8* r)
    void w8_store_half(void* p, w8 v, int high)

    enum:
        FU_STREAMS
        FU_DENSE_AHEAD
    const char* fu_zeros     # 64 bytes of zeros
