"""How tensors of torch lie, all of a call at a time: asking in Python takes as long as a small program runs."""


cdef bint lies_row_major(tensor, dtype) except -1:
    """Whether a tensor is of an element type and row-major, and means what its memory holds."""
    return tensor.dtype is dtype and tensor.is_contiguous() and is_as_held(tensor, dtype)


cdef bint lies_in(tensor, dtype, strides) except -1:
    """Whether a tensor is of an element type, has these strides, and means what its memory holds."""
    return tensor.dtype is dtype and tensor.stride() == strides and is_as_held(tensor, dtype)


cdef bint is_as_held(tensor, dtype) except -1:
    """Whether a tensor means what its memory holds: torch leaves no sign to the reader, nor has it zeros without memory."""
    return not (tensor.is_neg() or tensor._is_zerotensor() or (dtype.is_complex and tensor.is_conj()))


def are_row_major(tensors, dtypes):
    """Return whether tensors are of given element types and row-major, and mean what their memory holds.

    Args:
        tensors: Of torch.
        dtypes: Of torch, as many.
    """
    cdef Py_ssize_t place
    if len(tensors) != len(dtypes):
        raise ValueError(f"{len(tensors)} tensors and {len(dtypes)} element types")
    for place in range(len(dtypes)):
        if not lies_row_major(tensors[place], dtypes[place]):
            return False
    return True
