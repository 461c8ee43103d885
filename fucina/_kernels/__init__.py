"""Compiled kernels, one subpackage per variant (``fucina.runtime.isa`` chooses). Unchecked: call ``fucina.ops``."""
