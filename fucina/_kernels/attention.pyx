"""Attention with grouped heads, a causal limit and a sliding window, over f32, f16 or q8_0 keys and values.

    t[j] = scale * (q . k[j]) (+ bias[j]),   p[j] = e^(t[j] - max t),   y = sum_j p[j] v[j] / sum_j p[j]

for the keys j in [lo, hi) that the query may see. Orders, per query and head: q . k is one chain of fused
multiply-adds over the features; sum p runs in 16 virtual lanes from lo on, added as a fixed tree; sum p v is one chain
over j per feature. Nothing depends on which queries share the call or on threads: evaluating a prompt at once, in
chunks or token by token gives the same bits. Keys beyond a query's own limits are never read on its behalf.

A task is a tile of queries times some heads that share a key-value head; its rows are (query, head) pairs. Keys are
turned 16 at a time into a panel [d][16] (``turn.pxd``) and multiplied with the 6 x 16 tile, so a key is turned once for all
rows; scores stay in scratch [rows][keys]. Values are taken 16 features at a time, 128 keys long: by the tile itself where
they lie, out of a panel [keys][16 features] where they have scales. Rows of a tile share the keys that all of them see;
ragged ends are done row by row.

One query, as in generation, with up to four heads of a group has its own ways with keys and values (``one_query.pxd``).
"""

from libc.math cimport INFINITY
from libc.stdint cimport uint16_t
from libc.string cimport memset

from blocks cimport Q8_0
from dense_stream cimport Row1, Row2, Row3, Row4, Rows
from micro cimport Apart, F16Apart, F16Panel, Panel, rows_by_16
from one_query cimport FEW, FEW_KEYS, Cell, few_keys, few_values, load8, turn
from simd cimport (
    f8, f8_add, f8_hmax, f8_hsum, f8_load, f8_max, f8_mul, f8_set1, f8_store, f8_sub, f8_zero, fu_f16_f32,
)
from span cimport Batch, Place, Span
from team cimport core_t, run_team, step_of
from vmath cimport f8_exp, load_part, store_part

cdef enum:
    KEYS = 128      # keys per value panel

cdef struct Args:
    const float* q
    const char* k
    const char* v
    const float* bias       # [seq, kv_seq] or NULL
    float* out
    float* scratch
    Py_ssize_t scratch_stride                       # floats per share
    Py_ssize_t k_row, k_head, v_row, v_head         # strides in bytes of a position and of a head
    Py_ssize_t seq, kv_seq, heads, kv_heads, d, window
    Py_ssize_t tile, part                           # queries and heads of a task
    float scale
    int causal
    Py_ssize_t single                               # heads of a task when a sequence has one query
    Batch batch                                     # in a program: sequences and caches as they are at that run


cdef inline float load1(const Cell* p, Py_ssize_t i) noexcept nogil:
    if Cell is float:
        return p[i]
    elif Cell is uint16_t:
        return fu_f16_f32(p[i])
    else:
        return fu_f16_f32(p[i >> 5].d) * <float> p[i >> 5].qs[i & 31]


cdef void scores(const Cell* tag, const char* k, Py_ssize_t stride, Py_ssize_t count, int rows, const float* q,
                 Py_ssize_t d, float* panel, float* s, Py_ssize_t width) noexcept nogil:
    """s [rows, count] = q [rows, d] times ``count`` keys; up to 15 more are written."""
    cdef Py_ssize_t j = 0
    cdef int n
    while j < count:
        n = <int> min(<Py_ssize_t> 16, count - j)
        turn(tag, k + j * stride, stride, n, d, <char*> panel, 0)
        if Cell is uint16_t:
            rows_by_16(rows, <const F16Panel*> NULL, q, d, <const char*> panel, 0, d, s + j, width, True)
        else:
            rows_by_16(rows, <const Panel*> NULL, q, d, <const char*> panel, 0, d, s + j, width, True)
        j += 16


