"""The fields of a block, format by format: integer codes and the scales that belong to them.

``fields(code, blocks)`` takes uint8 [..., nbytes] and returns a dict with the integer ``q`` [..., elements] and scales as
float32: ``d`` and, where the format has them, ``m`` (an offset or the scale of the mins), ``sc`` and ``mn`` (integer
scales and mins of the sub-blocks). Layouts are ggml's.
"""

import numpy as np


def _half(blocks, at):
    return blocks[..., at : at + 2].copy().view(np.float16)[..., 0].astype(np.float32)


def _nibbles(qs):
    """Low nibbles are the first half of the elements, high nibbles the second."""
    return np.concatenate([qs & 15, qs >> 4], axis=-1).astype(np.int32)


def _fifth(qh):
    """Bit i of the 32-bit word is bit 4 of element i."""
    return np.unpackbits(qh, axis=-1, bitorder="little").astype(np.int32) << 4


def q4_0(b):
    return {"d": _half(b, 0), "q": _nibbles(b[..., 2:18]) - 8}


def q4_1(b):
    return {"d": _half(b, 0), "m": _half(b, 2), "q": _nibbles(b[..., 4:20])}


def q5_0(b):
    return {"d": _half(b, 0), "q": (_nibbles(b[..., 6:22]) | _fifth(b[..., 2:6])) - 16}


def q5_1(b):
    return {"d": _half(b, 0), "m": _half(b, 2), "q": _nibbles(b[..., 8:24]) | _fifth(b[..., 4:8])}


def q8_0(b):
    return {"d": _half(b, 0), "q": b[..., 2:34].astype(np.int8).astype(np.int32)}


def _scales6(s):
    """Twelve bytes hold eight 6-bit scales and eight 6-bit mins."""
    s = s.astype(np.int32)
    low, mid, top = s[..., 0:4], s[..., 4:8], s[..., 8:12]
    sc = np.concatenate([low & 63, top & 15 | low >> 6 << 4], axis=-1)
    mn = np.concatenate([mid & 63, top >> 4 | mid >> 6 << 4], axis=-1)
    return sc, mn


def _k_nibbles(qs):
    """Each 32 bytes hold two sub-blocks: low nibbles, then high nibbles."""
    pairs = qs.reshape(qs.shape[:-1] + (4, 1, 32))
    return np.concatenate([pairs & 15, pairs >> 4], axis=-2).reshape(qs.shape[:-1] + (256,)).astype(np.int32)


def q4_k(b):
    sc, mn = _scales6(b[..., 4:16])
    return {"d": _half(b, 0), "m": _half(b, 2), "sc": sc, "mn": mn, "q": _k_nibbles(b[..., 16:144])}


def q5_k(b):
    sc, mn = _scales6(b[..., 4:16])
    # Bit j of byte l is the fifth bit of element l of sub-block j.
    bits = np.unpackbits(b[..., 16:48, None], axis=-1, bitorder="little").swapaxes(-1, -2)
    fifth = bits.reshape(b.shape[:-1] + (256,)).astype(np.int32) << 4
    return {"d": _half(b, 0), "m": _half(b, 2), "sc": sc, "mn": mn, "q": _k_nibbles(b[..., 48:176]) | fifth}


def q6_k(b):
    codes = []
    for half in range(2):
        ql = b[..., 64 * half : 64 * half + 64].astype(np.int32)
        qh = b[..., 128 + 32 * half : 160 + 32 * half].astype(np.int32)
        for run in range(4):
            low = ql[..., 32 * (run & 1) : 32 * (run & 1) + 32] >> 4 * (run >> 1) & 15
            codes.append(low | (qh >> 2 * run & 3) << 4)
    sc = b[..., 192:208].astype(np.int8).astype(np.int32)
    return {"d": _half(b, 208), "sc": sc, "q": np.concatenate(codes, axis=-1) - 32}


FIELDS = [q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k]


def fields(code, blocks):
    return FIELDS[code](blocks)
