# cython: language_level=3
"""Sorting, selection and search; see sort_body.h."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "sort.h" nogil:
    ti_kernel select_sort()
    ti_kernel select_select()
    ti_kernel select_search()
    ti_kernel select_histogram()

SORT = make_kernel("sort", select_sort())
SELECT = make_kernel("select", select_select())
SEARCH = make_kernel("search", select_search())
HISTOGRAM = make_kernel("histogram", select_histogram())
