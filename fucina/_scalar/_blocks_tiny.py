"""The fields of blocks with a level table, ternary blocks, and blocks of one or two bits; see ``_blocks``."""

import numpy as np

from ._bits import bits, crumbs, half, nibble_pairs, nibbles, planes, word16

# Sixteen levels, denser around zero (ggml: kvalues_iq4nl).
IQ4_LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int32)
# Four-bit floats (E2M1 of the Open Compute Project's microscaling formats), doubled to be integers.
FP4_LEVELS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int32)


def iq4_nl(b):
    return {"d": half(b, 0), "q": IQ4_LEVELS[nibbles(b[..., 2:18])]}


def iq4_xs(b):
    """Six bits of scale per 32 elements: nibbles hold the lower four, a 16-bit word the upper two."""
    high = word16(b[..., 2:4]) >> 2 * np.arange(8) & 3
    sc = (nibble_pairs(b[..., 4:8]) | high << 4) - 32
    return {"d": half(b, 0), "sc": sc, "q": IQ4_LEVELS[planes(b[..., 8:136], 16, count=2, each=4)]}


def _trits(b, width, count):
    """Base-3 digits of bytes that hold ceil(256 v / 243): multiplying by 3 brings the next digit to the top."""
    runs = b.reshape(b.shape[:-1] + (-1, 1, width)).astype(np.int32)
    shifted = runs * 3 ** np.arange(count)[:, None] & 255
    return (shifted * 3 >> 8).reshape(b.shape[:-1] + (-1,))


def tq1_0(b):
    """Five digits in each of 32 and of 16 bytes, four in each of 4; first all first digits, then all second ones."""
    codes = [_trits(b[..., 0:32], 32, 5), _trits(b[..., 32:48], 16, 5), _trits(b[..., 48:52], 4, 4)]
    return {"d": half(b, 52), "q": np.concatenate(codes, axis=-1) - 1}


def tq2_0(b):
    return {"d": half(b, 64), "q": planes(b[..., 0:64], 32) - 1}


def mxfp4(b):
    """One power of two, 2 ** (e - 127), halved because the levels are doubled."""
    return {"d": np.ldexp(np.float32(1), b[..., 0].astype(np.int32) - 128), "q": FP4_LEVELS[nibbles(b[..., 1:17])]}


def nvfp4(b):
    """A float of 4 exponent and 3 mantissa bits per 16 elements; in units of 2 ** -10 all of them are integers."""
    s = b[..., 0:4].astype(np.int32)
    exponent, mantissa = s >> 3 & 15, s & 7
    sc = np.where(exponent > 0, mantissa + 8 << np.maximum(exponent - 1, 0), mantissa)
    d = np.full(b.shape[:-1], 2.0**-10, np.float32)
    return {"d": d, "sc": np.where(s == 127, 0, sc), "q": FP4_LEVELS[planes(b[..., 4:36], 8, count=2, each=4)]}


def q1_0(b):
    return {"d": half(b, 0), "q": 2 * bits(b[..., 2:18]) - 1}


def q2_0(b):
    """Blocks of 64 or of 128 elements."""
    return {"d": half(b, 0), "q": crumbs(b[..., 2:]) - 1}


def i2_s(b):
    """The first of four planes is in the highest bits; the scale belongs to the whole tensor."""
    q = planes(b, 32).reshape(b.shape[:-1] + (4, 32))[..., ::-1, :].reshape(b.shape[:-1] + (128,))
    return {"d": np.ones(b.shape[:-1], np.float32), "q": q - 1}
