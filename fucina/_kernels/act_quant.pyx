"""Activations to int8 blocks: the entry for the arithmetic and layout that ``act.pxd`` describes."""

from libc.stdint cimport int8_t

from act cimport ActArgs, quantize_act
from team cimport core_t, run_team, step_of


cdef ActArgs filled(int kind, const float[:, ::1] x, Py_ssize_t tile, signed char[::1] qs, float[::1] d,
                    unsigned char[::1] aux):
    cdef ActArgs a
    a.x = &x[0, 0]
    a.qs = <int8_t*> &qs[0]
    a.d = &d[0]
    a.aux = <char*> &aux[0]
    a.m = x.shape[0]
    a.k = x.shape[1]
    a.tile = tile
    a.kind = kind
    return a


def quantize_act_into_unchecked(int kind, const float[:, ::1] x, Py_ssize_t tile, signed char[::1] qs, float[::1] d,
                                unsigned char[::1] aux, Py_ssize_t nth):
    """Quantize the rows of ``x`` [m, k]; ``kind`` 0 q8_0, 1 q8_1, 2 q8_k; layout in ``act.pxd``."""
    cdef ActArgs a = filled(kind, x, tile, qs, d, aux)
    with nogil:
        run_team(<core_t> quantize_act, &a, min(4 * nth, a.m), nth)


def quantize_act_step(int kind, const float[:, ::1] x, Py_ssize_t tile, signed char[::1] qs, float[::1] d,
                      unsigned char[::1] aux):
    """The same as a step of a program."""
    cdef ActArgs a = filled(kind, x, tile, qs, d, aux)
    return step_of(<core_t> quantize_act, &a, sizeof(a), &a.m)
