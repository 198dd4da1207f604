# Copies between memories of the caller and of programs, on threads of the engine: those of torch would go on spinning.

cdef int64_t COPY_PIECE = 1 << 16  # bytes that a thread copies at a time
cdef int64_t LEAST_SHARED = 1 << 22  # bytes below which waking threads takes longer than copying
cdef int64_t LEAST_SHARED_BEFORE_RUN = 1 << 17  # the same for threads that would be woken right afterwards anyway


cdef int copy_pieces(char *const *args, const int64_t *ints, const double *scalars, int64_t begin, int64_t end,
                     void *scratch) noexcept nogil:
    """Copy some rows of ``ints``: where to, where from, how many bytes."""
    cdef int64_t i
    for i in range(begin, end):
        memcpy(<void *><uintptr_t>ints[3 * i], <void *><uintptr_t>ints[3 * i + 1], ints[3 * i + 2])
    return 0


def copy_memory(copies, int threads, bint before_run=False):
    """Copy memories that do not overlap, in one go that no signal interrupts.

    Args:
        copies: ``(address to copy to, address to copy from, bytes)`` of each.
        threads: Threads that may take part; the caller does all of it where there is little.
        before_run: Whether the same threads run something right afterwards.

    Raises:
        ExecutionError: Bytes are to be copied from or to no memory.
    """
    cdef int64_t total = 0, pieces = 0, left, place = 0, least
    cdef uintptr_t target, source
    cdef int64_t *rows
    cdef ti_job job
    for target, source, left in copies:
        if left > 0 and not (target and source):
            raise without_memory(f"of {left} bytes")
        total += left
        pieces += (left + COPY_PIECE - 1) // COPY_PIECE
    rows = <int64_t *>malloc(max(pieces, 1) * 3 * sizeof(int64_t))
    if not rows:
        raise MemoryError
    for target, source, left in copies:
        while left > 0:
            rows[3 * place], rows[3 * place + 1] = <int64_t>target, <int64_t>source
            rows[3 * place + 2] = min(left, COPY_PIECE)
            target, source, left = target + COPY_PIECE, source + COPY_PIECE, left - COPY_PIECE
            place += 1
    try:
        least = LEAST_SHARED_BEFORE_RUN if before_run else LEAST_SHARED
        if threads <= 1 or total < least or getattr(_RUNNING, "active", False):
            with nogil:
                copy_pieces(NULL, rows, NULL, 0, pieces, NULL)
            return
        job = ti_job(copy_pieces, NULL, rows, NULL, pieces, 1, 1, 0, 0, False, NULL, 0, 0, 0)
        with _LOCK:
            if ti_prepare(threads, 0):
                raise MemoryError("no memory, or no threads, for the engine")
            with nogil:
                ti_run(&TI_POOL, &job, threads)
    finally:
        free(rows)
