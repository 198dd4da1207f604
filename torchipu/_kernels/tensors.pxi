"""How tensors of torch lie, all of a call at a time: asking in Python takes as long as a small program runs."""


def are_row_major(tensors, dtypes):
    """Return whether tensors are of given element types and row-major, and mean what their memory holds.

    Args:
        tensors: Of torch.
        dtypes: Of torch, real ones, as many.
    """
    cdef Py_ssize_t place
    if len(tensors) != len(dtypes):
        raise ValueError(f"{len(tensors)} tensors and {len(dtypes)} element types")
    for place in range(len(dtypes)):
        tensor = tensors[place]
        if tensor.dtype is not dtypes[place] or not tensor.is_contiguous() or tensor.is_neg() or tensor._is_zerotensor():
            return False
    return True
