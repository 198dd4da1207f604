# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False
"""The engine: a flat list of kernel calls, run without the GIL on threads of its own."""

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy

import os
import threading
import warnings

from torchipu._kernels.table import all_kernels
from torchipu.errors import ExecutionError

cdef extern from "table/all.h" nogil:
    ctypedef int (*ti_kernel)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin,
                              int64_t end, void *scratch) noexcept nogil
    ctypedef struct ti_record:
        const char *name
        const char *ints
        const char *scalars
    const ti_record *const TI_TABLES[]
    ti_kernel ti_pick(const ti_record *entry)
    int ti_lacks_avx512()
    int ti_has_bfloats()

cdef extern from "philox.h" nogil:
    void ti_philox(const uint32_t *counter, const uint32_t *key, uint32_t *out)

cdef extern from "team.h" nogil:
    ctypedef struct ti_pool:
        pass
    ti_pool TI_POOL
    ti_pool TI_TEAM
    ctypedef struct ti_ending:
        ti_kernel fn
        const int64_t *ints
        int64_t item_floats
        int64_t scratch_bytes
        int from_ "from"
        int to
        int random
    ctypedef struct ti_job:
        ti_kernel fn
        char **args
        const int64_t *ints
        const double *scalars
        int64_t items
        int64_t grain
        int64_t lanes
        int64_t scratch_bytes
        int num_args
        int takes_turns
        const ti_ending *endings
        int num_endings
        int64_t first_item
        int64_t round_items
    ctypedef struct ti_near:
        int64_t offset
        int64_t unit_bytes
        int argument
    ctypedef struct ti_part:
        ti_job job
        int64_t per_unit
        const ti_near *near
        int num_near
        int number
    ctypedef struct ti_strand:
        const ti_part *parts
        int64_t units
        int64_t near_at
        int64_t near_bytes
        int num_parts
    ctypedef struct ti_phase:
        const ti_strand *strands
        int64_t units
        int num_strands
    int TI_MAX_ARGS
    int64_t TI_TRAP
    bint TI_CHECKED
    void TI_OPEN(char *at, size_t num_bytes)
    void TI_CLOSE(char *at, size_t num_bytes)
    int ti_prepare(int threads, int64_t scratch_bytes)
    int ti_prepare_scratch(ti_pool *pool, int threads, int64_t scratch_bytes)
    void ti_mark_scratch(ti_pool *pool, int threads, int64_t scratch_bytes)
    int ti_kept_to_scratch(ti_pool *pool, int threads, int64_t scratch_bytes)
    int ti_run(ti_pool *pool, const ti_job *job, int threads)
    int64_t ti_run_phase(ti_pool *pool, const ti_phase *phase, int threads)
    void ti_begin(ti_pool *pool)
    void ti_end(ti_pool *pool)
    int ti_call_flushing(ti_kernel fn, char **args, const int64_t *ints, const double *scalars, int64_t items,
                         void *scratch)
    int ti_can_borrow()
    int ti_borrow(int (*body)(void *) noexcept nogil, void *context, int threads)

cdef extern from "stdlib.h" nogil:
    void *aligned_alloc(size_t alignment, size_t num_bytes)

cdef extern from "time.h" nogil:
    ctypedef long time_t
    cdef struct timespec:
        time_t tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec *now)

cdef extern from * nogil:
    """
    #include <time.h>
    static int ti_clock = CLOCK_MONOTONIC, ti_coarse_clock = CLOCK_MONOTONIC_COARSE;
    """
    int ti_clock, ti_coarse_clock

CHECKED = TI_CHECKED  # whether a bad access of a kernel ends the process: see make checked

include "functions.pxi"  # the C functions of kernels
include "rows.pxi"  # tables of numbers that callers hold
include "steps.pxi"  # Steps: what a plan runs
include "phases.pxi"  # Phases: which of these steps run between two meetings of all threads
include "loops.pxi"  # Plan: how it runs that
include "copies.pxi"  # copies at the edge of a call
include "samples.pxi"  # a few elements of tensors, and whether they are as they were
include "tensors.pxi"  # how what a call is given lies
include "modules.pxi"  # what a model is made of
include "calls.pxi"  # Call: a plan as a compiled graph calls it, with what stays from call to call

# What runs kernels by themselves, without a plan of many steps.

cdef struct VertexCall:
    ti_kernel function
    int first                   # of its arguments
    int64_t *ints
    double *scalars
    int64_t items


