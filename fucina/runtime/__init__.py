"""Decisions taken at run time: which variant of the kernels, how many threads, which knobs, what scratch memory."""
