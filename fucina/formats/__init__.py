"""Storage formats: the table of formats and the tensors that are stored in them."""

from .activations import LAYOUTS, QActivations, pair
from .qtensor import PackedQTensor, QTensor
from .table import BY_ID, FORMATS, KNOWN_IDS, Format, lookup, resolve

__all__ = [
    "BY_ID", "FORMATS", "KNOWN_IDS", "LAYOUTS", "Format", "PackedQTensor", "QActivations", "QTensor", "lookup", "pair",
    "resolve",
]
