# The C functions of the kernels, by name, and what they say when they stop; see abi.pyx.

TRAPS = {1: "an index is out of range", 2: "a value is out of the range of its type", 3: "a kernel failed",
         4: "a result is too large for its type: overflow", 5: "an operation is invalid: its result is not a number",
         6: "a division by zero", 7: "an assertion does not hold"}


def without_memory(what):
    """Return the error of a tensor that would be read where there is nothing.

    Args:
        what: Which one.
    """
    return ExecutionError(
        f"a tensor {what} has no memory: its storage was resized to 0 bytes",
        remedy="resize the storage back before the call, or give another tensor",
    )


class KernelTrap(Exception):
    """A kernel stopped the program.

    Attributes:
        step: Its number in the plan.
        trap: What it said.
        reason: The same in words.
        micro_batch: In which micro-batch since the beginning of the run.
        replica: In which replica.
    """

    def __init__(self, int step, int trap, int64_t micro_batch=0, int64_t replica=0):
        super().__init__(f"step {step}: {TRAPS.get(trap, trap)}")
        self.step = step
        self.trap = trap
        self.reason = TRAPS.get(trap, str(trap))
        self.micro_batch = micro_batch
        self.replica = replica


cdef class Function:
    """The C function of a kernel, and the names of its numbers as they were when it was compiled."""

    cdef ti_kernel function
    cdef readonly tuple layout


cdef dict compiled_functions():
    """Return the functions of all kernels by name, for the instruction set of this machine."""
    cdef dict found = {}
    cdef Function function
    cdef const ti_record *entry
    cdef int i = 0
    while TI_TABLES[i] != NULL:
        entry = TI_TABLES[i]
        while entry.name != NULL:
            function = Function.__new__(Function)
            function.function = ti_pick(entry)
            function.layout = (entry.ints.decode(), entry.scalars.decode())
            found[entry.name.decode()] = function
            entry += 1
        i += 1
    return found


cdef dict FUNCTIONS = compiled_functions()


def check_table(kernels):
    """Refuse kernels whose C functions are missing, or were compiled for numbers of other names.

    Raises:
        ImportError: The table is another one than that of which the extension was built.
    """
    for kernel in kernels:
        function = FUNCTIONS.get(kernel.name)
        if function is None:
            raise ImportError(
                f"the kernel {kernel.name!r} of the table has no C function in {__file__}\n"
                "  do      python setup.py build_ext --inplace  (in the checkout)")
        if function.layout != kernel.layout:
            raise ImportError(
                f"the kernel {kernel.name!r} takes {kernel.layout}, and was built for {function.layout}\n"
                "  do      python setup.py build_ext --inplace  (in the checkout)")


def tell_of_left_out_kernels(*, lacks):
    """Warn where the machine would run faster kernels than were built.

    Args:
        lacks: Whether it has AVX-512, and the build was made on a machine without.
    """
    if lacks:
        warnings.warn(
            f"torchipu: this machine has AVX-512, and {__file__} was built on one without it: programs run on the "
            "kernels for AVX2, which take longer\n"
            "  do      TORCHIPU_KERNELS=all pip install --force-reinstall --no-deps ...  (as it was installed), or\n"
            "          python setup.py build_ext --inplace --force  (in the checkout)", stacklevel=2)


HAS_BFLOATS = bool(ti_has_bfloats())


check_table(all_kernels())
tell_of_left_out_kernels(lacks=bool(ti_lacks_avx512()))


cdef ti_kernel function_of(kernel) except NULL:
    """Return the C function of a kernel of the table.

    Raises:
        ValueError: The extension has no kernel of the name.
    """
    found = FUNCTIONS.get(kernel.name)
    if found is None:
        raise ValueError(f"there is no kernel {kernel.name!r}")
    if (<Function>found).function is NULL:
        raise ValueError(f"the kernel {kernel.name!r} needs instructions that this build or this machine does not have")
    return (<Function>found).function


cdef int64_t *copied(values) except NULL:
    """Return the numbers of a list in memory to be freed."""
    cdef int i
    cdef int64_t *held = <int64_t *>malloc(max(len(values), 1) * sizeof(int64_t))
    if not held:
        raise MemoryError
    for i in range(len(values)):
        held[i] = values[i]
    return held


cdef double *reals_of(values) except NULL:
    """Return the real numbers of a list in memory to be freed."""
    cdef int i
    cdef double *held = <double *>malloc(max(len(values), 1) * sizeof(double))
    if not held:
        raise MemoryError
    for i in range(len(values)):
        held[i] = values[i]
    return held
