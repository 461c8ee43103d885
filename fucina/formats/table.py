"""The tensor formats of GGUF as data: one row per format.

Everything that has to know a format's size or its partner asks this table; the arithmetic that belongs to a
format is its decoder in ``fucina._scalar.dequantize``, its tile in ``fucina._kernels.linear_quant`` and its
twin in ``fucina._scalar.linear_quant``. A conformance test fails when a row lacks one of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """One storage format.

    Attributes
    ----------
    name : str
        Lower-case ggml name.
    ggml_id : int
        ``ggml_type`` number in a GGUF file.
    block : int
        Elements per block (1 for plain number types).
    nbytes : int
        Bytes per block.
    activation : str or None
        How the other operand of a product is quantized (``"q8_0"``, ``"q8_1"`` or ``"q8_k"``); None where the
        product is computed in floating point, or where there is no product.
    numpy : str or None
        Name of the NumPy dtype for plain number types, None for block formats.
    half_at : int
        Byte offset of the 16-bit field that keeps the block from being a whole number of 32-bit words;
        -1 where there is none. Row-interleaved packing moves that field to the front (see ``linear_quant``).
    code : int
        Number by which compiled kernels know a block format; -1 where no compiled product exists.
    """

    name: str
    ggml_id: int
    block: int
    nbytes: int
    activation: str | None = None
    numpy: str | None = None
    half_at: int = -1
    code: int = -1

    @property
    def is_block(self) -> bool:
        """True for formats whose elements share scales in blocks."""
        return self.numpy is None

    def row_bytes(self, k: int) -> int:
        """Bytes of a row of ``k`` elements; ValueError when ``k`` is not a whole number of blocks."""
        if k % self.block:
            raise ValueError(f"{self.name} rows hold a multiple of {self.block} elements, got {k}")
        return k // self.block * self.nbytes


_ROWS = [
    # name, id, block, bytes, activation, numpy, half_at, code
    Format("f32", 0, 1, 4, numpy="float32"),
    Format("f16", 1, 1, 2, numpy="float16"),
    Format("bf16", 30, 1, 2, numpy="bfloat16"),
    Format("f64", 28, 1, 8, numpy="float64"),
    Format("i8", 24, 1, 1, numpy="int8"),
    Format("i16", 25, 1, 2, numpy="int16"),
    Format("i32", 26, 1, 4, numpy="int32"),
    Format("i64", 27, 1, 8, numpy="int64"),
    Format("q4_0", 2, 32, 18, "q8_0", half_at=0, code=0),
    Format("q4_1", 3, 32, 20, "q8_1", code=1),
    Format("q5_0", 6, 32, 22, "q8_0", half_at=0, code=2),
    Format("q5_1", 7, 32, 24, "q8_1", code=3),
    Format("q8_0", 8, 32, 34, "q8_0", half_at=0, code=4),
    Format("q4_k", 12, 256, 144, "q8_k", code=5),
    Format("q5_k", 13, 256, 176, "q8_k", code=6),
    Format("q6_k", 14, 256, 210, "q8_k", half_at=208, code=7),
]

FORMATS: dict[str, Format] = {row.name: row for row in _ROWS}
BY_ID: dict[int, Format] = {row.ggml_id: row for row in _ROWS}

# Ids that exist in ggml but that this version does not read: named in the error message.
KNOWN_IDS: dict[int, str] = {
    9: "q8_1", 10: "q2_k", 11: "q3_k", 15: "q8_k", 16: "iq2_xxs", 17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s",
    20: "iq4_nl", 21: "iq3_s", 22: "iq2_s", 23: "iq4_xs", 29: "iq1_m", 34: "tq1_0", 35: "tq2_0", 36: "i2_s",
    39: "mxfp4", 40: "nvfp4", 41: "q1_0", 42: "q2_0",
}


def lookup(name: str) -> Format:
    """The format called ``name`` (case does not matter); ValueError that lists the known names otherwise."""
    try:
        return FORMATS[str(name).lower()]
    except KeyError:
        raise ValueError(f"unknown format {name!r}; known: {', '.join(FORMATS)}") from None
