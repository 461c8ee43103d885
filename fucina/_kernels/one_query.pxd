"""One query of a few heads that share their keys and values, as in generation: scores and weighted sums.

Each key and value is loaded once for all heads, and the rows that come next are fetched meanwhile, line by line in the
order of memory: the same lines in the order of their use took 1.25 times as long (4096 f16 keys, one and two threads,
AMD Zen 3, 2026-11). Keys are turned to panels for the tiles of ``micro.pxd``, values need no turning.
"""

from libc.stdint cimport uint16_t

from act cimport f8_load_i8
from blocks cimport Q8_0
from dense_stream cimport Rows
from micro cimport ByRow, F16Panel, Panel, Pitch, T14, T22, T32, T41, tile
from simd cimport f8, f8_fma, f8_load, f8_load_f16, f8_mul, f8_set1, f8_store, fu_f16_f32
from turn cimport fetch_rows, turn_f16, turn_f32, turn_q8_0

cdef enum:
    FEW = 4         # heads
    FEW_KEYS = 32   # keys that they take at a time, so that values are fetched in the order of memory

ctypedef fused Cell:
    float
    uint16_t
    Q8_0


cdef inline f8 load8(const Cell* p, Py_ssize_t i) noexcept nogil:
    """Elements i .. i + 7 of a head; a q8_0 block holds 32."""
    if Cell is float:
        return f8_load(p + i)
    elif Cell is uint16_t:
        return f8_load_f16(p + i)
    else:
        return f8_mul(f8_set1(fu_f16_f32(p[i >> 5].d)), f8_load_i8(p[i >> 5].qs + (i & 31)))


cdef inline Py_ssize_t bytes_of(const Cell* tag, Py_ssize_t d) noexcept nogil:
    """A head of ``d`` features, whole blocks of them in q8_0."""
    if Cell is Q8_0:
        return d // 32 * <Py_ssize_t> sizeof(Q8_0)
    else:
        return d * <Py_ssize_t> sizeof(Cell)


cdef inline void turn(const Cell* tag, const char* k, Py_ssize_t stride, int count, Py_ssize_t d,
                      char* panel, Py_ssize_t ahead) noexcept nogil:
    """Up to 16 keys to a panel [d][16], of f16 as they are, else of f32; keys ``ahead`` bytes later are fetched."""
    if Cell is uint16_t:
        turn_f16(k, stride, count, d, <uint16_t*> panel, ahead)
    elif Cell is Q8_0:
        turn_q8_0(k, stride, count, d, <float*> panel, ahead)
    else:
        turn_f32(k, stride, count, d, <float*> panel, ahead)


cdef inline void multiply(const Rows* rows, const Pitch* pitch, const float* q, Py_ssize_t d, const char* panels,
                          float* s, Py_ssize_t width, const char* soon, Py_ssize_t pace) noexcept nogil:
    """s = q [rows, d] times the panels that a turn of ``few_keys`` has, which lie one after the other; ``pace`` bytes are
    fetched from ``soon`` on for each of their features."""
    cdef Py_ssize_t next = d * (32 if Pitch is F16Panel else 64)
    if sizeof(Rows) == 1:
        tile(<const T14*> NULL, <const ByRow*> NULL, pitch, <const f8*> NULL, <const char*> q, 4 * d, panels, 0, next, d,
             <char*> s, 4 * width, 64, True, soon, pace)
    elif sizeof(Rows) == 2:
        tile(<const T22*> NULL, <const ByRow*> NULL, pitch, <const f8*> NULL, <const char*> q, 4 * d, panels, 0, next, d,
             <char*> s, 4 * width, 64, True, soon, pace)
    elif sizeof(Rows) == 3:
        tile(<const T32*> NULL, <const ByRow*> NULL, pitch, <const f8*> NULL, <const char*> q, 4 * d, panels, 0, next, d,
             <char*> s, 4 * width, 64, True, soon, pace)
    else:
        tile(<const T41*> NULL, <const ByRow*> NULL, pitch, <const f8*> NULL, <const char*> q, 4 * d, panels, 0, next, d,
             <char*> s, 4 * width, 64, True, soon, pace)


