"""Dense products: c[i, j] = sum_p a[i, p] * b[p, j] (+ bias[j]), alone or in batches.

Every output is one chain of fused multiply-adds over p in ascending order, from 0 or from the old c, so its bits do not
depend on blocking, packing, orientation, threads or instruction set. f16 and bf16 are widened exactly, the sum is f32,
and a 16-bit result is rounded once. Operands may have any strides.

The product is cut into rectangles of c. Workers draw rectangles from a counter until none is left or, in a step of a
program, have a share of them; each packs what it needs in its own workspace, and nobody waits for anybody. Inside a
rectangle: blocks of k, strips of columns, blocks of rows, and then the register tile of ``micro.pxd``. What is cut how,
and where b comes from, is planned in ``dense_plan.pxd``.
"""

from cpython.buffer cimport PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint16_t
from libc.string cimport memset

from dense_pack cimport GAP, Elem, bf16, pack_panels, pack_rows, read_rows, store_panel16, write_rows
from dense_plan cimport (
    BF16, DIRECT, F16, F32, F64, PACKED, PANELS, STREAM, STRIP, Args, better_turned, parts_for, plan, turn,
)
from dense_stream cimport Row1, Row2, Row3, Row4, stream
from micro cimport (
    AHEAD, Apart, BF16Panel, ByColumn, ByRow, F16Apart, F16Panel, Grouped, Order, Panel, Pitch, Shape, T14, T22, T32,
    Vec, along_b, tile, tile_of,
)
from simd cimport d4, f8, fu_prefetch
from team cimport core_t, fu_ticket, run_team, share_start, step_of

cdef enum:
    FEW = 12        # groups of rows that read a panel from memory more than they compute with it
    SMALL = 8192    # bytes of workspace that the stack offers, so that tiny products need no other


# ---- one block ------------------------------------------------------------------------------------------------------

cdef inline Py_ssize_t several(const Shape* shape, const Order* order, const Pitch* pitch, const Vec* vec,
                               Py_ssize_t panels, Py_ssize_t kc, const char* a, Py_ssize_t lda, const char* b,
                               Py_ssize_t ldb, Py_ssize_t next_panel, char* c, Py_ssize_t ldc, bint fresh) noexcept nogil:
    """A few rows times as many panels as tiles of ``shape`` take at a time; returns how many that were.

    Packed panels are read as that many streams far from each other: where a panel ends the next of its stream goes on, and
    what was fetched ahead is not lost. With neighbours at a time instead, tokens of F16 and BF16 weights took 1.11 to 1.19
    times as long on one thread, 1.03 to 1.11 on two (AMD Zen 4, 2026-11). Panels that stand side by side are read so.
    """
    cdef bint beside = Pitch is Apart or Pitch is F16Apart
    cdef Py_ssize_t count = <Py_ssize_t> sizeof(Shape) % 8, turns = panels // count
    cdef Py_ssize_t far = 1 if beside else turns, i, j
    for i in range(turns):
        j = count * i if beside else i
        tile(shape, order, pitch, vec, a, lda, b + j * next_panel, ldb, far * next_panel, kc, c + 64 * j, ldc, 64 * far,
             fresh, NULL, 0)
    return count * turns


