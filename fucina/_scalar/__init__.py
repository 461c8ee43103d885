"""The specification: every kernel in plain Python and NumPy, serial, one operation after the other.

Modules and entries have the names of their compiled twins and the same arguments, without the number of threads. NumPy
is used across independent outputs only; whatever has an order is a Python loop, and every rounding is a visible
float32 operation. Compiled kernels are tested to give these bits.
"""