cdef void pack_values(const Cell* tag, const char* v, Py_ssize_t stride, Py_ssize_t count, Py_ssize_t e, Py_ssize_t d,
                      float* panel) noexcept nogil:
    """Features e .. e + 15 of ``count`` values to [count][16]; features beyond d are zero."""
    cdef Py_ssize_t j
    cdef int i
    cdef const Cell* p
    for j in range(count):
        p = <const Cell*> (v + j * stride)
        if e + 16 <= d:
            f8_store(panel + 16 * j, load8(p, e))
            f8_store(panel + 16 * j + 8, load8(p, e + 8))
        else:
            for i in range(16):
                panel[16 * j + i] = load1(p, e + i) if e + i < d else 0


cdef inline void weigh(const Cell* tag, bint whole, int rows, const float* p, Py_ssize_t ldp, const char* v,
                       Py_ssize_t stride, Py_ssize_t count, float* y, Py_ssize_t ldy) noexcept nogil:
    """y [rows, 16] += p [rows, count] times 16 features of ``count`` values: as they are stored or, not ``whole``, as
    ``pack_values`` leaves them."""
    if count <= 0:
        return
    if Cell is uint16_t and whole:
        rows_by_16(rows, <const F16Apart*> NULL, p, ldp, v, stride, count, y, ldy, False)
    elif whole:
        rows_by_16(rows, <const Apart*> NULL, p, ldp, v, stride, count, y, ldy, False)
    else:
        rows_by_16(rows, <const Panel*> NULL, p, ldp, v, stride, count, y, ldy, False)


cdef inline void few_rows(const Rows* rows, const Cell* tag, const Args* a, const char* k, const char* v, const float* q,
                          Py_ssize_t lo, Py_ssize_t hi, float* panel, float* y, float* s, float* out) noexcept nogil:
    """One query with sizeof(Rows) heads over the keys lo .. hi - 1; ``q``, ``y`` and ``out`` are [heads, d]."""
    cdef Py_ssize_t width = (hi - lo + 15) // 16 * 16
    cdef Py_ssize_t j, n, e, count
    cdef float[4] total
    k += lo * a.k_row
    v += lo * a.v_row
    j = few_keys(rows, tag, k, a.k_row, hi - lo, q, a.d, <char*> panel, s, width)
    scores(tag, k + j * a.k_row, a.k_row, hi - lo - j, <int> sizeof(Rows), q, a.d, panel, s + j, width)
    for n in range(<Py_ssize_t> sizeof(Rows)):
        total[n] = soften(s + n * width, hi - lo, a.scale, NULL)
    memset(y, 0, sizeof(Rows) * a.d * sizeof(float))
    j = 0
    while j < hi - lo:
        count = min(<Py_ssize_t> FEW_KEYS, hi - lo - j)
        few_values(rows, tag, v + j * a.v_row, a.v_row, count, s + j, width, a.d, y, a.d)
        j += count
    for n in range(<Py_ssize_t> sizeof(Rows)):
        for e in range(a.d):
            out[n * a.d + e] = y[n * a.d + e] / total[n]


cdef inline f8 scaled(const float* t, const float* bias, Py_ssize_t left, f8 scale) noexcept nogil:
    """Eight of ``left`` scores, -inf where there are none."""
    cdef float lanes[8]
    cdef f8 x
    if left >= 8:
        x = f8_mul(f8_load(t), scale)
        return x if bias == NULL else f8_add(x, f8_load(bias))
    x = f8_mul(load_part(t, left, 0), scale)
    if bias != NULL:
        x = f8_add(x, load_part(bias, left, 0))
    f8_store(lanes, x)
    return load_part(lanes, left, -INFINITY)


