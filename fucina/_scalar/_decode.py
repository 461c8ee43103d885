"""Values of blocks from their fields, the part that all decoders share."""

import numpy as np

from ._blocks import fields
from ._f32 import F


def values(number, blocks, grid=None):
    """Decode blocks uint8 [..., nbytes] to float32 [..., elements].

    Scale times code, then the offset; every step is rounded. The products of a half-precision scale, a scale of a
    sub-block and a code are exact, so their order does not matter.
    """
    with np.errstate(all="ignore"):
        f = fields(number, blocks, grid)
        q = f["q"].astype(F)
        if "sc" not in f:
            y = q * f["d"][..., None]
            return y + f["m"][..., None] if "m" in f else y
        each = q.shape[-1] // f["sc"].shape[-1]
        y = np.repeat(f["d"][..., None] * f["sc"].astype(F), each, -1) * q
        return y - np.repeat(f["m"][..., None] * f["mn"].astype(F), each, -1) if "mn" in f else y


def decode_rows(number, nbytes, table, ids, out, grid=None):
    """Rows ``ids`` of ``table`` (all rows when ``ids`` is None) into ``out``."""
    rows = np.asarray(table) if ids is None else np.asarray(table)[np.asarray(ids)]
    out[...] = values(number, rows.reshape(rows.shape[0], -1, nbytes), grid).reshape(out.shape)
