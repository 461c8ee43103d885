"""Attention with grouped heads, a causal limit and a sliding window, over f32, f16 or q8_0 keys and values.

    t[j] = scale * (q . k[j]) (+ bias[j]),   p[j] = e^(t[j] - max t),   y = sum_j p[j] v[j] / sum_j p[j]

for the keys j in [lo, hi) that the query may see. Orders, per query and head: q . k is one chain of fused
multiply-adds over the features; sum p runs in 16 virtual lanes from lo on, added as a fixed tree; sum p v is one chain
over j per feature. Nothing depends on which queries share the call or on threads: evaluating a prompt at once, in
chunks or token by token gives the same bits. Keys beyond a query's own limits are never read on its behalf.

A task is a tile of queries times some heads that share a key-value head; its rows are (query, head) pairs. Keys are
widened and transposed 16 at a time into a panel [d][16] and multiplied with the 6 x 16 tile, so a key is converted once
for all rows; scores stay in scratch [rows][keys]. Values are widened in panels [keys][16 features], 128 keys (8 KiB) at
a time. Rows of a tile share the keys that all of them see; ragged ends are done row by row.
"""

from libc.math cimport INFINITY
from libc.stdint cimport uint16_t

from blocks cimport Q8_0
from micro cimport R1, rows_by_16, tile16
from simd cimport (
    f8, f8_add, f8_hmax, f8_hsum, f8_load, f8_load_f16, f8_max, f8_mul, f8_set1, f8_store, f8_sub, f8_transpose, f8_zero,
    fu_f16_f32,
)
from team cimport core_t, run_team, step_of
from vmath cimport f8_exp, load_part, store_part

cdef enum:
    KEYS = 128      # keys per value panel

ctypedef fused Cell:
    float
    uint16_t
    Q8_0

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
    # In a program the cache moves and grows between runs: its address and length are read when the step runs.
    const char* const* caches       # where k and v are now, or NULL
    const Py_ssize_t* length        # how many keys there are now


cdef inline f8 load8(const Cell* p, Py_ssize_t i) noexcept nogil:
    """Elements i .. i + 7 of a head; a q8_0 block holds 32."""
    cdef float lane[8]
    cdef int j
    cdef float d
    if Cell is float:
        return f8_load(p + i)
    elif Cell is uint16_t:
        return f8_load_f16(p + i)
    else:
        d = fu_f16_f32(p[i >> 5].d)
        for j in range(8):
            lane[j] = d * <float> p[i >> 5].qs[(i & 31) + j]
        return f8_load(lane)


cdef inline float load1(const Cell* p, Py_ssize_t i) noexcept nogil:
    if Cell is float:
        return p[i]
    elif Cell is uint16_t:
        return fu_f16_f32(p[i])
    else:
        return fu_f16_f32(p[i >> 5].d) * <float> p[i >> 5].qs[i & 31]


cdef void pack_keys(const Cell* tag, const char* k, Py_ssize_t stride, int count, Py_ssize_t d, float* panel) noexcept nogil:
    """Up to 16 keys to [d][16]; missing keys repeat the last."""
    cdef f8 r[8]
    cdef Py_ssize_t e = 0
    cdef int i, g
    while e + 8 <= d:
        for g in range(2):
            for i in range(8):
                r[i] = load8(<const Cell*> (k + min(8 * g + i, count - 1) * stride), e)
            f8_transpose(r)
            for i in range(8):
                f8_store(panel + 16 * (e + i) + 8 * g, r[i])
        e += 8
    while e < d:
        for i in range(16):
            panel[16 * e + i] = load1(<const Cell*> (k + min(i, count - 1) * stride), e)
        e += 1


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


