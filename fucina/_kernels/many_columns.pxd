"""Many columns of activations times panels of weights, packed ones or rows that are interleaved on the way.

The tiles of the most common formats unpack while they multiply (``tile_32.pxd``, ``tile_k.pxd``); the others are
expanded to code panels first (``codes.pxd``, ``tile_codes.pxd``). A panel, or two at a time, meets all columns in tiles
of ``TILE`` while it is in the cache.
"""

from libc.stdint cimport int8_t

from blocks cimport Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q8_0
from dot cimport ROOM_FOR_TWO
from one_column cimport PIECE
from panel cimport TILE, LinearArgs, OnePanel, Panels, TwoPanels, count_of, finish, interleave, pack_panel, up64
from simd cimport f8, f8_zero, fu_prefetch
from team cimport share_start
from tile_32 cimport pair_32, tile_32
from tile_codes cimport Eight, Signed, Sixteen, Tag, Ternary, Twelve, tile_codes_32, tile_codes_k, tile_ternary
from tile_k cimport pair_k, tile_k

cdef enum:
    PAIRED = 4      # columns from which two panels at a time pay off


# Formats whose tile unpacks.
ctypedef fused Direct:
    Q4_0
    Q4_1
    Q5_0
    Q5_1
    Q8_0
    Q4_K
    Q5_K


cdef inline void pack_direct(const Direct* tag, const LinearArgs* a, const char* w, int rows, char* panel) noexcept nogil:
    """``pack_panel`` of whole rows, with the constants of the format."""
    cdef int half_at = -1 if Direct is Q4_1 or Direct is Q5_1 or Direct is Q4_K or Direct is Q5_K else 0
    cdef Py_ssize_t nb = a.row_bytes // <Py_ssize_t> sizeof(Direct)
    interleave(w, a.row_bytes, rows, nb, sizeof(Direct), half_at, w + 8 * a.row_bytes, panel)
    if a.recode != NULL:
        a.recode(panel, nb)


cdef inline void some_panels(const Direct* tag, const Panels* panels, const LinearArgs* a, Py_ssize_t i,
                             char* scratch) noexcept nogil:
    """Panel ``i``, or that and the next one, times all columns."""
    cdef int count = count_of(panels)
    cdef f8 acc[2 * TILE]
    cdef int size = 256 if Direct is Q4_K or Direct is Q5_K else 32
    cdef Py_ssize_t aux_bytes = 48 if size == 256 else 4
    cdef Py_ssize_t nb = a.k // size
    cdef Py_ssize_t t = 0
    cdef const char* p[2]
    cdef const int8_t* qs
    cdef const float* d
    cdef const char* aux
    cdef int nc, c, e
    for e in range(count):
        p[e] = a.w + (i + e) * 8 * a.row_bytes
        if not a.packed:
            pack_direct(tag, a, p[e], <int> min(<Py_ssize_t> 8, a.n - 8 * (i + e)), scratch + e * up64(8 * a.row_bytes))
            p[e] = scratch + e * up64(8 * a.row_bytes)
    while t < a.m:
        nc = <int> min(<Py_ssize_t> TILE, a.m - t)
        for c in range(count * nc):
            acc[c] = f8_zero()
        qs, d, aux = a.qs + t * a.k, a.d + t * nb, a.aux + t * nb * aux_bytes
        if count == 2 and not ROOM_FOR_TWO:
            if Direct is Q4_K:
                pair_k(p[0], p[1], nb, qs, d, aux, nc, acc)
            elif Direct is Q4_0 or Direct is Q4_1:
                pair_32(tag, p[0], p[1], nb, qs, d, aux, nc, acc)
        elif nc == 1:
            for e in range(count):
                a.row(p[e], nb, NULL, qs, d, aux, acc + e)
        elif Direct is Q4_K or Direct is Q5_K:
            tile_k(tag, panels, <const char* const*> p, nb, qs, d, aux, nc, acc)
        else:
            tile_32(tag, panels, <const char* const*> p, nb, qs, d, aux, nc, acc)
        put_tile(panels, a, i, t, nc, acc)
        t += TILE


cdef inline void put_tile(const Panels* panels, const LinearArgs* a, Py_ssize_t i, Py_ssize_t t, int nc,
                          const f8* acc) noexcept nogil:
    """The outputs of panels from ``i`` on, of ``nc`` columns from ``t`` on."""
    cdef int count = count_of(panels)
    cdef int c, e
    for e in range(count):
        for c in range(nc):
            finish(acc[count * c + e], a.scale, NULL if a.bias == NULL else a.bias + 8 * (i + e),
                   a.out + (t + c) * a.n + 8 * (i + e), <int> min(<Py_ssize_t> 8, a.n - 8 * (i + e)))


