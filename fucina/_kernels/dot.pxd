"""The sums of products of include/dot.h as Cython sees them."""

from libc.stdint cimport int8_t

from simd cimport w8


cdef extern from "dot.h" nogil:
    enum:
        PARTS_ARE_WHOLE
        S8_BIAS
        ROOM_FOR_TWO

    w8 part_more(w8 s, w8 u, w8 v)
    w8 part_add(w8 s, w8 t)
    w8 part_shl(w8 s, int n)
    w8 part_sar(w8 s, int n)
    w8 part_total(w8 s)
    w8 part_total_by(w8 s, w8 scale)
    w8 part_dot(w8 s, const w8* w, const int8_t* a, int words)
    void part_dot_two(w8* s, const w8* w, const w8* u, const int8_t* a, int words)
    void part_more_two(w8* s, w8 w, w8 u, const int8_t* a)
    w8 part_signed(w8 s, w8 w, const int8_t* a)
    w8 w8_dot(const w8* w, const int8_t* a, int words, int per)
    w8 w8_dot_by(const w8* w, const int8_t* a, int words, int per, w8 scale)
    w8 w8_codes_s8(w8 v)
    w8 w8_dot_s8(const w8* w, const int8_t* a)
    w8 w8_dot_s8_by(const w8* w, const int8_t* a, w8 scale)
