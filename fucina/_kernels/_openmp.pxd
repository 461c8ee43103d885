cdef extern from *:
    """
    #ifdef _OPENMP
      #include <omp.h>
      #define FUCINA_OPENMP _OPENMP
    #else
      #define FUCINA_OPENMP 0
      static inline int omp_get_max_threads(void) { return 1; }
      static inline int omp_get_num_procs(void) { return 1; }
      static inline int omp_in_parallel(void) { return 0; }
    #endif
    """
    int omp_get_max_threads() noexcept nogil
    int omp_get_num_procs() noexcept nogil
    int omp_in_parallel() noexcept nogil
    int FUCINA_OPENMP
