"""The fields of a block, format by format: integer codes and the scales that belong to them.

``fields(number, blocks)`` takes uint8 [..., nbytes] and returns a dict with the integer ``q`` [..., elements] and
scales as float32: ``d`` and, where the format has them, ``m`` (an offset or the scale of the mins), ``sc`` and ``mn``
(integer scales and mins of the sub-blocks). An element is ``d * sc * q - m * mn``, or ``d * q + m`` without sub-blocks.
Layouts are ggml's. The other formats are in ``_blocks_tiny`` and ``_blocks_iq``.
"""

import numpy as np

from . import _blocks_iq as iq
from . import _blocks_tiny as tiny
from ._bits import bits, half, nibbles, planes


def q4_0(b):
    return {"d": half(b, 0), "q": nibbles(b[..., 2:18]) - 8}


def q4_1(b):
    return {"d": half(b, 0), "m": half(b, 2), "q": nibbles(b[..., 4:20])}


def q5_0(b):
    return {"d": half(b, 0), "q": (nibbles(b[..., 6:22]) | bits(b[..., 2:6]) << 4) - 16}


def q5_1(b):
    return {"d": half(b, 0), "m": half(b, 2), "q": nibbles(b[..., 8:24]) | bits(b[..., 4:8]) << 4}


def q8_0(b):
    return {"d": half(b, 0), "q": b[..., 2:34].astype(np.int8).astype(np.int32)}


def q2_k(b):
    """Nibbles: scale and min of each 16 elements. Codes: planes of 32 elements."""
    sc, mn = (b[..., 0:16] & 15).astype(np.int32), (b[..., 0:16] >> 4).astype(np.int32)
    return {"d": half(b, 80), "m": half(b, 82), "sc": sc, "mn": mn, "q": planes(b[..., 16:80], 32)}


def q3_k(b):
    """The third bit of element l of plane p is bit p of byte l; where it is 0, the code is 4 less."""
    high = planes(b[..., 0:32], 32, count=8, each=1)
    s = b[..., 96:108]
    sc = nibbles(s[..., :8]) | planes(s[..., 8:12], 4) << 4
    return {"d": half(b, 108), "sc": sc - 32, "q": planes(b[..., 32:96], 32) - 4 + 4 * high}


def _scales6(s):
    """Twelve bytes hold eight 6-bit scales and eight 6-bit mins."""
    s = s.astype(np.int32)
    low, mid, top = s[..., 0:4], s[..., 4:8], s[..., 8:12]
    sc = np.concatenate([low & 63, top & 15 | low >> 6 << 4], axis=-1)
    mn = np.concatenate([mid & 63, top >> 4 | mid >> 6 << 4], axis=-1)
    return sc, mn


def q4_k(b):
    sc, mn = _scales6(b[..., 4:16])
    return {"d": half(b, 0), "m": half(b, 2), "sc": sc, "mn": mn, "q": planes(b[..., 16:144], 32, count=2, each=4)}


def q5_k(b):
    """Bit j of byte l of the fifth bits belongs to element l of sub-block j."""
    f = q4_k(np.concatenate([b[..., :16], b[..., 48:176]], axis=-1))
    return f | {"q": f["q"] | planes(b[..., 16:48], 32, count=8, each=1) << 4}


def q6_k(b):
    low = planes(b[..., 0:128], 64, count=2, each=4)
    sc = b[..., 192:208].astype(np.int8).astype(np.int32)
    return {"d": half(b, 208), "sc": sc, "q": (low | planes(b[..., 128:192], 32) << 4) - 32}


# By the number of the format in the format table.
FIELDS = [
    q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k, q2_k, q3_k,
    tiny.iq4_nl, tiny.iq4_xs, tiny.tq1_0, tiny.tq2_0, tiny.mxfp4, tiny.nvfp4, tiny.q1_0, tiny.q2_0, tiny.q2_0,
    tiny.i2_s,
    iq.iq2_xxs, iq.iq2_xs, iq.iq2_s, iq.iq3_xxs, iq.iq3_s, iq.iq1_s, iq.iq1_m,
]


def fields(number, blocks, grid=None):
    """Codes and scales of blocks; grid formats also need what the points of their lattice decode to."""
    return FIELDS[number](blocks) if grid is None else FIELDS[number](blocks, grid)
