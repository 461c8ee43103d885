"""The tensor formats of GGUF as data: one row per format.

Everything that has to know a format's size, its partner or its kernels asks this table. What belongs to a row: the
fields of its block in ``fucina._scalar._blocks*``, a decoder in the kernel family ``decoder``, an encoder in the family
``encoder``, both in plain Python and compiled, and, where ``product`` is true, a tile in ``linear_quant``. A test fails
when a row lacks one of them.
"""

from __future__ import annotations

import math
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
        How the other operand of a product is quantized (``"q8_0"``, ``"q8_1"`` or ``"q8_k"``, ggml's pairing); None
        where the product is computed in floating point.
    numpy : str or None
        Name of the NumPy dtype for plain number types, None for block formats.
    half_at : int
        Byte offset of the ``nbytes % 4`` bytes that keep the block from being a whole number of 32-bit words;
        -1 where there are none. Row-interleaved packing moves them to the front (see ``linear_quant``).
    number : int
        By which the kernels know a block format; -1 for plain number types.
    product : bool
        True where compiled products exist.
    decoder, encoder : str
        Kernel families that decode and encode the format; empty for plain number types.
    imatrix : str
        What encoding does with an importance matrix: ``"ignored"``, ``"optional"`` or ``"required"``.
    lattice : str
        Name of the lattice (``fucina.formats.lattices``) that the codes of a grid format index; empty for others.
    tensor_scale : bool
        True when one float32 behind the blocks of the whole tensor multiplies every element.
    """

    name: str
    ggml_id: int
    block: int
    nbytes: int
    activation: str | None = None
    numpy: str | None = None
    half_at: int = -1
    number: int = -1
    product: bool = False
    decoder: str = ""
    encoder: str = ""
    imatrix: str = "ignored"
    lattice: str = ""
    tensor_scale: bool = False

    @property
    def code(self) -> int:
        """``number`` where compiled products exist, else -1."""
        return self.number if self.product else -1

    @property
    def is_block(self) -> bool:
        """True for formats whose elements share scales in blocks."""
        return self.numpy is None

    def row_bytes(self, k: int) -> int:
        """Bytes of a row of ``k`` elements; ValueError when ``k`` is not a whole number of blocks."""
        if k % self.block:
            raise ValueError(f"{self.name} rows hold a multiple of {self.block} elements, got {k}")
        return k // self.block * self.nbytes

    def tensor_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor in a file: the rows, and the scale behind them where the format has one.

        The scale takes 32 bytes, of which the first four are used, as the files of its origin have it.
        """
        rows = self.row_bytes(shape[-1] if shape else 1) * math.prod(shape[:-1])
        return rows + 32 if self.tensor_scale and rows else rows


def _block(name, ggml_id, block, nbytes, activation, half_at, number, group, **more) -> Format:
    """A row for a block format; ``group`` names the family that holds its decoder and, unless told, its encoder."""
    suffix = f"_{group}" if group else ""
    families = {"decoder": "dequantize" + ("" if group == "k" else suffix), "encoder": "encode" + suffix}
    return Format(name, ggml_id, block, nbytes, activation, half_at=half_at, number=number, **(families | more))


_ROWS = [
    Format("f32", 0, 1, 4, numpy="float32"),
    Format("f16", 1, 1, 2, numpy="float16"),
    Format("bf16", 30, 1, 2, numpy="bfloat16"),
    Format("f64", 28, 1, 8, numpy="float64"),
    Format("i8", 24, 1, 1, numpy="int8"),
    Format("i16", 25, 1, 2, numpy="int16"),
    Format("i32", 26, 1, 4, numpy="int32"),
    Format("i64", 27, 1, 8, numpy="int64"),
    # name, id, block, bytes, activation, half_at, number, group
    _block("q4_0", 2, 32, 18, "q8_0", 0, 0, "", imatrix="optional", product=True),
    _block("q4_1", 3, 32, 20, "q8_1", -1, 1, "", imatrix="optional", product=True),
    _block("q5_0", 6, 32, 22, "q8_0", 0, 2, "", imatrix="optional", product=True),
    _block("q5_1", 7, 32, 24, "q8_1", -1, 3, "", imatrix="optional", product=True),
    _block("q8_0", 8, 32, 34, "q8_0", 0, 4, "", product=True),
    _block("q4_k", 12, 256, 144, "q8_k", -1, 5, "k", imatrix="optional", product=True),
    _block("q5_k", 13, 256, 176, "q8_k", -1, 6, "k", imatrix="optional", product=True),
    _block("q6_k", 14, 256, 210, "q8_k", 208, 7, "k", imatrix="optional", product=True),
    _block("q2_k", 10, 256, 84, "q8_k", -1, 8, "k", imatrix="optional", product=True),
    _block("q3_k", 11, 256, 110, "q8_k", 108, 9, "k", imatrix="optional", product=True),
    _block("iq4_nl", 20, 32, 18, "q8_0", 0, 10, "tiny", imatrix="optional", product=True),
    _block("iq4_xs", 23, 256, 136, "q8_k", -1, 11, "tiny", imatrix="optional", product=True),
    _block("tq1_0", 34, 256, 54, "q8_k", 52, 12, "tiny", product=True),
    _block("tq2_0", 35, 256, 66, "q8_k", 64, 13, "tiny", product=True),
    _block("mxfp4", 39, 32, 17, "q8_0", 0, 14, "tiny", product=True),
    _block("nvfp4", 40, 64, 36, "q8_0", -1, 15, "tiny", product=True),
    _block("q1_0", 41, 128, 18, "q8_0", 0, 16, "tiny", product=True),
    _block("q2_0", 42, 64, 18, "q8_0", 0, 17, "tiny", product=True),
    # The same id and codes in blocks of 128; told apart by the length of the tensor, see `resolve`.
    _block("q2_0_g128", 42, 128, 34, "q8_0", 0, 18, "tiny", product=True),
    _block("i2_s", 36, 128, 32, "q8_k", -1, 19, "tiny", tensor_scale=True, product=True),
    _block("iq2_xxs", 16, 256, 66, "q8_k", 0, 20, "iq", lattice="iq2_xxs", imatrix="required", product=True),
    _block("iq2_xs", 17, 256, 74, "q8_k", 0, 21, "iq", lattice="iq2_xs", imatrix="required", product=True),
    _block("iq2_s", 22, 256, 82, "q8_k", 0, 22, "iq", lattice="iq2_s", imatrix="optional", product=True),
    _block("iq3_xxs", 18, 256, 98, "q8_k", 0, 23, "iq", lattice="iq3_xxs", imatrix="optional", product=True),
    _block("iq3_s", 21, 256, 110, "q8_k", 0, 24, "iq", lattice="iq3_s", imatrix="optional", product=True),
    _block("iq1_s", 19, 256, 50, "q8_k", 0, 25, "iq", lattice="iq1", imatrix="required", product=True),
    _block("iq1_m", 29, 256, 56, "q8_k", -1, 26, "iq", lattice="iq1", imatrix="optional", product=True),
]

FORMATS: dict[str, Format] = {row.name: row for row in _ROWS}
# Where two formats share an id, the first one in the table is ggml's.
BY_ID: dict[int, Format] = {row.ggml_id: row for row in reversed(_ROWS)}

# Ids that exist in ggml but are activations, not tensors in files: named in the error message.
KNOWN_IDS: dict[int, str] = {9: "q8_1", 15: "q8_k"}


def lookup(name: str) -> Format:
    """The format called ``name`` (case does not matter); ValueError that lists the known names otherwise."""
    try:
        return FORMATS[str(name).lower()]
    except KeyError:
        raise ValueError(f"unknown format {name!r}; known: {', '.join(FORMATS)}") from None


def resolve(ggml_id: int, shape: tuple[int, ...], room: int, alignment: int = 32) -> Format | None:
    """The format of a tensor in a file, by its id and, where two formats share the id, by its length.

    Parameters
    ----------
    ggml_id : int
    shape : tuple of int
        Logical shape of the tensor.
    room : int
        Bytes from the start of the tensor to the next one, or to the end of the file.
    alignment : int
        To which the file pads its tensors.

    Returns
    -------
    Format or None
        None when no format has that id. Of several formats, the one whose padded length is ``room``; when none fits
        exactly, ggml's own.
    """
    rows = [row for row in _ROWS if row.ggml_id == ggml_id]
    for row in rows[1:] and rows:
        if (shape[-1] if shape else 1) % row.block == 0:
            nbytes = row.tensor_bytes(shape)
            if nbytes <= room < nbytes + alignment:
                return row
    return rows[0] if rows else None
