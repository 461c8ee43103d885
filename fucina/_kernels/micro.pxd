"""The register tile that all dense products share: a few rows times a few panels of columns.

    c[i, j] = fma(a[i, p], b[p, j], c[i, j])    for p = 0, 1, ... in order

A panel is 64 bytes wide: 16 columns of f32, 8 of f64; one of 16-bit numbers is widened as it is loaded. Six rows by one panel need 12 accumulators, two vectors of b and
one broadcast: 15 of AVX2's 16 registers, and 12 independent chains cover the 2 x 4 cycles of the multiply-add pipes.
Fewer than four rows alone have too few chains, so their tiles are two or four panels wide. Each output is one chain
over p, so neither the shape of the tile nor its place changes a bit.

Shapes are tag types: the size of T<rows><panels> is 8 * rows + panels, a constant to the compiler.
All distances are in bytes.
"""

from libc.stdint cimport uint16_t

from simd cimport (
    FU_DENSE_AHEAD, d4, d4_fma, d4_load, d4_set1, d4_store, f8, f8_fma, f8_load, f8_load_bf16, f8_load_f16, f8_set1,
    f8_store, fu_prefetch, fu_zeros,
)

cdef enum:
    # Bytes that are fetched ahead by tiles of one panel; others have FU_DENSE_AHEAD. Weights in memory come at 0.95-1.2 of
    # the speed of a plain read, at 0.7-0.9 without (1 to 6 rows, AMD Zen 3, 2026-11).
    AHEAD = 2048

cdef struct T11:
    char[9] x

ctypedef T11 R1     # one row, whatever the number of panels

cdef struct T14:
    char[12] x

cdef struct T21:
    char[17] x

cdef struct T22:
    char[18] x

cdef struct T31:
    char[25] x

cdef struct T32:
    char[26] x

cdef struct T41:
    char[33] x

cdef struct T51:
    char[41] x

cdef struct T61:
    char[49] x

ctypedef fused Shape:
    T11
    T14
    T21
    T22
    T31
    T32
    T41
    T51
    T61

# How the rows of a lie: one after the other along p, next to each other at every p, or packed in groups of six.
cdef struct ByRow:
    char[1] x

cdef struct ByColumn:
    char[2] x

cdef struct Grouped:
    char[3] x

ctypedef fused Order:
    ByRow
    ByColumn
    Grouped

# How b goes on along p: as a panel, at any distance, or as 16-bit numbers in a panel or at any distance. Their conversions
# fit between the multiply-adds: a pass of its own cost as much as six rows (AMD Zen 3, 2026-11).
cdef struct Panel:
    char[1] x

cdef struct Apart:
    char[2] x

cdef struct F16Panel:
    char[3] x

cdef struct BF16Panel:
    char[4] x

cdef struct F16Apart:
    char[5] x

ctypedef fused Pitch:
    Panel
    Apart
    F16Panel
    BF16Panel
    F16Apart

# How many values of p a turn of the loop takes; Fetching prefetches at each of its four.
cdef struct One:
    char[1] x

cdef struct Four:
    char[4] x

cdef struct Fetching:
    char[4] x

ctypedef fused Steps:
    One
    Four
    Fetching

ctypedef fused Vec:
    f8
    d4


cdef inline Vec load(const Vec* p) noexcept nogil:
    if Vec is f8:
        return f8_load(<const float*> p)
    else:
        return d4_load(<const double*> p)


cdef inline Vec broadcast(const Vec* p) noexcept nogil:
    if Vec is f8:
        return f8_set1((<const float*> p)[0])
    else:
        return d4_set1((<const double*> p)[0])


cdef inline Vec fma(Vec a, Vec b, Vec c) noexcept nogil:
    if Vec is f8:
        return f8_fma(a, b, c)
    else:
        return d4_fma(a, b, c)


cdef inline void store(Vec* p, Vec v) noexcept nogil:
    if Vec is f8:
        f8_store(<float*> p, v)
    else:
        d4_store(<double*> p, v)


cdef inline Py_ssize_t along_a(const Order* order, const Vec* vec, Py_ssize_t lda) noexcept nogil:
    """From one p to the next."""
    cdef Py_ssize_t size = 4 if Vec is f8 else 8
    if Order is ByRow:
        return size
    elif Order is ByColumn:
        return lda
    else:
        return 6 * size


