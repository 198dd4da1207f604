# Tables of numbers that callers hold; see abi.pyx. Cython's typed memoryviews would be a third of the engine's C.


cdef class Rows:
    """A row-major table of int64, which stays where it is as long as this lives.

    Args:
        table: With the buffer protocol, such as an array of NumPy's: ``[rows, columns]``.

    Raises:
        ValueError: It has other dimensions or numbers, or gaps.
    """

    cdef Py_buffer view
    cdef int64_t count          # of rows
    cdef int64_t columns

    def __cinit__(self, table):
        try:
            PyObject_GetBuffer(table, &self.view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
        except BufferError as error:
            raise ValueError(f"expected row-major int64[rows, columns]: {error}") from None
        if self.view.ndim != 2 or self.view.format not in (b"l", b"q") or self.view.itemsize != sizeof(int64_t):
            raise ValueError(f"expected int64[rows, columns], got {self.view.ndim} dimensions of type"
                             f" {self.view.format.decode()!r}, as the struct module names it")
        self.count, self.columns = self.view.shape[0], self.view.shape[1]

    def __dealloc__(self):
        PyBuffer_Release(&self.view)

    cdef const int64_t *row(self, int64_t number) noexcept nogil:
        return <const int64_t *>self.view.buf + number * self.columns
