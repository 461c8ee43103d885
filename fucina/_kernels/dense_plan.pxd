"""A dense product as a request and a plan: the rectangles it is cut into, the blocks of each, where b comes from.

    DIRECT   as it stands, when its columns lie next to each other
    STREAM   as it stands, when its columns are contiguous along k and rows are few: weights, read once
    STRIP    a strip of columns, packed by the worker
    PANELS   constant weights, packed once and for all
    HALVES   the same in 16 bits

What is chosen decides the speed and never the bits; the constants are measured.
"""

from libc.stdint cimport int64_t

from dense_pack cimport GAP

# Number types.
cdef enum:
    F32 = 0
    F16 = 1
    BF16 = 2
    F64 = 3
    PACKED = 16     # added to the type of b: it is in panels already

cdef enum:
    DIRECT = 1
    STREAM = 2
    STRIP = 3
    PANELS = 4
    HALVES = 5

# A block of a, MC x KC, takes 360 KB of a second-level cache of 512 KB and stays there while the panels of b pass; a panel
# takes 32 KB and is read by all groups of rows in turn. 512 x 180 is 2-3 % faster than 384 x 120 from 512^3 to 2048^3, other
# depths (256), heights (72) and widths (512, 2048) are up to 1 % slower (AMD Zen 3, 2026-11-30).
cdef enum:
    KC = 512            # depth of a block
    MC = 180            # rows of a block; half as many of f64
    NB = 1024           # columns of a rectangle
    AXES = 32           # of a batch, at most
    PARTS = 4           # rectangles per thread, at most
    GRAIN = 1 << 22     # multiply-adds of a rectangle, at least

cdef struct Args:
    const char* a
    const char* b
    char* c
    const float* bias
    Py_ssize_t m, n, k
    Py_ssize_t ars, aks, bks, bcs, crs, ccs
    int at, bt, ct
    bint accumulate
    Py_ssize_t es, width
    # batches: the leading axes, with strides of 0 where an operand is shared
    Py_ssize_t batches
    int axes
    Py_ssize_t[AXES] shape
    Py_ssize_t[AXES] sa
    Py_ssize_t[AXES] sb
    Py_ssize_t[AXES] sc
    # plan
    int source
    bint pack_a, direct_c
    Py_ssize_t mb, nb, mc, kc, strip
    Py_ssize_t panel_bytes
    Py_ssize_t a_at, b_at, edge_at, c_at, work_bytes
    char* work
    int64_t counter