cdef float soften(float* t, Py_ssize_t n, float scale, const float* bias) noexcept nogil:
    """t = exp(scale * t + bias - max) in place; returns the sum. Scaling twice is cheaper than storing between."""
    cdef f8 by = f8_set1(scale)
    cdef f8 top = f8_set1(-INFINITY)
    cdef f8 s0 = f8_zero()
    cdef f8 s1 = f8_zero()
    cdef f8 x, y
    cdef Py_ssize_t j = 0
    while j < n:
        top = f8_max(scaled(t + j, NULL if bias == NULL else bias + j, n - j, by), top)
        j += 8
    top = f8_set1(f8_hmax(top))
    j = 0
    while j + 16 <= n:
        x = f8_exp(f8_sub(scaled(t + j, NULL if bias == NULL else bias + j, 8, by), top))
        y = f8_exp(f8_sub(scaled(t + j + 8, NULL if bias == NULL else bias + j + 8, 8, by), top))
        f8_store(t + j, x)
        f8_store(t + j + 8, y)
        s0 = f8_add(s0, x)
        s1 = f8_add(s1, y)
        j += 16
    if j < n:
        x = f8_exp(f8_sub(scaled(t + j, NULL if bias == NULL else bias + j, n - j, by), top))
        store_part(t + j, x, n - j)
        s0 = f8_add(s0, x)
        j += 8
    if j < n:
        x = f8_exp(f8_sub(scaled(t + j, NULL if bias == NULL else bias + j, n - j, by), top))
        store_part(t + j, x, n - j)
        s1 = f8_add(s1, x)
    return f8_hsum(f8_add(s0, s1))


