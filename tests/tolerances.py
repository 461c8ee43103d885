"""What tests may call equal: the one table.

Kernels keep the order and the roundings of their specification, so the first table is nearly everything: equal bits.
Tolerances exist only against references in float64, which have other roundings. They are bounds from the analysis of
rounding errors (a sum of n terms one after the other is off by at most n U of the sum of magnitudes), not numbers that
happened to pass.
"""

from __future__ import annotations

# Half a unit in the last place of 1: the largest relative error of one float32 operation.
U = 2.0**-24

# Family -> what has to give the same bits. "scalar" is the specification, "variants" every instruction set, "threads"
# any number of threads, "batch" a row or query alone and among others.
EXACT = {
    "act_blocks": ("scalar", "variants", "threads", "batch"),
    "act_quant": ("scalar", "variants", "threads", "batch"),
    "attention": ("scalar", "variants", "threads", "batch"),
    "block_dot": ("scalar", "variants", "threads", "batch"),
    "dequantize": ("scalar", "variants", "threads", "batch", "gguf package"),
    "dequantize_iq": ("scalar", "variants", "threads", "batch", "gguf package"),
    "dequantize_tiny": ("scalar", "variants", "threads", "batch", "gguf package"),
    "encode": ("scalar", "variants", "threads", "batch"),
    "encode_iq": ("scalar", "variants", "threads", "batch"),
    "encode_k": ("scalar", "variants", "threads", "batch"),
    "encode_tiny": ("scalar", "variants", "threads", "batch"),
    "elementwise": ("scalar", "variants", "threads"),
    "kv_store": ("scalar", "variants", "threads"),
    "linear_quant": ("scalar", "variants", "threads", "batch"),
    "matmul": ("scalar", "variants", "threads", "batch"),
    "matmul_steps": ("scalar", "variants"),
    "moe": ("scalar", "variants", "threads", "batch"),
    "norm": ("scalar", "variants", "threads", "batch"),
    "reduce": ("scalar", "variants", "threads", "batch"),
    "rope": ("scalar", "variants", "threads", "batch"),
    "softmax": ("scalar", "variants", "threads", "batch"),
    "ternary": ("scalar", "variants", "threads", "batch"),
}

# A sum in 16 lanes and a tree over them.
LANES = 16


def chain(n: int) -> float:
    """Error of n operations in a row, relative to the sum of the magnitudes: dense and quantized products."""
    return (n + 1) * U


def lane_sum(n: int) -> float:
    """Relative error of a sum of n positive numbers in 16 lanes."""
    return (n / LANES + 6) * U


def rms_norm(n: int) -> float:
    """Relative error of a normalized element: half of the sum's, then mean, eps, root, reciprocal, two products."""
    return lane_sum(n) / 2 + 7 * U


def softmax(n: int, largest: float) -> float:
    """Relative error of a probability whose scores (scaled, with mask) have at most this magnitude.

    Scores are rounded three times, which the exponential turns into a relative error; it counts twice, here and in the
    sum that divides.
    """
    return 2 * (6 * largest + 4) * U + lane_sum(n) + U


def attention(n: int, d: int, largest: float) -> float:
    """Error over the largest value for n keys, d features and a sum of |q k| of at most ``largest`` after scaling."""
    return 2 * (d + 6) * largest * U + softmax(n, largest) + chain(n)


# Operation -> (error relative to the result, error relative to |x|, absolute error), with e^x good for 3.4 U. Where an
# exponential overflows to infinity the quotient is 0 instead of something below the absolute error.
ELEMENTWISE = {
    "relu": (0, 0, 0),
    "exp": (3.4 * U, 0, 2.0**-149),
    "sqrt": (U, 0, 0),
    "sigmoid": (6 * U, 0, 1e-38),
    "silu": (6 * U, 0, 1e-36),
    "tanh": (0, 0, 3e-7),
    "gelu": (6 * U, 8 * U, 1e-36),
    "quick_gelu": (6 * U, 8 * U, 1e-36),
    "negative": (0, 0, 0),
    "abs": (0, 0, 0),
}

# gelu_quant over its 65536 half-precision arguments, (how many may be off, by how many half-precision steps): from the
# correctly rounded value, because it is rounded twice, and from ggml's table, whose own 1 + tanh cancels around -4.
GELU_QUANT = {"correctly rounded": (8, 1), "ggml's table": (280, 2)}

# A quarter turn off at most: angles are made in float64, cosines and sines are rounded once, two products and a sum.
ROPE = 3 * U