cdef inline Py_ssize_t even(Py_ssize_t total, Py_ssize_t most, Py_ssize_t unit) noexcept nogil:
    """The size of the fewest equal parts of ``total`` that are at most ``most``; a multiple of ``unit``."""
    cdef Py_ssize_t parts = (total + most - 1) // most
    return ((total + parts - 1) // parts + unit - 1) // unit * unit


cdef inline bint better_turned(const Args* g) noexcept nogil:
    """Whether the transposed product, the same bits, is the better one: c lies by columns, or is only a few columns wide,
    which would fill a fraction of each panel."""
    cdef Py_ssize_t size = 8 if g.ct == F64 else 4 if g.ct == F32 else 2
    if g.bt >= PACKED:
        return False
    if g.ccs != size and g.crs == size:
        return True
    if g.ccs == size and g.crs == size:
        return g.n < g.m
    return g.n <= 8 and g.n < g.m and g.m >= g.width


cdef inline void turn(Args* g) noexcept nogil:
    """The transposed request: c^T = b^T a^T."""
    cdef Py_ssize_t n
    cdef int i
    g.a, g.b = g.b, g.a
    g.at, g.bt = g.bt, g.at
    g.m, g.n = g.n, g.m
    g.ars, g.bcs = g.bcs, g.ars
    g.aks, g.bks = g.bks, g.aks
    g.crs, g.ccs = g.ccs, g.crs
    for i in range(g.axes):
        n = g.sa[i]
        g.sa[i] = g.sb[i]
        g.sb[i] = n


cdef inline Py_ssize_t most_rows(const Args* g) noexcept nogil:
    return MC * 4 // g.es


cdef inline Py_ssize_t parts_for(const Args* g, Py_ssize_t nth) noexcept nogil:
    """As many rectangles as keep a team busy."""
    return 1 if nth <= 1 else min(PARTS * nth, max(nth, g.m * g.n * g.k // GRAIN))


cdef inline void cut(Args* g, Py_ssize_t parts) noexcept nogil:
    """About so many rectangles, of the shape that packs the least."""
    cdef Py_ssize_t down, across, best = 0, cost, most = 1
    g.mb = g.m
    g.nb = (g.n + g.width - 1) // g.width * g.width
    parts = (parts + g.batches - 1) // g.batches
    if parts > 1:
        most = min(parts, g.m // 24)
        for down in range(1, max(most, <Py_ssize_t> 1) + 1):
            across = min((parts + down - 1) // down, (g.n + g.width - 1) // g.width)
            # Packed in all: a once per column of rectangles, b once per row of them.
            cost = across * g.m + (down * g.n if g.source == STRIP else 0)
            if across * down * 2 >= parts and (best == 0 or cost < best):
                best = cost
                g.mb = even(g.m, (g.m + down - 1) // down, 6)
                g.nb = even(g.n, (g.n + across - 1) // across, g.width)
    # A narrow rectangle keeps its part of c and of b in the last cache while the blocks of k pass.
    if g.m > 6:
        g.nb = min(g.nb, NB)
    if not g.direct_c:
        g.nb = min(g.nb, <Py_ssize_t> 1024)


cdef inline void plan(Args* g, int route, Py_ssize_t parts) noexcept nogil:
    cdef bint native_a = g.at == F32 or g.at == F64
    cdef bint unit_a = native_a and (g.aks == g.es or g.ars == g.es)
    cdef bint unit_b = (g.bt == F32 or g.bt == F64) and g.bcs == g.es
    cdef bint along_k = g.bks == (2 if g.bt == F16 or g.bt == BF16 else g.es) and g.bcs >= 0
    cdef Py_ssize_t room, deep = KC
    g.direct_c = (g.ct == F32 or g.ct == F64) and g.ccs == g.es
    if g.bt >= PACKED:
        route = PANELS if g.bt == PACKED + F32 or g.bt == PACKED + F64 else HALVES
    elif route == DIRECT and not unit_b:
        route = STRIP
    elif route == STREAM and (g.m > 4 or g.n < g.width or not native_a or g.aks != g.es or not along_k):
        route = STRIP
    elif route == 0:
        route = STRIP
        # Packing b costs as much as a few rows of products, and pays where b is read often from behind the first-level
        # cache, or lies at distances that share its places.
        if unit_b and (g.m <= 6 or g.bks % 2048 != 0 and (g.m <= 16 or g.k * g.n * g.es < 32768)):
            route = DIRECT
        elif g.m <= 4 and g.n >= g.width and native_a and g.aks == g.es and along_k:
            route = STREAM
    g.source = route
    g.panel_bytes = (32 if route == HALVES else 64) * g.k
    cut(g, parts)
    # Few rows: b is read once, and long runs suit the memory better than blocks that fit a cache. One row takes next to no
    # cache, and where its panels are divided, streams break off.
    if g.m <= 6 and route >= PANELS:
        deep = 16384 if g.m == 1 else 2048
    elif g.m <= 6 and route == DIRECT and g.k * g.n > (16384 if g.m <= 3 else 1 << 21):
        deep = 8
    g.kc = even(g.k, deep, 8)
    g.mc = min(even(g.mb, most_rows(g), 6), g.mb)
    # 16-bit panels meet rows of a as they stand or packed, which is enough; columns of a would be one more set of tiles.
    g.pack_a = (not unit_a or (route == HALVES and g.aks != g.es)
                or (g.m >= 12 and g.n >= 96 and (g.m * g.k > 16384 or g.aks != g.es)))
    g.strip = g.nb
    if route == STRIP:
        g.strip = min(g.nb, 4 * g.width if g.mb <= g.mc else NB)
    # The workspace of one worker.
    g.a_at = 0
    room = (g.kc * 6 * g.es + GAP) * ((g.mc + 5) // 6) if g.pack_a else 0
    g.b_at = (room + 63) // 64 * 64
    # Packed weights are read where they lie.
    room = 64 * (g.kc + 1) if route < PANELS else 0
    if route == STRIP:
        room *= (g.strip + g.width - 1) // g.width
    g.edge_at = g.b_at + room
    g.c_at = g.edge_at + 64 * g.mb
    g.work_bytes = g.c_at
    if not g.direct_c:
        g.work_bytes += g.mb * 64 * ((g.nb + g.width - 1) // g.width)
    if route == STREAM:
        g.work_bytes = 0