cdef void task(const Cell* tag, const Args* a, Py_ssize_t kv_head, Py_ssize_t head, Py_ssize_t nheads, Py_ssize_t query,
               Py_ssize_t nq, float* scratch) noexcept nogil:
    """Queries query .. query + nq - 1, heads head .. head + nheads - 1, all on one key-value head."""
    cdef Py_ssize_t rows = nq * nheads
    cdef Py_ssize_t dp = (a.d + 15) // 16 * 16
    cdef Py_ssize_t first = a.kv_seq - a.seq + query        # position of the first query
    cdef Py_ssize_t lo = max(<Py_ssize_t> 0, first - a.window + 1) if a.window > 0 else 0
    cdef Py_ssize_t hi = first + nq if a.causal else a.kv_seq
    cdef Py_ssize_t width = (hi - lo + 15) // 16 * 16
    cdef float* panel = scratch                             # [max(d, KEYS)][64]
    cdef float* qrows = panel + 64 * max(dp, <Py_ssize_t> KEYS)    # [rows][d]
    cdef float* y = qrows + rows * dp                       # [rows][dp]
    cdef float* s = y + rows * dp                           # [rows][width]
    cdef const char* k = a.k + kv_head * a.k_head
    cdef const char* v = a.v + kv_head * a.v_head
    cdef Py_ssize_t r, i, e, n, g, gn, pos, b0, b1, c0, c1
    cdef Py_ssize_t rlo, rhi
    cdef float total
    cdef float* row
    cdef const char* values
    cdef Py_ssize_t pitch
    cdef bint whole, all_see
    if nq == 1 and nheads <= FEW and a.d % 32 == 0 and a.bias == NULL:
        row = <float*> a.q + (query * a.heads + head) * a.d
        hi = first + 1 if a.causal else a.kv_seq
        if nheads == 1:
            few_rows(<const Row1*> NULL, tag, a, k, v, row, lo, hi, panel, y, s, a.out + (row - a.q))
        elif nheads == 2:
            few_rows(<const Row2*> NULL, tag, a, k, v, row, lo, hi, panel, y, s, a.out + (row - a.q))
        elif nheads == 3:
            few_rows(<const Row3*> NULL, tag, a, k, v, row, lo, hi, panel, y, s, a.out + (row - a.q))
        else:
            few_rows(<const Row4*> NULL, tag, a, k, v, row, lo, hi, panel, y, s, a.out + (row - a.q))
        return
    for r in range(rows):
        for e in range(a.d):
            qrows[r * a.d + e] = a.q[((query + r // nheads) * a.heads + head + r % nheads) * a.d + e]
    scores(tag, k + lo * a.k_row, a.k_row, hi - lo, <int> rows, qrows, a.d, panel, s, width)
    for r in range(rows):
        pos = first + r // nheads
        rlo = max(<Py_ssize_t> 0, pos - a.window + 1) if a.window > 0 else 0
        rhi = pos + 1 if a.causal else a.kv_seq
        row = s + r * width + (rlo - lo)
        # The sum waits in the first column of the query's copy, which is no longer needed.
        qrows[r] = soften(row, rhi - rlo, a.scale,
                          NULL if a.bias == NULL else a.bias + (query + r // nheads) * a.kv_seq + rlo)
        for e in range(dp):
            y[r * dp + e] = 0
    b0 = lo
    while b0 < hi:
        b1 = min(b0 + KEYS, hi)
        all_see = (not a.causal or b1 <= first + 1) and (a.window <= 0 or b0 > first + nq - 1 - a.window)
        e = 0
        while e < dp:
            # A tile reads sixteen features where they are, unless a head ends among them or a block has a scale.
            whole = Cell is not Q8_0 and e + 16 <= a.d
            values, pitch = <const char*> panel, 64
            if whole:
                values, pitch = v + b0 * a.v_row + e * <Py_ssize_t> sizeof(Cell), a.v_row
            else:
                pack_values(tag, v + b0 * a.v_row, a.v_row, b1 - b0, e, a.d, panel)
            g = 0
            if all_see:
                weigh(tag, whole, <int> rows, s + (b0 - lo), width, values, pitch, b1 - b0, y + e, dp)
                g = rows
            while g < rows:
                gn = min(<Py_ssize_t> 6, rows - g)
                # Keys that all gn rows see: from the last row's lo to the first row's hi.
                pos = first + (g + gn - 1) // nheads
                c0 = max(<Py_ssize_t> 0, pos - a.window + 1) if a.window > 0 else 0
                c1 = first + g // nheads + 1 if a.causal else a.kv_seq
                c0 = min(max(c0, b0), b1)
                c1 = min(max(c1, c0), b1)
                for r in range(g, g + gn):
                    pos = first + r // nheads
                    i = max(b0, pos - a.window + 1) if a.window > 0 else b0
                    n = min(c0, pos + 1 if a.causal else a.kv_seq)
                    weigh(tag, whole, 1, s + r * width + (i - lo), width, values + (i - b0) * pitch, pitch, n - i,
                          y + r * dp + e, dp)
                weigh(tag, whole, <int> gn, s + g * width + (c0 - lo), width, values + (c0 - b0) * pitch, pitch, c1 - c0,
                      y + g * dp + e, dp)
                for r in range(g, g + gn):
                    pos = first + r // nheads
                    i = max(c1, pos - a.window + 1) if a.window > 0 else c1
                    n = min(b1, pos + 1 if a.causal else a.kv_seq)
                    weigh(tag, whole, 1, s + r * width + (i - lo), width, values + (i - b0) * pitch, pitch, n - i,
                          y + r * dp + e, dp)
                g += gn
            e += 16
        b0 = b1
    for r in range(rows):
        total = qrows[r]
        row = a.out + ((query + r // nheads) * a.heads + head + r % nheads) * a.d
        for e in range(a.d):
            row[e] = y[r * dp + e] / total


cdef void attention(const Cell* args, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    """Every nth-th task. The pointer's type only selects the cache type; it points to ``Args``."""
    cdef const Args* all = <const Args*> args
    cdef Args now = all[0]
    cdef const Args* a = &now
    cdef Py_ssize_t group = all.heads // all.kv_heads
    cdef Py_ssize_t sequences = 1 if all.batch.count == NULL else all.batch.count[0]
    cdef Py_ssize_t parts, tiles, s, g, h, q
    # Late queries see more keys: interleaving evens the shares out.
    cdef Py_ssize_t t = ith
    for s in range(sequences):
        if all.batch.count != NULL:
            now.q = all.q + all.batch.spans[s].first * all.heads * all.d
            now.out = all.out + all.batch.spans[s].first * all.heads * all.d
            now.k = all.batch.places[s].k
            now.v = all.batch.places[s].v
            now.k_head = now.v_head = all.batch.places[s].head
            now.seq = all.batch.spans[s].rows
            now.kv_seq = all.batch.spans[s].length
            now.part = all.single if now.seq == 1 else all.part
            now.tile = min(all.tile, now.seq)
        parts = (group + a.part - 1) // a.part
        tiles = (a.seq + a.tile - 1) // a.tile
        while t < tiles * a.kv_heads * parts:
            q = t // (a.kv_heads * parts) * a.tile
            g = t // parts % a.kv_heads
            h = t % parts * a.part
            task(args, a, g, g * group + h, min(a.part, group - h), q, min(a.tile, a.seq - q),
                 a.scratch + ith * a.scratch_stride)
            t += nth
        t -= tiles * a.kv_heads * parts


cdef core_t core_of(int code) noexcept nogil:
    if code == 0:
        return <core_t> attention[float]
    if code == 1:
        return <core_t> attention[uint16_t]
    return <core_t> attention[Q8_0]


def scratch_floats(Py_ssize_t rows, Py_ssize_t d, Py_ssize_t keys):
    """Floats of scratch for one share whose tasks have ``rows`` rows over ``keys`` keys."""
    cdef Py_ssize_t dp = (d + 15) // 16 * 16
    return 64 * max(dp, <Py_ssize_t> KEYS) + 2 * rows * dp + rows * (keys + 15) // 16 * 16 + 16 * rows


cdef Args filled(const float[:, :, ::1] q, Py_ssize_t kv_heads, const float[:, ::1] bias, float scale, bint causal,
                 Py_ssize_t window, float[:, :, ::1] out, Py_ssize_t tile, Py_ssize_t part, float[:, ::1] scratch):
    """All arguments but the keys and values."""
    cdef Args a
    a.q = &q[0, 0, 0]
    a.bias = NULL
    if bias is not None:
        a.bias = &bias[0, 0]
    a.out = &out[0, 0, 0]
    a.scratch = &scratch[0, 0]
    a.scratch_stride = scratch.shape[1]
    a.seq = q.shape[0]
    a.heads = q.shape[1]
    a.d = q.shape[2]
    a.kv_heads = kv_heads
    a.window = window
    a.tile = tile
    a.part = part
    a.scale = scale
    a.causal = causal
    a.single = part
    a.batch = Batch(NULL, NULL, NULL)
    return a


def attention_into_unchecked(int code, const float[:, :, ::1] q, const unsigned char[:, :, :] k,
                             const unsigned char[:, :, :] v, const float[:, ::1] bias, float scale, bint causal,
                             Py_ssize_t window, float[:, :, ::1] out, Py_ssize_t tile, Py_ssize_t part,
                             float[:, ::1] scratch, Py_ssize_t nth):
    """Queries [seq, heads, d] over keys and values [kv_seq, kv_heads, bytes] of f32 (code 0), f16 (1) or q8_0 (2).

    The queries are the last ``seq`` positions; ``window`` 0 is unlimited. ``tile`` queries times ``part`` heads make a
    task; ``scratch`` has a row of ``scratch_floats`` for each share.
    """
    cdef Args a = filled(q, k.shape[1], bias, scale, causal, window, out, tile, part, scratch)
    a.k = <const char*> &k[0, 0, 0]
    a.v = <const char*> &v[0, 0, 0]
    a.k_row, a.k_head = k.strides[0], k.strides[1]
    a.v_row, a.v_head = v.strides[0], v.strides[1]
    a.kv_seq = k.shape[0]
    with nogil:
        run_team(core_of(code), &a, scratch.shape[0], nth)


def attention_step(int code, const float[:, :, ::1] q, Py_ssize_t kv_heads, Py_ssize_t cell_bytes, float scale,
                   Py_ssize_t window, float[:, :, ::1] out, Py_ssize_t tile, Py_ssize_t part, Py_ssize_t single,
                   float[:, ::1] scratch, const long long[:, ::1] spans, const long long[:, ::1] places,
                   const long long[::1] count):
    """Causal attention of the sequences of a batch (``span.pxd``) as a step of a program.

    A key or value of one head has ``cell_bytes``. Tasks have ``tile`` queries times ``part`` heads, or ``single`` heads
    when a sequence has one query; ``scratch`` has a row for each share.
    """
    cdef Args a = filled(q, kv_heads, None, scale, True, window, out, tile, part, scratch)
    a.k_row = a.v_row = cell_bytes
    a.single = single
    a.batch = Batch(<const Span*> &spans[0, 0], <const Place*> &places[0, 0], <const Py_ssize_t*> &count[0])
    return step_of(core_of(code), &a, sizeof(a), &a.seq)
