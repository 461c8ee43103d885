"""One column of activations times packed panels, or rows as they are stored.

A matter of memory more than of arithmetic: every weight is used once. Each format has a function that unpacks and
multiplies a few blocks of a panel (``row``); which panels are read when is decided here. Formats of few bits, which
are a matter of arithmetic after all, look sums up (``lookup.pxd``).
"""

from lookup cimport TOGETHER
from panel cimport LinearArgs, finish, pack_panel
from simd cimport FU_STREAMS, f8, f8_zero
from team cimport share_start

# Elements of raw rows that are interleaved at a time. Short turns between copying weights and multiplying keep the
# memory busy: with 1024 instead of 256, a row times q6_k ran at 7 to 9 GB/s instead of 15 (AMD Zen 3, 2026-11).
cdef enum:
    PIECE = 256
    LONG = 1 << 19      # bytes from which one column reads several streams
    SHARES = 4          # of a thread, as programs and ``linear_quant_into_unchecked`` have them
    WORTH = 16          # panels that make the tables of sums worth their cost


cdef inline void put_panel(const LinearArgs* a, Py_ssize_t j, f8 acc) noexcept nogil:
    """The outputs of panel ``j``."""
    finish(acc, a.scale, NULL if a.bias == NULL else a.bias + 8 * j, a.out + 8 * j,
           <int> min(<Py_ssize_t> 8, a.n - 8 * j))


cdef inline Py_ssize_t streams_of(Py_ssize_t panels, Py_ssize_t ith, Py_ssize_t nth, int streams, Py_ssize_t* first,
                                  Py_ssize_t* last) noexcept nogil:
    """The panels of share ``ith``, as ``streams`` ranges far from each other; returns how long the longest is.

    A thread takes the shares of its part in order. The streams go through all of them: where one share leaves a stream,
    the next one goes on, and what was fetched ahead is not lost. With streams that end where the share does, tokens of
    SmolLM2 on two threads took 1.04 times as long, of larger models 1.01 to 1.02 (AMD Zen 3, 2026-11).
    """
    cdef Py_ssize_t turns = SHARES if nth % SHARES == 0 else 1
    cdef Py_ssize_t part = ith // turns, turn = ith % turns, parts = nth // turns
    cdef Py_ssize_t start = share_start(panels, part, parts)
    cdef Py_ssize_t count = share_start(panels, part + 1, parts) - start, longest = 0
    cdef int s
    for s in range(streams):
        first[s] = start + share_start(count, s * turns + turn, streams * turns)
        last[s] = start + share_start(count, s * turns + turn + 1, streams * turns)
        longest = max(longest, last[s] - first[s])
    return longest


cdef inline void one_column(const LinearArgs* a, Py_ssize_t ith, Py_ssize_t nth) noexcept nogil:
    """Share ``ith`` of packed panels times one column.

    They are read by turns as a few streams far from each other: memory answers several streams faster than one.
    Four of them read q8_0 at 37 to 44 GB/s on two threads where one had 30 to 37; long blocks gain less, and nothing
    from more than two, which is also what newer processors like best (``FU_STREAMS``). Streams of few panels end before
    hardware has noticed them: tokens of small models took longer.
    Formats that can meet two panels at a time take them from two streams. (AMD Zen 3, 2026-11.)
    """
    cdef f8 acc[4]
    cdef Py_ssize_t first[4]
    cdef Py_ssize_t last[4]
    cdef int together = 1 if a.row_pair == NULL else 2
    cdef bint short = (a.n // nth) * a.row_bytes < LONG
    cdef int streams = together if short else 2 if a.size == 256 else FU_STREAMS
    cdef Py_ssize_t nb = a.k // a.block
    # Blocks: one kilobyte of a panel or, of long blocks, up to two. Points of a lattice keep the core busier than the
    # memory: longer turns.
    cdef Py_ssize_t turn = nb if short else 4 if a.grid != NULL else max(1, (256 if a.size == 256 else 144) // a.nbytes)
    cdef Py_ssize_t aux_bytes = 48 if a.size == 256 else 4
    cdef Py_ssize_t i, b, at, count
    cdef const char* w[2]
    cdef int s, e
    for i in range(streams_of((a.n + 7) // 8, ith, nth, streams, first, last)):
        for s in range(streams):
            acc[s] = f8_zero()
        b = 0
        while b < nb:
            at = b * a.block // a.size
            count = min(turn, nb - b)
            s = 0
            while s < streams:
                for e in range(together):
                    w[e] = a.w + 8 * ((first[s + e] + i) * a.row_bytes + b * a.nbytes)
                if together == 2 and first[s] + i < last[s] and first[s + 1] + i < last[s + 1]:
                    a.row_pair(w[0], w[1], count, a.qs + at * a.size, a.d + at, a.aux + at * aux_bytes, acc + s)
                else:
                    for e in range(together):
                        if first[s + e] + i < last[s + e]:
                            a.row(w[e], count, a.grid, a.qs + at * a.size, a.d + at, a.aux + at * aux_bytes, acc + s + e)
                s += together
            b += turn
        for s in range(streams):
            if first[s] + i < last[s]:
                put_panel(a, first[s] + i, acc[s])


cdef inline void one_column_looked_up(const LinearArgs* a, Py_ssize_t ith, Py_ssize_t nth, char* tables) noexcept nogil:
    """The same by way of ``tables``, four panels of as many streams together.

    Tables cost what some 60 rows gain: 256 rows of 2048 elements take 0.63 (q1_0) and 0.70 (tq1_0) of the time of
    unpacking, 1024 rows 0.57 and 0.66 (in caches, one core, AMD Zen 3, 2026-11).
    """
    cdef f8 acc[TOGETHER]
    cdef Py_ssize_t first[TOGETHER]
    cdef Py_ssize_t last[TOGETHER]
    cdef const char* panels[TOGETHER]
    cdef Py_ssize_t i
    cdef int s
    a.tabulate(a.qs, a.k, tables)
    for i in range(streams_of((a.n + 7) // 8, ith, nth, TOGETHER, first, last)):
        for s in range(TOGETHER):
            # The last stream may be shorter: there it has company, but no output.
            panels[s] = a.w + 8 * min(first[s] + i, last[s] - 1) * a.row_bytes
            acc[s] = f8_zero()
        a.look_up(panels, a.k // a.block, tables, a.d, acc)
        for s in range(TOGETHER):
            if first[s] + i < last[s]:
                put_panel(a, first[s] + i, acc[s])


cdef inline void one_column_raw(const LinearArgs* a, Py_ssize_t start, Py_ssize_t end, char* scratch) noexcept nogil:
    """The same for rows as they are stored, interleaved piece by piece."""
    cdef f8 acc[1]
    cdef Py_ssize_t nb = a.k // a.block
    cdef Py_ssize_t piece = PIECE // a.block
    cdef Py_ssize_t aux_bytes = 48 if a.size == 256 else 4
    cdef Py_ssize_t i, b, at
    cdef const char* p
    cdef int rows
    for i in range(start, end):
        rows = <int> min(<Py_ssize_t> 8, a.n - 8 * i)
        acc[0] = f8_zero()
        b = 0
        while b < nb:
            p = a.w + 8 * i * a.row_bytes + b * a.nbytes
            pack_panel(a, p, rows, min(piece, nb - b), a.w + 8 * (i + 1) * a.row_bytes + 8 * b * a.nbytes, scratch)
            at = b * a.block // a.size
            a.row(scratch, min(piece, nb - b), a.grid, a.qs + at * a.size, a.d + at, a.aux + at * aux_bytes, acc)
            b += piece
        put_panel(a, i, acc[0])
