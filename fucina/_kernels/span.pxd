"""Rows of a batch that belong to one sequence, and where its keys and values are.

A batch is rows of activations, a stretch of consecutive rows for each sequence that takes part. A program keeps two
tables that its owner fills in before every run: ``spans``, the same for all layers, and ``places`` of each layer.
"""

cdef struct Span:
    Py_ssize_t first, rows      # the rows in the batch
    Py_ssize_t length           # positions in the cache, with those rows

# A head has the positions of a sequence side by side, so that it is read as one stream.
cdef struct Place:
    char* k
    char* v
    Py_ssize_t head             # bytes from one head to the next

cdef struct Batch:
    const Span* spans
    const Place* places
    const Py_ssize_t* count     # how many of both there are at this run; NULL outside of programs


cdef inline const Span* span_of(const Span* span, Py_ssize_t row) noexcept nogil:
    """The stretch that holds ``row``, from ``span`` on."""
    while row >= span.first + span.rows:
        span += 1
    return span


cdef inline Py_ssize_t position_of(const Span* span, Py_ssize_t row) noexcept nogil:
    """The position in its sequence of a row of ``span``."""
    return span.length - span.rows + row - span.first
