"""Sorting, selection and search."""

from .kernel import AnyKernel, Kernel

SORT: AnyKernel = Kernel("sort")
SELECT: AnyKernel = Kernel("select")
SEARCH: AnyKernel = Kernel("search")
HISTOGRAM: AnyKernel = Kernel("histogram")