cdef float soften(float* t, Py_ssize_t n, float scale, const float* bias) noexcept nogil:
    """t = exp(scale * t + bias - max) in place; returns the sum."""
    cdef f8 top = f8_set1(-INFINITY)
    cdef f8 s0 = f8_zero()
    cdef f8 s1 = f8_zero()
    cdef f8 x
    cdef Py_ssize_t j = 0
    while j < n:
        x = f8_mul(load_part(t + j, n - j, 0), f8_set1(scale))
        if bias != NULL:
            x = f8_add(x, load_part(bias + j, n - j, 0))
        store_part(t + j, x, n - j)
        top = f8_max(load_part(t + j, n - j, -INFINITY), top)
        j += 8
    top = f8_set1(f8_hmax(top))
    j = 0
    while j < n:
        x = f8_exp(f8_sub(load_part(t + j, n - j, -INFINITY), top))
        store_part(t + j, x, n - j)
        s0 = f8_add(s0, x)
        if j + 8 < n:
            x = f8_exp(f8_sub(load_part(t + j + 8, n - j - 8, -INFINITY), top))
            store_part(t + j + 8, x, n - j - 8)
            s1 = f8_add(s1, x)
        j += 16
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
    cdef float* panel = scratch                             # [max(d, KEYS)][16]
    cdef float* qrows = panel + 16 * max(dp, <Py_ssize_t> KEYS)    # [rows][d]
    cdef float* y = qrows + rows * dp                       # [rows][dp]
    cdef float* s = y + rows * dp                           # [rows][width]
    cdef const char* k = a.k + kv_head * a.k_head
    cdef const char* v = a.v + kv_head * a.v_head
    cdef Py_ssize_t r, i, j, e, n, g, gn, pos, b0, b1, c0, c1
    cdef Py_ssize_t rlo, rhi
    cdef float total
    cdef float* row
    for r in range(rows):
        for e in range(a.d):
            qrows[r * a.d + e] = a.q[((query + r // nheads) * a.heads + head + r % nheads) * a.d + e]
    j = lo
    while j < hi:
        pack_keys(tag, k + j * a.k_row, a.k_row, <int> min(<Py_ssize_t> 16, hi - j), a.d, panel)
        rows_by_16(<int> rows, qrows, a.d, panel, a.d, s + (j - lo), width, True)
        j += 16
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
        e = 0
        while e < dp:
            pack_values(tag, v + b0 * a.v_row, a.v_row, b1 - b0, e, a.d, panel)
            g = 0
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
                    if n > i:
                        tile16(<const R1*> NULL, s + r * width + (i - lo), width, panel + 16 * (i - b0), n - i,
                               y + r * dp + e, dp, False)
                if c1 > c0:
                    rows_by_16(<int> gn, s + g * width + (c0 - lo), width, panel + 16 * (c0 - b0), c1 - c0,
                               y + g * dp + e, dp, False)
                for r in range(g, g + gn):
                    pos = first + r // nheads
                    i = max(c1, pos - a.window + 1) if a.window > 0 else c1
                    n = min(b1, pos + 1 if a.causal else a.kv_seq)
                    if n > i:
                        tile16(<const R1*> NULL, s + r * width + (i - lo), width, panel + 16 * (i - b0), n - i,
                               y + r * dp + e, dp, False)
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
    cdef Args now = (<const Args*> args)[0]
    cdef const Args* a = &now
    if now.caches != NULL:
        now.k = now.caches[0]
        now.v = now.caches[1]
        now.kv_seq = now.length[0]
    cdef Py_ssize_t group = a.heads // a.kv_heads
    cdef Py_ssize_t parts = (group + a.part - 1) // a.part
    cdef Py_ssize_t tiles = (a.seq + a.tile - 1) // a.tile
    cdef Py_ssize_t t, g, h, q
    # Late queries see more keys: interleaving evens the shares out.
    t = ith
    while t < tiles * a.kv_heads * parts:
        q = t // (a.kv_heads * parts) * a.tile
        g = t // parts % a.kv_heads
        h = t % parts * a.part
        task(args, a, g, g * group + h, min(a.part, group - h), q, min(a.tile, a.seq - q),
             a.scratch + ith * a.scratch_stride)
        t += nth


cdef core_t core_of(int code) noexcept nogil:
    if code == 0:
        return <core_t> attention[float]
    if code == 1:
        return <core_t> attention[uint16_t]
    return <core_t> attention[Q8_0]


def scratch_floats(Py_ssize_t rows, Py_ssize_t d, Py_ssize_t keys):
    """Floats of scratch for one share whose tasks have ``rows`` rows over ``keys`` keys."""
    cdef Py_ssize_t dp = (d + 15) // 16 * 16
    return 16 * max(dp, <Py_ssize_t> KEYS) + 2 * rows * dp + rows * (keys + 15) // 16 * 16 + 16 * rows


cdef Args filled(const float[:, :, ::1] q, const unsigned char[:, :, :] k, const unsigned char[:, :, :] v,
                 const float[:, ::1] bias, float scale, bint causal, Py_ssize_t window, float[:, :, ::1] out,
                 Py_ssize_t tile, Py_ssize_t part, float[:, ::1] scratch):
    cdef Args a
    a.q = &q[0, 0, 0]
    a.k = <const char*> &k[0, 0, 0]
    a.v = <const char*> &v[0, 0, 0]
    a.k_row = k.strides[0]
    a.k_head = k.strides[1]
    a.v_row = v.strides[0]
    a.v_head = v.strides[1]
    a.bias = NULL
    if bias is not None:
        a.bias = &bias[0, 0]
    a.out = &out[0, 0, 0]
    a.scratch = &scratch[0, 0]
    a.scratch_stride = scratch.shape[1]
    a.seq = q.shape[0]
    a.heads = q.shape[1]
    a.d = q.shape[2]
    a.kv_seq = k.shape[0]
    a.kv_heads = k.shape[1]
    a.window = window
    a.tile = tile
    a.part = part
    a.scale = scale
    a.causal = causal
    a.caches = NULL
    a.length = NULL
    return a


def attention_into_unchecked(int code, const float[:, :, ::1] q, const unsigned char[:, :, :] k,
                             const unsigned char[:, :, :] v, const float[:, ::1] bias, float scale, bint causal,
                             Py_ssize_t window, float[:, :, ::1] out, Py_ssize_t tile, Py_ssize_t part,
                             float[:, ::1] scratch, Py_ssize_t nth):
    """Queries [seq, heads, d] over keys and values [kv_seq, kv_heads, bytes] of f32 (code 0), f16 (1) or q8_0 (2).

    The queries are the last ``seq`` positions; ``window`` 0 is unlimited. ``tile`` queries times ``part`` heads make a
    task; ``scratch`` has a row of ``scratch_floats`` for each share.
    """
    cdef Args a = filled(q, k, v, bias, scale, causal, window, out, tile, part, scratch)
    with nogil:
        run_team(core_of(code), &a, scratch.shape[0], nth)


def attention_step(int code, const float[:, :, ::1] q, const unsigned char[:, :, :] k, const unsigned char[:, :, :] v,
                   float scale, Py_ssize_t window, float[:, :, ::1] out, Py_ssize_t part, float[:, ::1] scratch,
                   const long long[::1] caches, const long long[::1] length):
    """Causal attention as a step of a program.

    ``k`` and ``v`` tell the strides of a cache; ``caches`` [2] holds the addresses and ``length`` [1] the number of keys
    at the time of each run. ``scratch`` has a row for each share.
    """
    cdef Args a = filled(q, k, v, None, scale, True, window, out, q.shape[0], part, scratch)
    a.caches = <const char* const*> &caches[0]
    a.length = <const Py_ssize_t*> &length[0]
    return step_of(core_of(code), &a, sizeof(a))
