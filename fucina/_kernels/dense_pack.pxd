"""Copies that put the operands of a dense product where the register tile reads them in order.

Right operand: panels of 64 bytes per value of k, 16 columns of f32 or 8 of f64. Left operand: groups of up to six
rows, six values per value of k. 16-bit numbers are widened to f32 on the way. ``ks``, ``rs`` and ``cs`` are the
distances between neighbours along k, rows and columns in bytes, so every orientation and every stride ends up the same;
a copy is fast where one of them is the size of a number.
"""

from libc.stdint cimport uint16_t
from libc.string cimport memcpy

from simd cimport (
    d4, d4_load, d4_store, d4_transpose, f8, f8_from_bf16_high, f8_from_bf16_low, f8_from_f16_half, f8_load, f8_load_columns,
    f8_load_bf16, f8_load_f16, f8_store, f8_store_bf16, f8_store_f16, f8_transpose, fu_bf16_f32, fu_f16_f32,
    fu_f32_bf16, fu_f32_f16, fu_prefetch, w8, w8_load, w8_store, w8_load_columns16,
)

cdef enum:
    GAP = 64    # between groups of packed rows: their last vector store reaches past the end

# bf16 has no C type of its own: a one-member struct keeps it apart from f16 as a fused type.
cdef struct bf16:
    uint16_t bits

ctypedef fused Elem:
    float
    double
    uint16_t
    bf16


cdef inline f8 widen8(const Elem* p) noexcept nogil:
    if Elem is float:
        return f8_load(p)
    elif Elem is uint16_t:
        return f8_load_f16(p)
    else:
        return f8_load_bf16(<const uint16_t*> p)


cdef inline void move1(const Elem* p, char* to) noexcept nogil:
    """One number, widened."""
    if Elem is float:
        (<float*> to)[0] = p[0]
    elif Elem is double:
        (<double*> to)[0] = p[0]
    elif Elem is uint16_t:
        (<float*> to)[0] = fu_f16_f32(p[0])
    else:
        (<float*> to)[0] = fu_bf16_f32(p.bits)


cdef inline void move_row(const Elem* p, char* to) noexcept nogil:
    """One row of a panel, widened."""
    cdef int i
    for i in range(2):
        if Elem is double:
            d4_store(<double*> to + 4 * i, d4_load(p + 4 * i))
        else:
            f8_store(<float*> to + 8 * i, widen8(p + 8 * i))