cdef inline Py_ssize_t few_keys(const Rows* rows, const Cell* tag, const char* k, Py_ssize_t stride, Py_ssize_t count,
                                const float* q, Py_ssize_t d, char* panels, float* s, Py_ssize_t width) noexcept nogil:
    """s [rows, keys] = q [rows, d] times as many keys as make whole turns; returns how many.

    A score is one chain of multiply-adds, and it takes eight of them to keep the core busy: few rows meet several panels
    at a time. Where keys lie side by side, the tile fetches the next ones, a line per feature at most; it does so evenly,
    while keys that are fetched as others are turned leave the memory idle during the products: 1.3 times as long with two
    heads, 1.5 with four. A part by either took longer than all of them while turning, so what would be more than a line,
    f32 or a single head, has that (f16, 4096 keys of 8 heads of 128, 14 layers, one thread, AMD Zen 4, 2026-11).
    """
    cdef Py_ssize_t j = 0, size = d * (32 if Cell is uint16_t else 64)
    cdef int i, count_panels = 4 if sizeof(Rows) == 1 else 2 if sizeof(Rows) <= 3 else 1
    cdef Py_ssize_t ahead = 16 * count_panels * stride
    cdef Py_ssize_t pace = 0
    if Cell is not float and stride == bytes_of(tag, d) and ahead <= 64 * d:
        pace = ahead // d
    while j + 16 * count_panels <= count:
        for i in range(count_panels):
            turn(tag, k + (j + 16 * i) * stride, stride, 16, d, panels + i * size, 0 if pace else ahead)
        if Cell is uint16_t:
            multiply(rows, <const F16Panel*> NULL, q, d, panels, s + j, width, k + j * stride + ahead, pace)
        else:
            multiply(rows, <const Panel*> NULL, q, d, panels, s + j, width, k + j * stride + ahead, pace)
        j += 16 * count_panels
    return j


cdef inline void few_values(const Rows* rows, const Cell* tag, const char* v, Py_ssize_t stride, Py_ssize_t count,
                            const float* p, Py_ssize_t ldp, Py_ssize_t d, float* y, Py_ssize_t ldy) noexcept nogil:
    """y [rows, d] += p [rows, count] times ``count`` values; d is a multiple of 32."""
    cdef f8 s[12]
    cdef f8 x[4]
    cdef f8 w
    cdef int n, i
    cdef const char* at
    cdef int vectors = 4 if sizeof(Rows) <= 3 else 2
    cdef Py_ssize_t e = 0, j
    cdef const char* soon = v + count * stride
    cdef Py_ssize_t due = 0
    cdef Py_ssize_t nbytes = bytes_of(tag, d)
    while e < d:
        for n in range(<int> sizeof(Rows)):
            for i in range(vectors):
                s[vectors * n + i] = f8_load(y + n * ldy + e + 8 * i)
        for j in range(count):
            at = v + j * stride + bytes_of(tag, e)
            # As many rows of the next values as this pass has a part of these, one by one.
            due += 8 * vectors
            if due >= d:
                due -= d
                fetch_rows(soon, stride, nbytes, 0, 1)
                soon += stride
            for n in range(<int> sizeof(Rows)):
                x[n] = f8_set1(p[n * ldp + j])
            for i in range(vectors):
                w = load8(<const Cell*> at, (e & 31 if Cell is Q8_0 else 0) + 8 * i)
                for n in range(<int> sizeof(Rows)):
                    s[vectors * n + i] = f8_fma(x[n], w, s[vectors * n + i])
        for n in range(<int> sizeof(Rows)):
            for i in range(vectors):
                f8_store(y + n * ldy + e + 8 * i, s[vectors * n + i])
        e += 8 * vectors