cdef void block(const Order* order, const Pitch* pitch, const Vec* vec, Py_ssize_t rows, Py_ssize_t panels, Py_ssize_t kc,
                const char* a, Py_ssize_t lda, Py_ssize_t next_group, const char* b, Py_ssize_t ldb, Py_ssize_t next_panel,
                char* c, Py_ssize_t ldc, bint fresh) noexcept nogil:
    """``rows`` rows times whole panels; a panel of b stays in the first-level cache while all rows pass. ``next_group`` is
    the distance between packed groups of rows."""
    cdef Py_ssize_t groups = (rows + 5) // 6
    cdef Py_ssize_t base = rows // groups, extra = rows - base * groups
    cdef Py_ssize_t next_row = lda if Order is ByRow else 4 if Vec is f8 else 8
    cdef Py_ssize_t j = 0, g, i, p, bytes_of_p = along_b(pitch, ldb)
    cdef const char* panel
    cdef const char* soon
    cdef int n
    # Too few rows for one panel to fill the pipes: several panels at once.
    if Order is not Grouped:
        if rows == 1:
            j = several(<const T14*> NULL, order, pitch, vec, panels, kc, a, lda, b, ldb, next_panel, c, ldc, fresh)
        elif rows == 2:
            j = several(<const T22*> NULL, order, pitch, vec, panels, kc, a, lda, b, ldb, next_panel, c, ldc, fresh)
        elif rows == 3:
            j = several(<const T32*> NULL, order, pitch, vec, panels, kc, a, lda, b, ldb, next_panel, c, ldc, fresh)
    while j < panels:
        panel = b + j * next_panel
        i = 0
        for g in range(groups):
            n = <int> (base + (g < extra))
            # Meanwhile the next rows of c: the chains cannot start without them.
            soon = c + 64 * j + (i + n) * ldc if g + 1 < groups else c + 64 * (j + 1)
            for p in range(6):
                fu_prefetch(soon + p * ldc)
            # And a share of the next panel. With few rows that is as much work for the memory as the tile is for the
            # processor, so the tile spreads it evenly; one group of rows only runs ahead of itself.
            if groups == 1:
                soon = panel + AHEAD
            else:
                soon = panel + next_panel + g * kc // groups * bytes_of_p
            if Pitch is not Apart and groups > FEW:
                for p in range(((g + 1) * kc // groups - g * kc // groups) * bytes_of_p // 64):
                    fu_prefetch(soon + 64 * p)
            tile_of(n, order, pitch, vec, a + (g * next_group if Order is Grouped else i * next_row), lda, panel, ldb, kc,
                    c + 64 * j + i * ldc, ldc, fresh, soon, bytes_of_p // groups if groups <= FEW else 0)
            i += n
        j += 1


cdef inline void block_of(const Args* g, const Pitch* pitch, const Vec* vec, Py_ssize_t rows, Py_ssize_t panels,
                          Py_ssize_t kc, const char* a, const char* b, Py_ssize_t ldb, Py_ssize_t next_panel, char* c,
                          Py_ssize_t ldc, bint fresh) noexcept nogil:
    if g.pack_a:
        block(<const Grouped*> NULL, pitch, vec, rows, panels, kc, a, 0, 6 * g.es * kc + GAP, b, ldb, next_panel, c, ldc,
              fresh)
    elif g.aks == g.es:
        block(<const ByRow*> NULL, pitch, vec, rows, panels, kc, a, g.ars, 0, b, ldb, next_panel, c, ldc, fresh)
    elif Pitch is Panel or Pitch is Apart:
        block(<const ByColumn*> NULL, pitch, vec, rows, panels, kc, a, g.aks, 0, b, ldb, next_panel, c, ldc, fresh)


cdef inline void any_block(const Args* g, Py_ssize_t rows, Py_ssize_t panels, Py_ssize_t kc, const char* a,
                           const char* b, Py_ssize_t ldb, Py_ssize_t next_panel, char* c, Py_ssize_t ldc,
                           bint fresh) noexcept nogil:
    """The block for the number type and the layouts of a and b."""
    if panels == 0:
        return
    if g.bt == PACKED + F16:
        block_of(g, <const F16Panel*> NULL, <const f8*> NULL, rows, panels, kc, a, b, ldb, next_panel, c, ldc, fresh)
    elif g.bt == PACKED + BF16:
        block_of(g, <const BF16Panel*> NULL, <const f8*> NULL, rows, panels, kc, a, b, ldb, next_panel, c, ldc, fresh)
    elif g.es == 4:
        if ldb == 64:
            block_of(g, <const Panel*> NULL, <const f8*> NULL, rows, panels, kc, a, b, ldb, next_panel, c, ldc, fresh)
        else:
            block_of(g, <const Apart*> NULL, <const f8*> NULL, rows, panels, kc, a, b, ldb, next_panel, c, ldc, fresh)
    elif ldb == 64:
        block_of(g, <const Panel*> NULL, <const d4*> NULL, rows, panels, kc, a, b, ldb, next_panel, c, ldc, fresh)
    else:
        block_of(g, <const Apart*> NULL, <const d4*> NULL, rows, panels, kc, a, b, ldb, next_panel, c, ldc, fresh)


# ---- copies by number type ----------------------------------------------------------------------------------------------

cdef void panels_of(int kind, const char* b, Py_ssize_t ks, Py_ssize_t cs, Py_ssize_t kc, Py_ssize_t columns, char* to,
                    Py_ssize_t next_panel) noexcept nogil:
    if kind == F32:
        pack_panels(<const float*> b, ks, cs, kc, columns, to, next_panel)
    elif kind == F16:
        pack_panels(<const uint16_t*> b, ks, cs, kc, columns, to, next_panel)
    elif kind == BF16:
        pack_panels(<const bf16*> b, ks, cs, kc, columns, to, next_panel)
    else:
        pack_panels(<const double*> b, ks, cs, kc, columns, to, next_panel)


cdef void rows_of(int kind, const char* a, Py_ssize_t rs, Py_ssize_t ks, Py_ssize_t rows, Py_ssize_t kc,
                  char* to) noexcept nogil:
    if kind == F32:
        pack_rows(<const float*> a, rs, ks, rows, kc, to)
    elif kind == F16:
        pack_rows(<const uint16_t*> a, rs, ks, rows, kc, to)
    elif kind == BF16:
        pack_rows(<const bf16*> a, rs, ks, rows, kc, to)
    else:
        pack_rows(<const double*> a, rs, ks, rows, kc, to)


cdef void fetch(int kind, const char* c, Py_ssize_t rs, Py_ssize_t cs, Py_ssize_t rows, Py_ssize_t columns, char* to,
                Py_ssize_t ld) noexcept nogil:
    if kind == F32:
        read_rows(<const float*> c, rs, cs, rows, columns, to, ld)
    elif kind == F16:
        read_rows(<const uint16_t*> c, rs, cs, rows, columns, to, ld)
    elif kind == BF16:
        read_rows(<const bf16*> c, rs, cs, rows, columns, to, ld)
    else:
        read_rows(<const double*> c, rs, cs, rows, columns, to, ld)


cdef void deliver(int kind, char* c, Py_ssize_t rs, Py_ssize_t cs, Py_ssize_t rows, Py_ssize_t columns,
                  const char* buf, Py_ssize_t ld) noexcept nogil:
    if kind == F32:
        write_rows(<float*> c, rs, cs, rows, columns, buf, ld)
    elif kind == F16:
        write_rows(<uint16_t*> c, rs, cs, rows, columns, buf, ld)
    elif kind == BF16:
        write_rows(<bf16*> c, rs, cs, rows, columns, buf, ld)
    else:
        write_rows(<double*> c, rs, cs, rows, columns, buf, ld)


cdef void add_bias(const float* bias, Py_ssize_t rows, Py_ssize_t columns, char* c, Py_ssize_t ld) noexcept nogil:
    cdef Py_ssize_t i, j
    cdef float* row
    for i in range(rows):
        row = <float*> (c + i * ld)
        for j in range(columns):
            row[j] += bias[j]


cdef inline void stream_rows(int rows, const Elem* w, Py_ssize_t cs, Py_ssize_t k, const char* a, Py_ssize_t ars,
                             char* c) noexcept nogil:
    if rows == 1:
        stream(<const Row1*> NULL, w, cs, k, a, ars, c)
    elif rows == 2:
        stream(<const Row2*> NULL, w, cs, k, a, ars, c)
    elif rows == 3:
        stream(<const Row3*> NULL, w, cs, k, a, ars, c)
    else:
        stream(<const Row4*> NULL, w, cs, k, a, ars, c)


# ---- one rectangle ------------------------------------------------------------------------------------------------------

cdef void streamed(const Args* g, const char* a, const char* b, char* c, Py_ssize_t j0, Py_ssize_t columns) noexcept nogil:
    """Columns from j0 for all rows, a panel at a time. The last panel of b begins early enough to be whole; its outputs
    that another panel has too are thrown away."""
    cdef char[256] buf
    cdef Py_ssize_t j = j0, skip, n
    cdef int rows = <int> g.m
    while j < j0 + columns:
        n = min(g.width, j0 + columns - j)
        skip = max(j + g.width - g.n, <Py_ssize_t> 0)
        memset(buf, 0, 256)
        if g.accumulate:
            fetch(g.ct, c + j * g.ccs, g.crs, g.ccs, rows, n, buf + skip * g.es, 64)
        if g.bt == F32:
            stream_rows(rows, <const float*> (b + (j - skip) * g.bcs), g.bcs, g.k, a, g.ars, buf)
        elif g.bt == F16:
            stream_rows(rows, <const uint16_t*> (b + (j - skip) * g.bcs), g.bcs, g.k, a, g.ars, buf)
        elif g.bt == BF16:
            stream_rows(rows, <const bf16*> (b + (j - skip) * g.bcs), g.bcs, g.k, a, g.ars, buf)
        else:
            stream_rows(rows, <const double*> (b + (j - skip) * g.bcs), g.bcs, g.k, a, g.ars, buf)
        if g.bias != NULL:
            add_bias(g.bias + j, rows, n, buf + skip * g.es, 64)
        deliver(g.ct, c + j * g.ccs, g.crs, g.ccs, rows, n, buf + skip * g.es, 64)
        j += n


cdef void rectangle(const Args* g, const char* a, const char* b, char* c, Py_ssize_t i0, Py_ssize_t rows, Py_ssize_t j0,
                    Py_ssize_t columns, char* work) noexcept nogil:
    cdef const char* ablock
    cdef const char* bstrip
    cdef const char* btail
    cdef char* edge = work + g.edge_at
    cdef char* main
    cdef char* ctail
    cdef Py_ssize_t ldc, ldt, ldb = 64, next_panel, p = 0, kc, s, width, whole, tail, i, mc
    cdef bint fresh
    a += i0 * g.ars
    c += i0 * g.crs + j0 * g.ccs
    b += j0 * g.bcs
    # Where the tile writes: c itself and, for the last columns that do not fill a panel, `edge`; or all into a buffer.
    tail = columns % g.width
    if g.direct_c:
        main, ldc = c, g.crs
        if g.accumulate and tail:
            fetch(g.ct, c + (columns - tail) * g.ccs, g.crs, g.ccs, rows, tail, edge, 64)
    else:
        main, ldc = work + g.c_at, 64 * ((columns + g.width - 1) // g.width)
        if g.accumulate:
            fetch(g.ct, c, g.crs, g.ccs, rows, columns, main, ldc)
    while p < g.k:
        kc = min(g.kc, g.k - p)
        fresh = p == 0 and not g.accumulate
        if g.pack_a and rows <= g.mc:
            rows_of(g.at, a + p * g.aks, g.ars, g.aks, rows, kc, work + g.a_at)
        s = 0
        while s < columns:
            width = min(g.strip, columns - s)
            whole = width // g.width
            tail = width - whole * g.width
            # One line more than the panel, or panels compete for the same places of the cache.
            next_panel = 64 * (kc + 1)
            bstrip = work + g.b_at
            if g.source == DIRECT:
                bstrip, ldb, next_panel = b + p * g.bks + s * g.bcs, g.bks, 64
                if tail:
                    panels_of(g.bt, bstrip + 64 * whole, g.bks, g.bcs, kc, tail, work + g.b_at, 0)
            elif g.source == STRIP:
                panels_of(g.bt, b + p * g.bks + s * g.bcs, g.bks, g.bcs, kc, width, work + g.b_at, next_panel)
            else:
                next_panel = g.panel_bytes
                bstrip = g.b + (j0 + s) // g.width * next_panel + (64 if g.source == PANELS else 32) * p
            btail = work + g.b_at if g.source == DIRECT else bstrip + whole * next_panel
            if g.direct_c:
                ctail, ldt = edge, 64
            else:
                ctail, ldt = main + (s + width - tail) * g.es, ldc
            i = 0
            while i < rows:
                mc = min(g.mc, rows - i)
                ablock = a + p * g.aks + i * g.ars
                if g.pack_a:
                    if rows > g.mc:
                        rows_of(g.at, ablock, g.ars, g.aks, mc, kc, work + g.a_at)
                    ablock = work + g.a_at
                any_block(g, mc, whole, kc, ablock, bstrip, ldb, next_panel, main + i * ldc + s * g.es, ldc, fresh)
                if tail:
                    any_block(g, mc, 1, kc, ablock, btail, 64, 0, ctail + i * ldt, ldt, fresh)
                i += mc
            s += width
        p += kc
    if not g.direct_c:
        if g.bias != NULL:
            add_bias(g.bias + j0, rows, columns, main, ldc)
        deliver(g.ct, c, g.crs, g.ccs, rows, columns, main, ldc)
        return
    tail = columns % g.width
    whole = columns - tail
    if g.bias != NULL:
        add_bias(g.bias + j0, rows, whole, c, g.crs)
    if tail:
        if g.bias != NULL:
            add_bias(g.bias + j0 + whole, rows, tail, edge, 64)
        deliver(g.ct, c + whole * g.es, g.crs, g.ccs, rows, tail, edge, 64)


cdef void piece(const Args* g, Py_ssize_t t, char* work) noexcept nogil:
    """Rectangle ``t``; with the rows as the fastest index, neighbours in time share columns."""
    cdef Py_ssize_t down = (g.m + g.mb - 1) // g.mb
    cdef Py_ssize_t across = (g.n + g.nb - 1) // g.nb
    cdef Py_ssize_t i, j, n, at = 0, bt = 0, ct = 0
    cdef int axis
    i = t % down * g.mb
    t = t // down
    j = t % across * g.nb
    t = t // across
    for axis in range(g.axes - 1, -1, -1):
        n = t % g.shape[axis]
        t = t // g.shape[axis]
        at += n * g.sa[axis]
        bt += n * g.sb[axis]
        ct += n * g.sc[axis]
    if g.source == STREAM:
        streamed(g, g.a + at, g.b + bt, g.c + ct, j, min(g.nb, g.n - j))
    else:
        rectangle(g, g.a + at, g.b + bt, g.c + ct, i, min(g.mb, g.m - i), j, min(g.nb, g.n - j), work)


cdef inline Py_ssize_t pieces(const Args* g) noexcept nogil:
    return (g.m + g.mb - 1) // g.mb * ((g.n + g.nb - 1) // g.nb) * g.batches


cdef void matmul(const Args* g, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    """Draw rectangles until none is left."""
    cdef Py_ssize_t t, count = pieces(g)
    while True:
        t = fu_ticket(&(<Args*> g).counter)
        if t >= count:
            return
        piece(g, t, g.work + ith * g.work_bytes)


cdef void linear(const Args* recorded, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    """A share of the rectangles, as they are cut for the number of rows of this run."""
    cdef Args g = recorded[0]
    cdef Py_ssize_t t, count
    plan(&g, 0, nth)
    count = pieces(&g)
    for t in range(share_start(count, ith, nth), share_start(count, ith + 1, nth)):
        piece(&g, t, g.work + ith * g.work_bytes)


# ---- constant weights ---------------------------------------------------------------------------------------------------

cdef struct Pack:
    const char* w
    char* to
    Py_ssize_t n, k, width, panel_bytes
    int kind


cdef void pack_core(const Pack* g, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    cdef Py_ssize_t panels = (g.n + g.width - 1) // g.width
    cdef Py_ssize_t es = 8 if g.kind == F64 else 4 if g.kind == F32 else 2
    cdef Py_ssize_t j
    cdef int n
    for j in range(share_start(panels, ith, nth), share_start(panels, ith + 1, nth)):
        n = <int> min(g.width, g.n - j * g.width)
        if g.kind == F16 or g.kind == BF16:
            store_panel16(g.w + j * 16 * g.k * 2, 2 * g.k, n, g.k, g.to + j * g.panel_bytes)
        else:
            panels_of(g.kind, g.w + j * g.width * g.k * es, es, es * g.k, g.k, n, g.to + j * g.panel_bytes, g.panel_bytes)


def pack_weight_into_unchecked(int kind, const unsigned char[:, ::1] w, unsigned char[:, ::1] panels, Py_ssize_t nth):
    """The rows of ``w`` [n, bytes], numbers of type ``kind``, to panels; one row of ``panels`` holds one."""
    cdef Pack g
    g.w = <const char*> &w[0, 0]
    g.to = <char*> &panels[0, 0]
    g.kind = kind
    g.width = 8 if kind == F64 else 16
    g.n = w.shape[0]
    g.k = w.shape[1] // (8 if kind == F64 else 4 if kind == F32 else 2)
    g.panel_bytes = panels.shape[1]
    with nogil:
        run_team(<core_t> pack_core, &g, 4 * nth, nth)


# ---- the entry ------------------------------------------------------------------------------------------------------------

def matmul_into_unchecked(int at, a, int bt, b, int ct, c, const float[::1] bias, bint accumulate, int route,
                          unsigned char[::1] scratch, Py_ssize_t nth):
    """c [..., m, n] = a [..., m, k] times b [..., k, n] (+ bias [n]), or added to c.

    ``at``, ``bt``, ``ct``: 0 f32, 1 f16, 2 bf16 (as uint16), 3 f64; all of f64 or none. Arrays may have any strides that are
    multiples of their number size, and equal leading axes. ``bt`` + 16: b is one row of panels. ``route`` 0 chooses by
    itself. Returns 0, or the bytes of scratch it needs when there are not enough of them; then nothing was done.
    """
    cdef Args g
    cdef Py_buffer va, vb, vc
    cdef Py_ssize_t need
    cdef int i
    cdef char[SMALL + 64] small
    cdef bint bias_given = bias is not None
    PyObject_GetBuffer(a, &va, PyBUF_STRIDES)
    PyObject_GetBuffer(b, &vb, PyBUF_STRIDES)
    PyObject_GetBuffer(c, &vc, PyBUF_STRIDES | PyBUF_WRITABLE)
    with nogil:
        g.a, g.b, g.c = <const char*> va.buf, <const char*> vb.buf, <char*> vc.buf
        g.at, g.bt, g.ct = at, bt, ct
        g.es = 8 if at == F64 else 4
        g.width = 64 // g.es
        g.axes = va.ndim - 2
        g.m, g.k, g.n = va.shape[g.axes], va.shape[g.axes + 1], vc.shape[g.axes + 1]
        # A stride along an axis of one element means nothing; as the size of a number it is no obstacle.
        g.ars = va.strides[g.axes] if g.m > 1 else va.itemsize
        g.aks = va.strides[g.axes + 1] if g.k > 1 else va.itemsize
        g.crs = vc.strides[g.axes] if g.m > 1 else vc.itemsize * g.n
        g.ccs = vc.strides[g.axes + 1] if g.n > 1 else vc.itemsize
        g.bks, g.bcs = 0, 0
        if bt < PACKED:
            g.bks = vb.strides[g.axes] if g.k > 1 else vb.itemsize * g.n
            g.bcs = vb.strides[g.axes + 1] if g.n > 1 else vb.itemsize
        g.batches = 1
        for i in range(g.axes):
            g.shape[i] = va.shape[i]
            g.sa[i], g.sb[i], g.sc[i] = va.strides[i], vb.strides[i], vc.strides[i]
            g.batches *= g.shape[i]
        g.bias = NULL
        g.accumulate = accumulate
        if not bias_given and better_turned(&g):
            turn(&g)
        plan(&g, route, parts_for(&g, nth))
        need = nth * g.work_bytes
    if bias_given:
        g.bias = &bias[0]
    if need <= SMALL:
        g.work = small + 63 - (<size_t> small + 63) % 64
        need = 0
    elif scratch is not None and need <= scratch.shape[0]:
        g.work = <char*> &scratch[0]
        need = 0
    if need == 0:
        g.counter = 0
        with nogil:
            run_team(<core_t> matmul, &g, nth, nth)
    PyBuffer_Release(&va)
    PyBuffer_Release(&vb)
    PyBuffer_Release(&vc)
    return need


# ---- a step of a program ------------------------------------------------------------------------------------------------

cdef void fill(Args* g, int bt, Py_ssize_t m, Py_ssize_t n, Py_ssize_t k) noexcept nogil:
    """The request for c [m, n] = a [m, k] times panels, all but the addresses."""
    memset(g, 0, sizeof(Args))
    g.at, g.bt, g.ct = F32, bt, F32
    g.es, g.width, g.batches = 4, 16, 1
    g.m, g.n, g.k = m, n, k
    g.ars, g.aks, g.crs, g.ccs = 4 * k, 4, 4 * n, 4


def share_bytes(int bt, Py_ssize_t m, Py_ssize_t n, Py_ssize_t k, Py_ssize_t shares):
    """Bytes of scratch per share of a ``matmul_step`` for up to ``m`` rows."""
    cdef Args g
    cdef Py_ssize_t rows, most = 0
    with nogil:
        for rows in range(1, m + 1):
            fill(&g, bt, rows, n, k)
            plan(&g, 0, shares)
            most = max(most, g.work_bytes)
    return most


def matmul_step(int bt, const unsigned char[:, ::1] panels, const float[:, ::1] a, const float[::1] bias, float[:, ::1] c,
                unsigned char[::1] scratch):
    """c [m, n] = a [m, k] times ``panels`` (+ bias [n]) as a step of a program; ``scratch``: ``share_bytes`` per share."""
    cdef Args g
    fill(&g, bt, c.shape[0], c.shape[1], a.shape[1])
    g.a, g.b, g.c = <const char*> &a[0, 0], <const char*> &panels[0, 0], <char*> &c[0, 0]
    if bias is not None:
        g.bias = &bias[0]
    g.work = <char*> &scratch[0]
    return step_of(<core_t> linear, &g, sizeof(g), &g.m)