cdef inline void transpose_half(const Elem* b, Py_ssize_t cs, Py_ssize_t kc, char* to) noexcept nogil:
    """Columns that are contiguous along k to half a panel: eight of them, or four of f64.

    A cache line of every column is used up before the next is touched: where columns lie a power of two apart, their
    lines compete for the same few places of the cache.
    """
    cdef w8 q[8]
    cdef f8 r[8]
    cdef d4 d[4]
    cdef const char* col = <const char*> b
    cdef int i
    cdef int columns = 4 if Elem is double else 8
    cdef int step = 16 if Elem is uint16_t or Elem is bf16 else 4
    while kc >= step:
        if Elem is float:
            f8_load_columns(col, cs, r)
            for i in range(4):
                f8_store(<float*> (to + 64 * i), r[i])
        elif Elem is double:
            for i in range(4):
                d[i] = d4_load(<const double*> (col + i * cs))
            d4_transpose(d)
            for i in range(4):
                d4_store(<double*> (to + 64 * i), d[i])
        elif Elem is uint16_t:
            w8_load_columns16(col, cs, q)
            for i in range(8):
                f8_store(<float*> (to + 64 * i), f8_from_f16_half(q[i], 0))
                f8_store(<float*> (to + 64 * i + 512), f8_from_f16_half(q[i], 1))
        else:
            f8_load_columns(col, cs, r)
            f8_load_columns(col + 16, cs, r + 4)
            for i in range(8):
                f8_store(<float*> (to + 128 * i), f8_from_bf16_low(r[i]))
                f8_store(<float*> (to + 128 * i + 64), f8_from_bf16_high(r[i]))
        kc -= step
        col += step * sizeof(Elem)
        to += 64 * step
    while kc > 0:
        for i in range(columns):
            move1(<const Elem*> (col + i * cs), to + 32 // columns * i)
        kc -= 1
        col += sizeof(Elem)
        to += 64


cdef inline void pack_panels(const Elem* b, Py_ssize_t ks, Py_ssize_t cs, Py_ssize_t kc, Py_ssize_t columns, char* to,
                             Py_ssize_t next_panel) noexcept nogil:
    """``columns`` columns of b [kc, columns] to panels that lie ``next_panel`` bytes apart."""
    cdef Py_ssize_t width = 8 if Elem is double else 16
    cdef Py_ssize_t whole = columns // width
    cdef Py_ssize_t first = width * whole
    cdef Py_ssize_t g, g0, p, j
    cdef const char* row
    if cs == sizeof(Elem) and ks != sizeof(Elem):
        # Sixteen panels at a time: long enough runs of a row for the memory.
        g0 = 0
        while g0 < whole:
            for p in range(kc):
                row = <const char*> b + p * ks
                for g in range(g0, min(g0 + 16, whole)):
                    move_row(<const Elem*> row + width * g, to + g * next_panel + 64 * p)
            g0 += 16
    elif ks == sizeof(Elem):
        for g in range(2 * whole):
            transpose_half(<const Elem*> (<const char*> b + width // 2 * g * cs), cs, kc,
                           to + g // 2 * next_panel + 32 * (g % 2))
    else:
        first = 0
    # What is left, one by one; missing columns of the last panel are zero.
    for j in range(first, (columns + width - 1) // width * width):
        for p in range(kc):
            if j < columns:
                move1(<const Elem*> (<const char*> b + p * ks + j * cs),
                      to + j // width * next_panel + 64 * p + 64 // width * (j % width))
            elif Elem is double:
                (<double*> (to + j // width * next_panel + 64 * p))[j % width] = 0
            else:
                (<float*> (to + j // width * next_panel + 64 * p))[j % width] = 0


cdef inline void store_panel16(const char* col, Py_ssize_t cs, int columns, Py_ssize_t k, char* to) noexcept nogil:
    """Columns of 16-bit numbers, each contiguous along k, to a panel [k][16] of them. Missing columns are zero."""
    cdef w8 q[8]
    cdef Py_ssize_t p = 0
    cdef int i, g
    while p + 16 <= k and columns == 16:
        for g in range(2):
            w8_load_columns16(col + 8 * g * cs, cs, q)
            for i in range(8):
                memcpy(to + 32 * (p + i) + 16 * g, &q[i], 16)
                memcpy(to + 32 * (p + i + 8) + 16 * g, <char*> &q[i] + 16, 16)
        col += 32
        p += 16
    while p < k:
        for i in range(16):
            (<uint16_t*> (to + 32 * p))[i] = (<const uint16_t*> (col + i * cs))[0] if i < columns else 0
        col += 2
        p += 1


cdef inline void pack_rows(const Elem* a, Py_ssize_t rs, Py_ssize_t ks, Py_ssize_t rows, Py_ssize_t kc,
                           char* to) noexcept nogil:
    """``rows`` rows of a [rows, kc] to groups of up to six, [kc][6] each and GAP bytes in between."""
    cdef f8 r[8]
    cdef d4 d[4]
    cdef const char* row[8]
    cdef Py_ssize_t es = 8 if Elem is double else 4
    cdef Py_ssize_t groups = (rows + 5) // 6
    cdef Py_ssize_t base = rows // groups, extra = rows - base * groups
    cdef Py_ssize_t g, i0, p, p0, step
    cdef int i, n
    cdef char* dst
    p0 = 0
    while p0 < kc:
        # Along k in pieces where the rows lie next to each other, so that a line is read once and written once.
        step = min(kc - p0, <Py_ssize_t> 8) if rs == sizeof(Elem) and ks != sizeof(Elem) else kc
        i0 = 0
        for g in range(groups):
            n = <int> (base + (g < extra))
            dst = to + g * (6 * es * kc + GAP) + 6 * es * p0
            p = 0
            if ks == sizeof(Elem):
                for i in range(8):
                    row[i] = <const char*> a + (i0 + min(i, n - 1)) * rs
                if Elem is double:
                    while p + 4 <= kc:
                        for i in range(4):
                            d[i] = d4_load(<const double*> row[i] + p)
                        d4_transpose(d)
                        for i in range(4):
                            d4_store(<double*> (dst + 48 * (p + i)), d[i])
                        for i in range(4):
                            d[i] = d4_load(<const double*> row[4 + i] + p)
                        d4_transpose(d)
                        for i in range(4):
                            memcpy(dst + 48 * (p + i) + 32, &d[i], 16)
                        p += 4
                else:
                    if Elem is float:
                        # Two rows of the next group come along; what they write is overwritten.
                        while i0 + 8 <= rows and p + 4 <= kc:
                            f8_load_columns(row[0] + 4 * p, rs, r)
                            for i in range(4):
                                f8_store(<float*> (dst + 24 * (p + i)), r[i])
                            p += 4
                    while p + 8 <= kc:
                        for i in range(8):
                            r[i] = widen8(<const Elem*> row[i] + p)
                        f8_transpose(r)
                        for i in range(8):
                            f8_store(<float*> (dst + 24 * (p + i)), r[i])
                        p += 8
            elif rs == sizeof(Elem) and i0 + 8 <= rows:
                while p < step:
                    if Elem is double:
                        d4_store(<double*> (dst + 48 * p), d4_load(<const double*> (<const char*> a + (p0 + p) * ks) + i0))
                        d4_store(<double*> (dst + 48 * p + 32),
                                 d4_load(<const double*> (<const char*> a + (p0 + p) * ks) + i0 + 4))
                    else:
                        f8_store(<float*> (dst + 24 * p), widen8(<const Elem*> (<const char*> a + (p0 + p) * ks) + i0))
                    p += 1
            while p < step:
                for i in range(n):
                    move1(<const Elem*> (<const char*> a + (i0 + i) * rs + (p0 + p) * ks), dst + es * (6 * p + i))
                p += 1
            i0 += n
        p0 += step


cdef inline void read_rows(const Elem* c, Py_ssize_t rs, Py_ssize_t cs, Py_ssize_t rows, Py_ssize_t columns, char* to,
                           Py_ssize_t ld) noexcept nogil:
    """c [rows, columns] to a buffer whose rows are ``ld`` bytes apart, widened."""
    cdef Py_ssize_t es = 8 if Elem is double else 4
    cdef Py_ssize_t i, j
    for i in range(rows):
        for j in range(columns):
            move1(<const Elem*> (<const char*> c + i * rs + j * cs), to + i * ld + j * es)


cdef inline void write_rows(Elem* c, Py_ssize_t rs, Py_ssize_t cs, Py_ssize_t rows, Py_ssize_t columns, const char* buf,
                            Py_ssize_t ld) noexcept nogil:
    """The other way, rounded to the nearest number of the type."""
    cdef Py_ssize_t i, j
    for i in range(rows):
        j = 0
        if cs == sizeof(Elem):
            if Elem is float or Elem is double:
                memcpy(<char*> c + i * rs, buf + i * ld, columns * cs)
                continue
            else:
                while j + 8 <= columns:
                    if Elem is uint16_t:
                        f8_store_f16(<uint16_t*> (<char*> c + i * rs) + j, f8_load(<const float*> (buf + i * ld) + j))
                    else:
                        f8_store_bf16(<uint16_t*> (<char*> c + i * rs) + j, f8_load(<const float*> (buf + i * ld) + j))
                    j += 8
        while j < columns:
            if Elem is float:
                (<float*> (<char*> c + i * rs + j * cs))[0] = (<const float*> (buf + i * ld))[j]
            elif Elem is double:
                (<double*> (<char*> c + i * rs + j * cs))[0] = (<const double*> (buf + i * ld))[j]
            elif Elem is uint16_t:
                (<uint16_t*> (<char*> c + i * rs + j * cs))[0] = fu_f32_f16((<const float*> (buf + i * ld))[j])
            else:
                (<uint16_t*> (<char*> c + i * rs + j * cs))[0] = fu_f32_bf16((<const float*> (buf + i * ld))[j])
            j += 1