cdef inline Py_ssize_t down_a(const Order* order, const Vec* vec, Py_ssize_t lda) noexcept nogil:
    """From one row to the next."""
    if Order is ByRow:
        return lda
    else:
        return 4 if Vec is f8 else 8


cdef inline Py_ssize_t along_b(const Pitch* pitch, Py_ssize_t ldb) noexcept nogil:
    if Pitch is Panel:
        return 64
    elif Pitch is Apart or Pitch is F16Apart:
        return ldb
    else:
        return 32


cdef inline Vec columns(const Pitch* pitch, const Vec* vec, const char* b, int half) noexcept nogil:
    """Half a panel at one value of p."""
    if Vec is f8 and (Pitch is F16Panel or Pitch is F16Apart):
        return f8_load_f16(<const uint16_t*> (b + 16 * half))
    elif Vec is f8 and Pitch is BF16Panel:
        return f8_load_bf16(<const uint16_t*> (b + 16 * half))
    else:
        return load(<const Vec*> (b + 32 * half))


cdef inline void step(const Shape* shape, const Pitch* pitch, const Vec* vec, Vec* s, const char* a, Py_ssize_t next_row,
                      const char* b, Py_ssize_t next_panel, bint fetch) noexcept nogil:
    """One value of p; a tile of several panels may ``fetch`` what comes later of them."""
    cdef int rows = <int> sizeof(Shape) // 8, panels = <int> sizeof(Shape) % 8, width = 2 * panels
    cdef Vec[2] v
    cdef Vec[3] x
    cdef int i, j
    if panels == 1:
        v[0] = columns(pitch, vec, b, 0)
        v[1] = columns(pitch, vec, b, 1)
        for i in range(rows):
            x[0] = broadcast(<const Vec*> (a + i * next_row))
            s[2 * i] = fma(x[0], v[0], s[2 * i])
            s[2 * i + 1] = fma(x[0], v[1], s[2 * i + 1])
    else:
        for j in range(panels if fetch else 0):
            fu_prefetch(b + j * next_panel + FU_DENSE_AHEAD // panels)
        for i in range(rows):
            x[i] = broadcast(<const Vec*> (a + i * next_row))
        for j in range(width):
            v[0] = columns(pitch, vec, b + j // 2 * next_panel, j % 2)
            for i in range(rows):
                s[width * i + j] = fma(x[i], v[0], s[width * i + j])


cdef inline void run(const Shape* shape, const Order* order, const Pitch* pitch, const Vec* vec, const Steps* steps,
                     const char* a, Py_ssize_t lda, const char* b, Py_ssize_t ldb, Py_ssize_t next_panel,
                     Py_ssize_t turns, char* c, Py_ssize_t ldc, Py_ssize_t next_c, bint fresh, const char* soon,
                     Py_ssize_t pace) noexcept nogil:
    """The tile over ``turns`` > 0 times one or four values of p."""
    cdef int rows = <int> sizeof(Shape) // 8, width = 2 * (<int> sizeof(Shape) % 8)
    cdef Py_ssize_t a_step = along_a(order, vec, lda), b_step = along_b(pitch, ldb)
    cdef Vec[12] s
    cdef const char* old = fu_zeros if fresh else c
    cdef Py_ssize_t ldo = 0 if fresh else ldc, nexto = 0 if fresh else next_c
    cdef int i, j
    for i in range(rows):
        for j in range(width):
            s[width * i + j] = load(<const Vec*> (old + i * ldo + j // 2 * nexto + 32 * (j % 2)))
    # One loop, and one that tests at its end: otherwise GCC takes the accumulators through the stack.
    while True:
        for i in range(<int> sizeof(Steps)):
            if Steps is Fetching:
                fu_prefetch(soon)
                soon += pace
            # A line of memory holds two values of p of 16-bit numbers.
            step(shape, pitch, vec, s, a + i * a_step, down_a(order, vec, lda), b + i * b_step, next_panel,
                 Steps is not Fetching and (Pitch is Panel or Pitch is Apart or i % 2 == 0))
        a += <int> sizeof(Steps) * a_step
        b += <int> sizeof(Steps) * b_step
        turns -= 1
        if turns <= 0:
            break
    for i in range(rows):
        for j in range(width):
            store(<Vec*> (c + i * ldc + j // 2 * next_c + 32 * (j % 2)), s[width * i + j])


cdef inline void tile(const Shape* shape, const Order* order, const Pitch* pitch, const Vec* vec, const char* a,
                      Py_ssize_t lda, const char* b, Py_ssize_t ldb, Py_ssize_t next_panel, Py_ssize_t kc, char* c,
                      Py_ssize_t ldc, Py_ssize_t next_c, bint fresh, const char* soon, Py_ssize_t pace) noexcept nogil:
    """One tile over ``kc`` > 0 values of p; ``fresh`` starts from zero instead of from ``c``.

    ``lda`` is the distance between rows of a (ByRow) or between its values of p (ByColumn), ``ldb`` the distance
    between values of p in b (Apart), ``next_panel`` the distance between the panels of b, ``next_c`` that between their outputs
    in c. A tile fetches ``pace`` bytes per value of p from ``soon`` on, if any; without, wider ones than one panel fetch
    their own ahead.

    Four steps at a time take 21 instructions for 12 multiply-adds, one at a time 24. The difference shows when another
    thread shares the core: it is worth 15-20 % then, and nothing on a quiet machine (AMD Zen 3, 2026-11).
    """
    cdef Py_ssize_t done = kc // 4 * 4
    if done > 0:
        if Pitch is not Apart and Pitch is not F16Apart and pace:
            run(shape, order, pitch, vec, <const Fetching*> NULL, a, lda, b, ldb, next_panel, done // 4, c, ldc, next_c,
                fresh, soon, pace)
        else:
            run(shape, order, pitch, vec, <const Four*> NULL, a, lda, b, ldb, next_panel, done // 4, c, ldc, next_c,
                fresh, NULL, 0)
    if done < kc:
        a += done * along_a(order, vec, lda)
        b += done * along_b(pitch, ldb)
        run(shape, order, pitch, vec, <const One*> NULL, a, lda, b, ldb, next_panel, kc - done, c, ldc, next_c,
            fresh and done == 0, NULL, 0)


cdef inline void tile_of(int rows, const Order* order, const Pitch* pitch, const Vec* vec, const char* a, Py_ssize_t lda,
                         const char* b, Py_ssize_t ldb, Py_ssize_t kc, char* c, Py_ssize_t ldc, bint fresh,
                         const char* soon, Py_ssize_t pace) noexcept nogil:
    """The tile of one to six rows and one panel."""
    if rows == 6:
        tile(<const T61*> NULL, order, pitch, vec, a, lda, b, ldb, 0, kc, c, ldc, 64, fresh, soon, pace)
    elif rows == 5:
        tile(<const T51*> NULL, order, pitch, vec, a, lda, b, ldb, 0, kc, c, ldc, 64, fresh, soon, pace)
    elif rows == 4:
        tile(<const T41*> NULL, order, pitch, vec, a, lda, b, ldb, 0, kc, c, ldc, 64, fresh, soon, pace)
    elif rows == 3:
        tile(<const T31*> NULL, order, pitch, vec, a, lda, b, ldb, 0, kc, c, ldc, 64, fresh, soon, pace)
    elif rows == 2:
        tile(<const T21*> NULL, order, pitch, vec, a, lda, b, ldb, 0, kc, c, ldc, 64, fresh, soon, pace)
    else:
        tile(<const T11*> NULL, order, pitch, vec, a, lda, b, ldb, 0, kc, c, ldc, 64, fresh, soon, pace)


cdef inline void rows_by_16(int rows, const Pitch* pitch, const float* a, Py_ssize_t lda, const char* b, Py_ssize_t ldb,
                            Py_ssize_t kc, float* c, Py_ssize_t ldc, bint fresh) noexcept nogil:
    """Any number of rows of f32 against one panel ``b`` [kc, 16], which goes on every ``ldb`` bytes where its pitch does
    not say; ``lda`` and ``ldc`` are in numbers."""
    cdef int n
    while rows > 0:
        # Never a single row at the end: 7 is 4 + 3.
        n = rows if rows <= 6 else 4 if rows == 7 else 6
        tile_of(n, <const ByRow*> NULL, pitch, <const f8*> NULL, <const char*> a, 4 * lda, b, ldb, kc, <char*> c, 4 * ldc,
                fresh, NULL, 0)
        a += n * lda
        c += n * ldc
        rows -= n
