"""Code panels: what the compact blocks of most formats are expanded to before a tile multiplies with them.

A panel of 8 rows is expanded once and meets all columns of activations, so the work of unpacking does not count for
a batch, and the tiles (``tile_codes.pxd``) need not know formats. A word of codes is 4 elements of 8 rows, 32 bytes.
Three layouts:

    32       per 32 elements     8 words, f32 scale x 8 rows (two of them where scales belong to 16 elements)
    k        per 256 elements    64 words; 16 scales per 16 elements, each twice as i16; 8 pairs of i16, which meet the
                                 activations' sums of 16; f32 scale x 8, f32 scale of the mins x 8
    ternary  per 256 elements    64 words, f32 scale x 8

Codes are unsigned where a bias makes them so; what the bias adds is in the pairs, or known to the tile.
"""

from libc.stdint cimport int8_t, uint8_t

from simd cimport (
    f8, f8_store, w8, w8_add32, w8_bcast32, w8_dup_i8_i16, w8_madd, w8_pair_i8_i16, w8_shl16, w8_shr16, w8_store,
)

cdef enum:
    UNIT_32 = 288
    UNIT_16 = 320
    UNIT_K = 2880
    UNIT_TERNARY = 2080
    AT_SCALES = 2048
    AT_PAIRS = 2560
    AT_D = 2816
    AT_M = 2848

# ``nb`` blocks of a panel to code panels; ``grid`` is what the points of a lattice decode to, or NULL.
ctypedef void (*expand_t)(const char* p, Py_ssize_t nb, const uint8_t* grid, char* to) noexcept nogil

# The same blocks times one column of activations, added to ``acc``.
ctypedef void (*row_t)(const char* p, Py_ssize_t nb, const uint8_t* grid, const int8_t* qs, const float* d,
                       const char* aux, f8* acc) noexcept nogil

# The same for two panels.
ctypedef void (*row_pair_t)(const char* p, const char* r, Py_ssize_t nb, const int8_t* qs, const float* d,
                            const char* aux, f8* acc) noexcept nogil

# What packing changes in ``nb`` interleaved blocks.
ctypedef void (*recode_t)(char* panel, Py_ssize_t nb) noexcept nogil

# Tables of sums of ``k`` activations, and ``nb`` blocks of four panels times what they were made of.
ctypedef void (*tabulate_t)(const int8_t* qs, Py_ssize_t k, char* to) noexcept nogil
ctypedef void (*look_up_t)(const char* const* panels, Py_ssize_t nb, const char* tables, const float* d,
                           f8* acc) noexcept nogil

cdef extern from "codes.h" nogil:
    w8 w8_mul32(w8 a, int n)
    w8 w8_pack16(w8 low, w8 high)
    w8 w8_sub8(w8 a, w8 b)
    w8 w8_add8(w8 a, w8 b)
    w8 w8_dot_bits8(w8 word, const int8_t* a)
    w8 w8_dot_crumbs4(w8 word, w8 next, const int8_t* a)
    w8 w8_byte_i32(w8 a, int k)
    w8 w8_table16(w8 index, const int8_t* table)
    f8 f8_e8m0_half(const uint8_t* p)
    w8 w8_ue4m3(w8 v)
    f8 f8_ue4m3_half(w8 v, int k)
    w8 w8_even_parity(w8 x)
    void codes_of_bits(char* to, w8 word, int value)
    void codes_of_crumbs(char* to, w8 word)
    w8 w8_xor(w8 a, w8 b)
    w8 w8_mul16(w8 a, int low, int high)
    w8 w8_dup16(w8 a, int k)
    w8 w8_sign8(w8 a, w8 b)
    w8 w8_signed(w8 v, w8 signs, int g)
    w8 w8_spread8(w8 a, int k)
    void w8_points4(const uint8_t* grid, const char* at, int wide, w8* w)
    void w8_points8(const uint8_t* grid, const char* at, int wide, w8* w)


cdef inline w8 w8_move16(w8 v, int n) noexcept nogil:
    """Bits ``n`` places up or, below zero, down."""
    return w8_shl16(v, n) if n >= 0 else w8_shr16(v, -n)


cdef inline void put(char* to, int word, w8 codes) noexcept nogil:
    w8_store(to + 32 * word, codes)


cdef inline void put_scales(char* to, int g, w8 even, w8 odd, int bias) noexcept nogil:
    """Scales of sub-blocks 2g and 2g + 1 as i32 lanes, and what ``bias`` in their codes has to be undone with."""
    w8_store(to + AT_SCALES + 64 * g, w8_pack16(even, even))
    w8_store(to + AT_SCALES + 64 * g + 32, w8_pack16(odd, odd))
    w8_store(to + AT_PAIRS + 32 * g, w8_pack16(w8_mul32(even, bias), w8_mul32(odd, bias)))


cdef inline void put_four_scales(char* to, int g, w8 scales, int bias_bits) noexcept nogil:
    """Word ``g`` of four: scales of four times 16 elements in bytes, and what 2 ** ``bias_bits`` in their codes has to be
    undone with."""
    cdef int j
    for j in range(4):
        w8_store(to + AT_SCALES + 128 * g + 32 * j, w8_dup_i8_i16(scales, j))
    for j in range(2):
        w8_store(to + AT_PAIRS + 64 * g + 32 * j, w8_shl16(w8_pair_i8_i16(scales, j), bias_bits))


cdef inline w8 add_offset(w8 total, w8 scales, const char* sums) noexcept nogil:
    """Add these four scales times the ``sums`` of the activations that they belong to."""
    total = w8_add32(total, w8_madd(w8_pair_i8_i16(scales, 0), w8_bcast32(sums)))
    return w8_add32(total, w8_madd(w8_pair_i8_i16(scales, 1), w8_bcast32(sums + 4)))


cdef inline void put_f8(char* to, int at, f8 v) noexcept nogil:
    f8_store(<float*> (to + at), v)
