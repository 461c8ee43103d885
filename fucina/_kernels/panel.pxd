"""Panels of eight interleaved rows, and what every tile of a quantized product is given.

A panel holds 8 rows, word by word: a block, seen as 32-bit words, becomes [word][row], so 32 bytes are the same word of
8 rows. A block that is not a whole number of words has a head, one or two bytes at ``half_at`` (format table): its 8
heads come first, [head x 8][word][row]. A panel has exactly the bytes of its rows, every vector load is a load of 8
rows, and because scales, nibbles and fifth bits sit in the same places of every row, unpacking them is one operation
for all 8.
"""

from libc.stdint cimport int8_t, uint8_t
from libc.string cimport memcpy

from codes cimport expand_t, look_up_t, recode_t, row_pair_t, row_t, tabulate_t
from simd cimport f8, f8_add, f8_load, f8_mul, f8_set1, f8_store, fu_prefetch, fu_prefetch_here, w8_transpose4
from team cimport core_t

# Columns of an activation tile. 16 columns of k = 4096 and their scales are 72 KiB (second-level cache), of
# k = 1536 27 KiB (first level); the accumulators are 512 bytes.
cdef enum:
    TILE = 16
    # Bytes of weights that are fetched ahead: one row reads 1.2 to 1.35 times as fast. Tokens on two threads: 1024 the
    # same, 512 and 2048 take 1.02 to 1.05 times as long, 4608 no less (AMD Zen 3, 2026-11).
    AHEAD = 1536

# How many panels a tile takes at a time. The type of a pointer says it, so that compilers know the number.
cdef struct OnePanel:
    char unused

cdef struct TwoPanels:
    char unused

ctypedef fused Panels:
    OnePanel
    TwoPanels


cdef inline int count_of(const Panels* panels) noexcept nogil:
    return 2 if Panels is TwoPanels else 1


cdef struct LinearArgs:
    const char* w           # rows of blocks, or panels
    Py_ssize_t row_bytes
    int packed
    const int8_t* qs        # activations, as act.pxd lays them out in tiles of TILE
    const float* d
    const char* aux
    const float* bias       # or NULL
    float* out
    char* scratch           # ``scratch_stride`` bytes per share
    Py_ssize_t scratch_stride
    Py_ssize_t m, n, k
    float scale             # of the whole tensor, 1 where the format has none
    # The core for many columns; how one column meets a panel of the format, two panels (or NULL), and four by way of
    # tables (or NULL); what packing changes in bytes, or NULL; how the format is expanded to code panels, or NULL; its
    # lattice or NULL; a block's bytes and elements, the bytes that it becomes.
    core_t many
    row_t row
    row_pair_t row_pair
    tabulate_t tabulate
    look_up_t look_up
    recode_t recode
    expand_t expand
    const uint8_t* grid
    int nbytes, half_at, block, unit
    int size                # elements per block of activations


cdef inline Py_ssize_t up64(Py_ssize_t n) noexcept nogil:
    return (n + 63) & ~<Py_ssize_t> 63


cdef inline void fetch_line(const char* p) noexcept nogil:
    """The line ``AHEAD`` bytes later."""
    fu_prefetch_here(p + AHEAD)


cdef inline void fetch_ahead(const char* p, int nbytes) noexcept nogil:
    """What comes ``AHEAD`` bytes later."""
    cdef int i
    for i in range((nbytes + 63) // 64):
        fetch_line(p + 64 * i)


cdef inline void interleave(const char* w, Py_ssize_t stride, int rows, Py_ssize_t blocks, const int nbytes,
                            const int half_at, const char* ahead, char* panel) noexcept nogil:
    """Rows ``w + i * stride`` to one panel; with fewer than 8 rows the last one is repeated.

    ``ahead`` is the memory that will be read next. Inlined with the constants of a format, the loop over a block's
    words unrolls.
    """
    cdef const char* src[8]
    cdef char* dst = panel
    cdef int words = nbytes // 4
    cdef int head = nbytes % 4
    cdef int skip = head if half_at == 0 else 0
    cdef int i, j, at
    cdef Py_ssize_t _
    for i in range(8):
        src[i] = w + min(i, rows - 1) * stride
    for _ in range(blocks):
        # Eight short rows are no stream that hardware follows: ask for the next panel's bytes while this one is read.
        for i in range((8 * nbytes + 63) // 64):
            fu_prefetch(ahead + 64 * i)
        ahead += 8 * nbytes
        if half_at >= 0:
            for i in range(8):
                if head == 2:
                    memcpy(dst + 2 * i, src[i] + half_at, 2)
                else:
                    dst[i] = src[i][half_at]
            dst += 8 * head
        # Four words at a time; the last group is shifted back over words that were already done.
        for j in range((words + 3) // 4):
            at = min(4 * j, words - 4)
            w8_transpose4(src, skip + 4 * at, dst + 32 * at)
        dst += 32 * words
        for i in range(8):
            src[i] += nbytes


cdef inline void pack_panel(const LinearArgs* a, const char* w, int rows, Py_ssize_t blocks, const char* ahead,
                            char* panel) noexcept nogil:
    """``interleave`` with the constants of the shortest blocks, where they matter; then what the format changes."""
    cdef Py_ssize_t stride = a.row_bytes
    if a.nbytes == 17:
        interleave(w, stride, rows, blocks, 17, 0, ahead, panel)
    elif a.nbytes == 18:
        interleave(w, stride, rows, blocks, 18, 0, ahead, panel)
    elif a.nbytes == 34:
        interleave(w, stride, rows, blocks, 34, 0, ahead, panel)
    elif a.nbytes == 36:
        interleave(w, stride, rows, blocks, 36, -1, ahead, panel)
    else:
        interleave(w, stride, rows, blocks, a.nbytes, a.half_at, ahead, panel)
    if a.recode != NULL:
        a.recode(panel, blocks)


cdef inline void finish(f8 acc, float scale, const float* bias, float* out, int rows) noexcept nogil:
    """Write one column of a panel: ``rows`` outputs, times the scale of the tensor, with the bias added last."""
    cdef float lane[8]
    cdef float edge[8]
    cdef int i
    acc = f8_mul(acc, f8_set1(scale))
    if rows == 8:
        if bias != NULL:
            acc = f8_add(acc, f8_load(bias))
        f8_store(out, acc)
        return
    if bias != NULL:
        for i in range(8):
            edge[i] = bias[i] if i < rows else 0
        acc = f8_add(acc, f8_load(edge))
    f8_store(lane, acc)
    for i in range(rows):
        out[i] = lane[i]
