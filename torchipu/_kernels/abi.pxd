from libc.stdint cimport int64_t

cdef extern from "abi.h" nogil:
    ctypedef int (*ti_kernel)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin,
                              int64_t end, void *scratch) noexcept nogil

cdef class Kernel:
    cdef readonly str name
    cdef ti_kernel function

cdef Kernel make_kernel(str name, ti_kernel function)