cdef inline void linear_quant(const Direct* args, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    """Share ``ith`` of the panels. The pointer's type only selects the format; it points to ``LinearArgs``."""
    cdef const LinearArgs* a = <const LinearArgs*> args
    cdef char* scratch = a.scratch + ith * a.scratch_stride
    cdef Py_ssize_t panels = (a.n + 7) // 8
    cdef Py_ssize_t pairs = (panels + 1) // 2
    cdef Py_ssize_t i
    cdef bint together = ROOM_FOR_TWO and a.m > 1
    if Direct is Q4_0 or Direct is Q4_1 or Direct is Q4_K:
        together = together or a.m >= PAIRED
    if together:
        for i in range(2 * share_start(pairs, ith, nth), 2 * share_start(pairs, ith + 1, nth), 2):
            if i + 1 < panels:
                some_panels(args, <const TwoPanels*> NULL, a, i, scratch)
            else:
                some_panels(args, <const OnePanel*> NULL, a, i, scratch)
    else:
        for i in range(share_start(panels, ith, nth), share_start(panels, ith + 1, nth)):
            some_panels(args, <const OnePanel*> NULL, a, i, scratch)


cdef inline void some_codes(const Tag* args, const Panels* panels, const LinearArgs* a, Py_ssize_t i,
                            char* scratch) noexcept nogil:
    """Panel ``i``, or that and the next one, times all columns by way of code panels. The pointer's type selects the tile.

    A few columns take a panel piece by piece; for many it is expanded as a whole, once.
    """
    cdef int count = count_of(panels)
    cdef f8 acc[2 * TILE]
    cdef int size = 32 if (Tag is Eight or Tag is Twelve or Tag is Signed or Tag is Sixteen) else 256
    cdef Py_ssize_t nb = a.k // a.block
    cdef Py_ssize_t na = a.k // size
    cdef Py_ssize_t piece = nb if a.m > TILE else min(nb, <Py_ssize_t> (PIECE // a.block))
    cdef Py_ssize_t b, t = 0, blocks
    cdef char* codes[2]
    cdef char* raw = scratch + count * up64(piece * a.unit)
    cdef const char* p
    cdef const char* const* starts = <const char* const*> codes
    cdef Py_ssize_t at
    cdef int nc, c, e
    for e in range(count):
        codes[e] = scratch + e * up64(piece * a.unit)
    while t < a.m:
        nc = <int> min(<Py_ssize_t> TILE, a.m - t)
        for c in range(count * nc):
            acc[c] = f8_zero()
        b = 0
        while b < nb:
            blocks = min(piece, nb - b)
            for e in range(count if t == 0 else 0):
                p = a.w + 8 * (i + e) * a.row_bytes
                if a.packed:
                    p += 8 * b * a.nbytes
                    # While the tile works, the next piece can come in.
                    if piece < nb:
                        for c in range((8 * blocks * a.nbytes + 63) // 64):
                            fu_prefetch(p + 8 * blocks * a.nbytes + 64 * c)
                else:
                    pack_panel(a, p + b * a.nbytes, <int> min(<Py_ssize_t> 8, a.n - 8 * (i + e)), blocks,
                               p + 8 * a.row_bytes + 8 * b * a.nbytes, raw)
                    p = raw
                a.expand(p, blocks, a.grid, codes[e])
            at = t * na + b * a.block // size * nc
            # A constant number of columns where it is one.
            if nc == 1:
                tile_codes(args, panels, starts, blocks * a.block // size, at, 1, acc)
            else:
                tile_codes(args, panels, starts, blocks * a.block // size, at, nc, acc)
            b += blocks
        put_tile(panels, a, i, t, nc, acc)
        t += TILE


cdef inline void tile_codes(const Tag* args, const Panels* panels, const char* const* codes, Py_ssize_t blocks,
                            Py_ssize_t at, int nc, f8* acc) noexcept nogil:
    """The tile of a tag: ``blocks`` blocks of activations, the first one being number ``at``."""
    cdef const LinearArgs* a = <const LinearArgs*> args
    if Tag is Ternary:
        tile_ternary(panels, codes, blocks, a.qs + 256 * at, a.d + at, a.aux + 48 * at, nc, acc)
    elif Tag is Eight or Tag is Twelve or Tag is Signed or Tag is Sixteen:
        tile_codes_32(args, panels, codes, blocks, a.qs + 32 * at, a.d + at, a.aux + 4 * at, nc, acc)
    else:
        tile_codes_k(args, panels, codes, blocks, a.qs + 256 * at, a.d + at, a.aux + 48 * at, nc, acc)


cdef inline void linear_codes(const Tag* args, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    """Share ``ith`` of the panels by way of code panels, see ``linear_quant``."""
    cdef const LinearArgs* a = <const LinearArgs*> args
    cdef char* scratch = a.scratch + ith * a.scratch_stride
    cdef Py_ssize_t panels = (a.n + 7) // 8
    cdef Py_ssize_t pairs = (panels + 1) // 2
    cdef Py_ssize_t i
    if ROOM_FOR_TWO and a.m > 1:
        for i in range(2 * share_start(pairs, ith, nth), 2 * share_start(pairs, ith + 1, nth), 2):
            if i + 1 < panels:
                some_codes(args, <const TwoPanels*> NULL, a, i, scratch)
            else:
                some_codes(args, <const OnePanel*> NULL, a, i, scratch)
    else:
        for i in range(share_start(panels, ith, nth), share_start(panels, ith + 1, nth)):
            some_codes(args, <const OnePanel*> NULL, a, i, scratch)
