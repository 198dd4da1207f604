# A few elements of tensors: whether they are as they were, asked before each call.

cdef int64_t LARGEST_SAMPLE = 16  # bytes of the largest element of torch


cdef class Samples:
    """Elements of memories of the caller, and what they were.

    Args:
        rows: ``(address, bytes, number)`` of each element: where it lies, at most `LARGEST_SAMPLE`, and which tensor it
            is of. The memory must be there as long as it is asked for.
    """

    cdef int64_t *rows
    cdef char *kept
    cdef Py_ssize_t count

    def __cinit__(self, rows):
        cdef Py_ssize_t place
        cdef uintptr_t address
        cdef int64_t num_bytes, number
        self.count = len(rows)
        self.rows = <int64_t *>malloc(max(self.count, 1) * 3 * sizeof(int64_t))
        self.kept = <char *>malloc(max(self.count, 1) * LARGEST_SAMPLE)
        if not self.rows or not self.kept:
            raise MemoryError
        for place, (address, num_bytes, number) in enumerate(rows):
            if not address or not 0 < num_bytes <= LARGEST_SAMPLE:
                raise ValueError(f"a sample of {num_bytes} bytes at {address:#x}")
            self.rows[3 * place], self.rows[3 * place + 1] = <int64_t>address, num_bytes
            self.rows[3 * place + 2] = number
        self.take()

    def __dealloc__(self):
        free(self.rows)
        free(self.kept)

    def take(self):
        """Keep what the elements are now."""
        cdef Py_ssize_t place
        with nogil:
            for place in range(self.count):
                memcpy(
                    self.kept + place * LARGEST_SAMPLE, <void *><uintptr_t>self.rows[3 * place],
                    self.rows[3 * place + 1],
                )

    def changed(self):
        """Return the numbers of the tensors of which an element is another now."""
        cdef Py_ssize_t place
        cdef int64_t *row
        cdef int64_t last = -1
        cdef list found = []
        for place in range(self.count):
            row = self.rows + 3 * place
            if row[2] != last and memcmp(self.kept + place * LARGEST_SAMPLE, <void *><uintptr_t>row[0], row[1]):
                last = row[2]
                found.append(last)
        return found