def run_kernel(kernel, args, ints=(), scalars=(), int64_t items=1, int64_t grain=1, int threads=1,
               int64_t scratch_bytes=0, int64_t round_items=0):
    """Run one kernel on addresses; for tests.

    Its scratch holds NaN before, and so do some bytes behind it.

    Raises:
        KernelTrap: The kernel refused its input.
        RuntimeError: It wrote past the scratch that it was given.
    """
    kernel.check(len(args), ints, scalars)
    plan = Plan(len(args))
    plan.add_step(kernel, range(len(args)), [0] * len(args), ints, scalars, items, grain, scratch_bytes,
                  round_items=round_items)
    for buffer, address in enumerate(args):
        plan.bind(buffer, address)
    if ti_prepare(threads, scratch_bytes):
        raise MemoryError("no memory, or no threads, for the engine")
    ti_mark_scratch(&TI_POOL, threads, scratch_bytes)
    plan.run((0, 0), (0, 1), (1, 1), 1, 1, threads)
    if not ti_kept_to_scratch(&TI_POOL, threads, scratch_bytes):
        raise RuntimeError(f"{kernel.name} wrote past the {scratch_bytes} bytes of scratch that its step asks for")


def call_kernel(kernel, args, ints=(), scalars=(), int64_t items=1):
    """Run one kernel that needs no scratch on addresses, on this thread alone, also while the engine runs on others.

    Args:
        kernel: What to run.
        args: Addresses.
        ints: Its numbers.
        scalars: Its real numbers.
        items: How many of its items there are.

    Raises:
        KernelTrap: The kernel refused its input.
    """
    cdef char *places[64]
    cdef double reals[16]
    cdef int i, trap
    cdef ti_kernel function = function_of(kernel)
    kernel.check(len(args), ints, scalars)
    cdef int64_t *numbers = copied(kernel.flat_ints(ints))
    scalars = kernel.flat_scalars(scalars)
    if len(args) > 64 or len(scalars) > 16:
        free(numbers)
        raise ValueError(f"{kernel.name}: {len(args)} arguments and {len(scalars)} scalars are too many")
    for i in range(len(args)):
        places[i] = <char *><uintptr_t>args[i]
    for i in range(len(scalars)):
        reals[i] = scalars[i]
    with nogil:
        trap = ti_call_flushing(function, places, numbers, reals, items, NULL)
        free(numbers)
    if trap:
        raise KernelTrap(0, trap)


def run_vertices(calls, places):
    """Run some kernels for each vertex of a compute set, each on memory of its own, on this thread.

    Args:
        calls: ``(kernel, number of arguments, ints, scalars, items, scratch_bytes)``: what each vertex runs, in order.
        places: ``int64[vertices, arguments of all calls]``, row-major, addresses.

    Raises:
        KernelTrap: A kernel refused its input; the step that it names is the number of the vertex.
        ValueError: There are not as many places as arguments, or they are of another type or layout.
    """
    cdef Rows addresses = Rows(places)
    cdef int64_t vertex = 0, num_vertices = addresses.count
    cdef int k, num_calls = len(calls), trap = 0, arguments = 0
    cdef VertexCall *listed = <VertexCall *>calloc(max(num_calls, 1), sizeof(VertexCall))
    cdef char *scratch = NULL
    if not listed:
        raise MemoryError
    try:
        for k, (kernel, num_args, ints, scalars, items, scratch_bytes) in enumerate(calls):
            kernel.check(num_args, ints, scalars)
            listed[k].function = function_of(kernel)
            listed[k].first = arguments
            arguments += num_args
            listed[k].items = items
            listed[k].ints = copied(kernel.flat_ints(ints))
            listed[k].scalars = reals_of(kernel.flat_scalars(scalars))
        if arguments != addresses.columns:
            raise ValueError(f"the calls take {arguments} arguments, and {addresses.columns} were given")
        scratch = <char *>aligned_alloc(64, (max([call[5] for call in calls], default=0) + 127) // 64 * 64)
        if not scratch:
            raise MemoryError
        with nogil:
            while vertex < num_vertices and not trap:
                for k in range(num_calls):
                    trap = ti_call_flushing(listed[k].function, (<char **>addresses.row(vertex)) + listed[k].first,
                                            listed[k].ints, listed[k].scalars, listed[k].items, scratch)
                    if trap:
                        break
                vertex += 1
        if trap:
            raise KernelTrap(vertex - 1, trap)
    finally:
        for k in range(num_calls):
            free(listed[k].ints)
            free(listed[k].scalars)
        free(listed)
        free(scratch)


def philox(counter, key):
    """Return the four words of one Philox-4x32-10 block, for tests against published answers."""
    cdef uint32_t c[4]
    cdef uint32_t k[2]
    cdef uint32_t out[4]
    for i in range(4):
        c[i] = counter[i]
    for i in range(2):
        k[i] = key[i]
    ti_philox(c, k, out)
    return tuple(out[i] for i in range(4))


def fence(uintptr_t address, int64_t num_bytes, spans):
    """Let an access to some memory outside given spans end the process, where the kernels are of the checked flavour.

    Args:
        address: Where the memory begins, on a boundary of 8 bytes.
        num_bytes: Its size.
        spans: Of each stretch that may be read and written the first byte and that after the last.
    """
    cdef char *memory = <char *>address
    cdef int64_t begin, end
    TI_CLOSE(memory, num_bytes)
    for begin, end in spans:
        TI_OPEN(memory + begin, end - begin)
