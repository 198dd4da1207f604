# cython: language_level=3
"""The kernel that interprets chains of elementwise instructions; see elementwise_body.h."""

from torchipu._kernels.abi cimport make_kernel, ti_kernel

cdef extern from "elementwise.h" nogil:
    ti_kernel select_chain()
    const char *const TI_CHAIN_OP_NAMES[]
    int TI_NUM_CHAIN_OPS
    const char *const TI_SCALAR_OP_NAMES[]
    int TI_NUM_SCALAR_OPS

CHAIN = make_kernel("chain", select_chain())
OPERATIONS = {TI_CHAIN_OP_NAMES[i].decode(): i for i in range(TI_NUM_CHAIN_OPS)}
SCALAR_OPERATIONS = frozenset(TI_SCALAR_OP_NAMES[i].decode() for i in range(TI_NUM_SCALAR_OPS))
