"""The OpenMP runtime that the kernels use, seen from Python.

Built without OpenMP, the same names exist and mean "one thread".
"""


def max_threads():
    """Threads that the runtime would give to a region opened now by this thread (``omp_get_max_threads``).

    ``OMP_NUM_THREADS`` and the limits that ``threadpoolctl`` sets show up here.
    """
    return omp_get_max_threads()


def num_procs():
    """Processors that the runtime sees for this process (``omp_get_num_procs``)."""
    return omp_get_num_procs()


def in_parallel():
    """True inside an active parallel region."""
    return omp_in_parallel() != 0


def runtime_version():
    """Date of the OpenMP specification the kernels were compiled for, as yyyymm; 0 without OpenMP."""
    return FUCINA_OPENMP
