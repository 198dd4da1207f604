# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The engine: a flat list of kernel calls, run without the GIL on threads of its own."""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint32_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

import os
import threading

from torchipu._kernels.table import all_kernels

cdef extern from "table/all.h" nogil:
    ctypedef int (*ti_kernel)(char *const *args, const int64_t *ints, const double *scalars, int64_t begin,
                              int64_t end, void *scratch) noexcept nogil
    ctypedef struct ti_record:
        const char *name
        const char *ints
        const char *scalars
    const ti_record *const TI_TABLES[]
    ti_kernel ti_pick(const ti_record *entry)

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
    int TI_MAX_ARGS
    bint TI_CHECKED
    void TI_OPEN(char *at, size_t num_bytes)
    void TI_CLOSE(char *at, size_t num_bytes)
    int ti_prepare(int threads, int64_t scratch_bytes)
    int ti_prepare_scratch(ti_pool *pool, int threads, int64_t scratch_bytes)
    int ti_run(ti_pool *pool, const ti_job *job, int threads)
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
    static int ti_clock = CLOCK_MONOTONIC;
    """
    int ti_clock

# How the lanes of a step, runs of it on other micro-batches, may go; see ``Plan.add_step``.
APART, IN_ITEMS, IN_TURN = 0, 1, 2
cdef enum:
    _IN_ITEMS = 1
    _IN_TURN = 2
MAX_LANES = 64
CHECKED = TI_CHECKED  # whether a bad access of a kernel ends the process: see make checked

# One engine runs at a time: its threads and their scratch are shared by the whole process.
_LOCK = threading.Lock()
_RUNNING = threading.local()
PENDING = []  # the exception of a run on borrowed threads, until it is out of OpenMP's region


def _renew_lock():
    """Give a forked child a lock of its own: another thread of the parent may have held it."""
    global _LOCK
    _LOCK = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)

TRAPS = {1: "an index is out of range", 2: "a value is out of the range of its type", 3: "a kernel failed",
         4: "a result is too large for its type: overflow", 5: "an operation is invalid: its result is not a number",
         6: "a division by zero"}


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


check_table(all_kernels())


cdef ti_kernel function_of(kernel) except NULL:
    """Return the C function of a kernel of the table.

    Raises:
        ValueError: The extension has no kernel of the name.
    """
    found = FUNCTIONS.get(kernel.name)
    if found is None:
        raise ValueError(f"there is no kernel {kernel.name!r}")
    return (<Function>found).function


cdef struct Loops:
    void *plan                  # the Plan, borrowed
    ti_pool *pool
    int prologue[2]
    int reset[2]
    int body[2]
    int fold[2]
    int update[2]
    int64_t micro_batches
    int64_t replicas
    int64_t iterations
    int threads
    int64_t *counters
    int num_counters
    int beside[2]               # micro-batches and replicas that run side by side
    int counter_buffer
    int lanes                   # that run now
    int first_lane              # the number of the first of them
    int last_lane               # that ran in the body
    char **args                 # of all of them
    const int64_t *order        # of the parts of the body: see ``Plan.run``; NULL for micro-batch after micro-batch
    int64_t num_ordered
    bint interruptible
    double checked              # when signals were last looked for
    int at                      # the step that runs
    int64_t micro_batch         # the one that runs, counted from the beginning, and its replica
    int64_t replica


cdef struct Binding:
    char *base
    int64_t stride              # bytes from one micro-batch to the next
    int64_t replica_stride      # bytes from one value to the next among those of the replicas
    int64_t lane_stride         # bytes from one micro-batch of a group to the next that runs beside it
    int64_t divisor             # replica r takes value (r / divisor) % modulus; modulus 0 stands for no wrapping
    int64_t modulus


cdef struct Step:
    ti_kernel function          # NULL for a callback and for a jump
    int jump                    # the step to go on with, or -1 where the step is no jump
    bint transfer               # a callback that is given the address of its only argument
    bint together               # runs once for all replicas, after all of them have come so far
    int num_args
    int order                   # of lanes: APART, IN_ITEMS or IN_TURN
    int *buffers
    int64_t *offsets
    int64_t *lane_strides       # bytes from the argument of a lane to that of the next, beside what its buffer advances
    int64_t *ints
    double *scalars
    int64_t items
    int64_t grain
    int joined_lanes            # whose calls are one where their arguments lie so far apart; 0 for none
    int64_t *joined_strides
    int64_t *joined_ints
    int64_t joined_items
    int64_t joined_grain
    int64_t scratch_bytes
    ti_ending *endings
    int num_endings


cdef struct VertexCall:
    ti_kernel function
    int first                   # of its arguments
    int64_t *ints
    double *scalars
    int64_t items


def run_kernel(kernel, args, ints=(), scalars=(), int64_t items=1, int64_t grain=1, int threads=1,
               int64_t scratch_bytes=0):
    """Run one kernel on addresses; for tests and measurements.

    Raises:
        KernelTrap: The kernel refused its input.
    """
    kernel.check(len(args), ints, scalars)
    plan = Plan(len(args))
    plan.add_step(kernel, range(len(args)), [0] * len(args), ints, scalars, items, grain, scratch_bytes)
    for buffer, address in enumerate(args):
        plan.bind(buffer, address)
    plan.run((0, 0), (0, 1), (1, 1), 1, 1, threads)


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


def run_vertices(calls, const int64_t[:, ::1] places):
    """Run some kernels for each vertex of a compute set, each on memory of its own, on this thread.

    Args:
        calls: ``(kernel, number of arguments, ints, scalars, items, scratch_bytes)``: what each vertex runs, in order.
        places: ``[vertices, arguments of all calls]``, addresses.

    Raises:
        KernelTrap: A kernel refused its input; the step that it names is the number of the vertex.
        ValueError: There are not as many places as arguments.
    """
    cdef int64_t vertex = 0, num_vertices = places.shape[0]
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
        if arguments != places.shape[1]:
            raise ValueError(f"the calls take {arguments} arguments, and {places.shape[1]} were given")
        scratch = <char *>aligned_alloc(64, (max([call[5] for call in calls], default=0) + 127) // 64 * 64)
        if not scratch:
            raise MemoryError
        with nogil:
            while vertex < num_vertices and not trap:
                for k in range(num_calls):
                    trap = ti_call_flushing(listed[k].function, (<char **>&places[vertex, 0]) + listed[k].first,
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


cdef double now() noexcept nogil:
    cdef timespec t
    clock_gettime(ti_clock, &t)
    return t.tv_sec + 1e-9 * t.tv_nsec


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


cdef bint lies_joined(const Step *step, char **args, int lanes) noexcept nogil:
    """Whether the arguments of all lanes lie as one call for all of them takes them."""
    cdef int k, lane
    for k in range(step.num_args):
        for lane in range(1, lanes):
            if args[lane * step.num_args + k] != args[k] + lane * step.joined_strides[k]:
                return False
    return True


cdef void count(Loops *loops, int word, int64_t by) noexcept nogil:
    """Add to a word of every row of counters: 1 is the replica, 3 the micro-batch."""
    cdef int i
    for i in range(loops.num_counters):
        loops.counters[4 * i + word] += by


cdef class Plan:
    """A flat list of steps over numbered buffers.

    Args:
        num_buffers: How many buffers the steps name.
    """

    cdef Step *steps
    cdef readonly int num_steps
    cdef int capacity
    cdef int num_buffers
    cdef Binding *bindings
    cdef char **current         # addresses of all buffers, for each lane
    cdef int num_lanes          # for which there is room in it
    cdef int64_t scratch_bytes
    cdef list callbacks
    cdef int num_callbacks
    cdef int num_together
    cdef int64_t most_chunks    # of any step: more threads have nothing to do
    cdef list kernels

    def __cinit__(self, int num_buffers):
        cdef int i
        self.num_buffers = num_buffers
        self.bindings = <Binding *>calloc(num_buffers + 1, sizeof(Binding))
        self.current = <char **>calloc(num_buffers + 1, sizeof(char *))
        if not self.bindings or not self.current:
            raise MemoryError
        for i in range(num_buffers):
            self.bindings[i].divisor = 1
        self.num_lanes = 1
        self.callbacks = []
        self.kernels = []

    def __dealloc__(self):
        cdef int i, k
        for i in range(self.num_steps):
            free(self.steps[i].buffers)
            free(self.steps[i].offsets)
            free(self.steps[i].lane_strides)
            free(self.steps[i].ints)
            free(self.steps[i].scalars)
            free(self.steps[i].joined_strides)
            free(self.steps[i].joined_ints)
            for k in range(self.steps[i].num_endings):
                free(<void *>self.steps[i].endings[k].ints)
            free(self.steps[i].endings)
        free(self.steps)
        free(self.bindings)
        free(self.current)

    cdef Step *append(self) except NULL:
        cdef int capacity
        cdef Step *grown
        if self.num_steps == self.capacity:
            capacity = max(64, 2 * self.capacity)
            grown = <Step *>calloc(capacity, sizeof(Step))
            if not grown:
                raise MemoryError
            if self.num_steps:
                memcpy(grown, self.steps, self.num_steps * sizeof(Step))
            free(self.steps)
            self.steps = grown
            self.capacity = capacity
        self.num_steps += 1
        self.callbacks.append(None)
        self.steps[self.num_steps - 1].jump = -1
        return &self.steps[self.num_steps - 1]

    def add_step(self, kernel, buffers, byte_offsets, ints, scalars, int64_t items, int64_t grain,
                 int64_t scratch_bytes, bint together=False, int order=IN_TURN, lane_strides=(), joined=None):
        """Append a kernel call and return its number.

        A call that is made together is made once for all replicas, on the memory of the first, after each of them has
        run the steps before it. ``order`` says how micro-batches and replicas that run side by side make the call:
        ``APART`` where each writes memory of its own, in any order; ``IN_ITEMS`` where they add onto the same memory,
        an item of the call onto a part that no other item touches, in their order within each item; ``IN_TURN`` one
        after another. ``lane_strides`` are the bytes from each argument of one of them to that of the next. ``joined``
        is ``(lanes, strides, ints, items, grain)`` of the call that does what so many of them do, where their arguments
        turn out to lie ``strides`` bytes apart.
        """
        buffers, byte_offsets = list(buffers), list(byte_offsets)
        ints, scalars = kernel.flat_ints(ints), kernel.flat_scalars(scalars)
        if len(buffers) > TI_MAX_ARGS:
            raise ValueError(f"{kernel.name} has {len(buffers)} arguments, at most {TI_MAX_ARGS}")
        if grain < 1:
            raise ValueError(f"{kernel.name}: grain {grain} is less than 1")
        strides = list(lane_strides) or [0] * len(buffers)
        if len(strides) != len(buffers) or (joined and len(joined[1]) != len(buffers)):
            raise ValueError(f"{kernel.name}: {len(buffers)} arguments, but other numbers of strides")
        for buffer in buffers:
            if not 0 <= buffer < self.num_buffers:
                raise ValueError(f"{kernel.name}: buffer {buffer} of {self.num_buffers}")
        joined_ints = kernel.flat_ints(joined[2]) if joined else ()
        cdef ti_kernel function = function_of(kernel)
        cdef Step *step = self.append()
        cdef int i
        step.function = function
        step.num_args = len(buffers)
        step.items = items
        step.grain = grain
        step.together = together
        step.order = order
        self.num_together += together
        self.most_chunks = max(self.most_chunks, (items + grain - 1) // grain)
        step.buffers = <int *>malloc(max(len(buffers), 1) * sizeof(int))
        step.offsets = <int64_t *>malloc(max(len(buffers), 1) * sizeof(int64_t))
        step.lane_strides = copied(strides)
        step.ints = copied(ints)
        if joined:
            step.joined_lanes, _, _, step.joined_items, step.joined_grain = joined
            step.joined_strides, step.joined_ints = copied(list(joined[1])), copied(joined_ints)
        step.scalars = <double *>malloc(max(len(scalars), 1) * sizeof(double))
        for i in range(len(buffers)):
            step.buffers[i] = buffers[i]
            step.offsets[i] = byte_offsets[i]
        for i in range(len(scalars)):
            step.scalars[i] = scalars[i]
        step.scratch_bytes = scratch_bytes
        self.scratch_bytes = max(self.scratch_bytes, scratch_bytes)
        self.kernels.append(kernel)
        return self.num_steps - 1

    def end_step(self, kernel, ints, int from_, int to, int random=-1, int64_t item_floats=0):
        """Let a kernel take over the items of each chunk of the last step right after they are computed.

        Args:
            kernel: Of what the first argument holds it writes another form to the second; the third are random words.
            ints: Its own.
            from_: Which argument of the step holds the results.
            to: Which argument of the step takes them.
            random: Which argument of the step holds random words; -1 for none.
            item_floats: How many results each item leaves side by side, item after item, where they are needed no
                longer: the step then writes them to the scratch of its thread. 0 where they are in memory.
        """
        cdef Step *step = &self.steps[self.num_steps - 1]
        cdef int64_t taken = 0
        cdef ti_ending *grown
        cdef int64_t *own
        cdef int i
        cdef ti_kernel function = function_of(kernel)
        ints = kernel.flat_ints(ints)
        for place in (from_, to, max(random, 0)):
            if not 0 <= place < step.num_args:
                raise ValueError(f"{kernel.name} ends a step of {step.num_args} arguments, of which {place} is none")
        grown = <ti_ending *>calloc(step.num_endings + 1, sizeof(ti_ending))
        own = <int64_t *>malloc(max(len(ints), 1) * sizeof(int64_t))
        if not grown or not own:
            free(grown)
            free(own)
            raise MemoryError
        for i in range(len(ints)):
            own[i] = ints[i]
        if step.num_endings:
            memcpy(grown, step.endings, step.num_endings * sizeof(ti_ending))
        free(step.endings)
        step.endings = grown
        if item_floats:
            taken = (step.scratch_bytes + 63) // 64 * 64
            step.scratch_bytes = taken + 4 * item_floats * step.grain + 64
            self.scratch_bytes = max(self.scratch_bytes, step.scratch_bytes)
        grown[step.num_endings] = ti_ending(function, own, item_floats, taken, from_, to, random)
        step.num_endings += 1
        self.kernels.append(kernel)

    def add_callback(self, callback):
        """Append a Python callable, run with the GIL held, and return its number."""
        cdef Step *step = self.append()
        step.function = NULL
        self.callbacks[self.num_steps - 1] = callback
        self.num_callbacks += 1
        return self.num_steps - 1

    def add_transfer(self, callback, int buffer, int64_t byte_offset=0):
        """Append a Python callable, run with the GIL held on the address of a buffer, and return its number.

        Args:
            callback: Takes the address; it may read or write there until it returns.
            buffer: Which buffer.
            byte_offset: Where in it.
        """
        if not 0 <= buffer < self.num_buffers:
            raise ValueError(f"a transfer of buffer {buffer} of {self.num_buffers}")
        cdef int number = self.add_callback(callback)
        cdef Step *step = &self.steps[number]
        step.transfer = True
        self.take_argument(step, buffer, byte_offset)
        return number

    cdef take_argument(self, Step *step, int buffer, int64_t byte_offset):
        """Give a step that calls no kernel its only argument."""
        step.buffers = <int *>malloc(sizeof(int))
        step.offsets = <int64_t *>malloc(sizeof(int64_t))
        if not step.buffers or not step.offsets:
            raise MemoryError
        step.num_args = 1
        step.buffers[0] = buffer
        step.offsets[0] = byte_offset

    def add_jump(self, int target, int buffer=-1, int64_t byte_offset=0):
        """Append a jump to another step and return its number.

        Args:
            target: Number of the step to go on with, within the range that runs.
            buffer: Buffer with a boolean: the jump is taken unless that is true. -1 for a jump that is always taken.
            byte_offset: Where in the buffer.
        """
        if target < 0 or not -1 <= buffer < self.num_buffers:
            raise ValueError(f"a jump to step {target} by buffer {buffer} of {self.num_buffers}")
        cdef Step *step = self.append()
        step.function = NULL
        step.jump = target
        if buffer >= 0:
            self.take_argument(step, buffer, byte_offset)
        return self.num_steps - 1

    def bind(self, int buffer, uintptr_t address, int64_t stride_bytes=0, int64_t replica_stride_bytes=0,
             int64_t divisor=1, int64_t modulus=0, int64_t lane_stride_bytes=0):
        """Say where a buffer lies and how far it advances.

        Args:
            buffer: Its number.
            address: Where it lies for the first micro-batch of the first replica.
            stride_bytes: From one micro-batch to the next.
            replica_stride_bytes: From one of the replicas' values to the next.
            divisor: Neighbouring replicas that share a value.
            modulus: After how many values the replicas begin again with the first; 0 for never.
            lane_stride_bytes: From one to the next of the micro-batches that run side by side.
        """
        if not 0 <= buffer < self.num_buffers:
            raise ValueError(f"buffer {buffer} of {self.num_buffers}")
        if divisor < 1 or modulus < 0:
            raise ValueError(f"buffer {buffer}: divisor {divisor}, modulus {modulus}")
        self.bindings[buffer] = Binding(
            <char *>address, stride_bytes, replica_stride_bytes, lane_stride_bytes, divisor, modulus)

    cdef bint calls_back(self, int begin, int end):
        """Whether any of these steps calls Python."""
        cdef int i
        for i in range(begin, min(end, self.num_steps)):
            if self.steps[i].function == NULL and self.steps[i].jump < 0:
                return True
        return False

    cdef int run_range(self, Loops *loops, int begin, int end) except -1 nogil:
        """Run steps; returns the trap of the one that failed, at ``loops.at``."""
        cdef ti_job job
        cdef char **current
        cdef Step *step
        cdef int i, k, lane, trap, following = begin
        while following < end:
            i = following
            following = i + 1
            step = &self.steps[i]
            loops.at = i
            if loops.interruptible and now() - loops.checked > 0.05:
                with gil:
                    PyErr_CheckSignals()
                loops.checked = now()
            if step.jump >= 0:
                if step.num_args == 0 or not (self.current[step.buffers[0]] + step.offsets[0])[0]:
                    following = step.jump
                continue
            if step.transfer:
                with gil:
                    self.callbacks[i](<uintptr_t>(self.current[step.buffers[0]] + step.offsets[0]))
                continue
            if step.function == NULL:
                with gil:
                    self.callbacks[i]()
                continue
            for lane in range(loops.lanes):
                current = self.current + lane * self.num_buffers
                for k in range(step.num_args):
                    loops.args[lane * step.num_args + k] = (
                        current[step.buffers[k]] + step.offsets[k]
                        + (loops.first_lane + lane) * step.lane_strides[k]
                    )
            job.fn = step.function
            job.args = loops.args
            job.scalars = step.scalars
            job.endings = step.endings
            job.num_endings = step.num_endings
            job.num_args = step.num_args
            job.scratch_bytes = step.scratch_bytes
            if 1 < loops.lanes == step.joined_lanes and lies_joined(step, loops.args, loops.lanes):
                job.ints, job.items, job.grain = step.joined_ints, step.joined_items, step.joined_grain
                job.lanes, job.takes_turns = 1, False
                trap = ti_run(loops.pool, &job, loops.threads)
                if trap:
                    return trap
                continue
            job.ints = step.ints
            job.items = step.items
            job.grain = step.grain
            job.takes_turns = step.order == _IN_ITEMS
            job.lanes = 1 if step.order == _IN_TURN else loops.lanes
            for lane in range(loops.lanes if step.order == _IN_TURN else 1):
                job.args = loops.args + lane * step.num_args
                trap = ti_run(loops.pool, &job, loops.threads)
                if trap:
                    return trap
        return 0

    cdef void advance(self, int64_t micro_batch, int64_t replica, int lane=0, int slot=0) noexcept nogil:
        """Say where a lane finds its buffers; ``slot`` is the place of its micro-batch among those beside it."""
        cdef char **current = self.current + lane * self.num_buffers
        cdef int64_t place
        cdef Binding *at
        cdef int i
        for i in range(self.num_buffers):
            at = &self.bindings[i]
            place = replica / at.divisor
            if at.modulus:
                place %= at.modulus
            current[i] = at.base + micro_batch * at.stride + place * at.replica_stride + slot * at.lane_stride

    cdef int run_loops(self, Loops *loops) except -1 nogil:
        """Run all iterations; returns a trap."""
        cdef int64_t iteration, position = 0
        cdef int trap
        loops.checked = now()
        for iteration in range(loops.iterations):
            loops.interruptible = True
            if self.num_together:
                trap = self.run_replicas_together(loops, position)
            elif loops.order:
                trap = self.run_parts(loops, position)
            else:
                trap = self.run_replicas(loops, position)
            if trap:
                return trap
            count(loops, 3, loops.micro_batches)
            position += loops.micro_batches
            loops.interruptible = False
            self.take_counters(loops)
            trap = self.run_range(loops, loops.update[0], loops.update[1])
            loops.first_lane = 0
            if trap:
                return trap
        return 0

    cdef int run_apart(self, Loops *loops, int begin, int end, int64_t position, int64_t first, int64_t last
                       ) except -1 nogil:
        """Run steps for some replicas, one after another, outside the loop over micro-batches; returns a trap."""
        cdef int64_t replica
        cdef int trap = 0
        for replica in range(first, last):
            self.advance(position, replica)
            self.take_counters(loops)
            loops.micro_batch, loops.replica = position, replica
            trap = self.run_range(loops, begin, end)
            if trap:
                break
        return trap

    cdef int run_parts(self, Loops *loops, int64_t position) except -1 nogil:
        """Run an iteration, less its update, in the order that is given; returns a trap."""
        cdef int trap, last = 0
        trap = self.run_apart(loops, loops.prologue[0], loops.prologue[1], position, 0, 1)
        if not trap:
            trap = self.run_apart(loops, loops.reset[0], loops.reset[1], position, 0, loops.replicas)
        if not trap:
            trap = self.run_ordered(loops, position, &last)
        position += loops.micro_batches - 1
        if not trap:
            trap = self.run_apart(loops, loops.fold[0], loops.fold[1], position, 0, loops.replicas)
        self.advance(position, loops.replicas - 1, 0, last)
        return trap

    cdef int run_ordered(self, Loops *loops, int64_t position, int *last) except -1 nogil:
        """Run parts of the body for one micro-batch of one replica after another; tells the lane of the last run."""
        cdef const int64_t *part
        cdef int64_t i
        cdef int trap = 0
        for i in range(loops.num_ordered):
            part = loops.order + 5 * i
            self.advance(position + part[2], part[3], 0, <int>part[4])
            loops.micro_batch, loops.replica = position + part[2], part[3]
            if part[2] == loops.micro_batches - 1 and part[3] == loops.replicas - 1:
                last[0] = <int>part[4]
            count(loops, 3, part[2])
            count(loops, 1, part[3])
            trap = self.run_range(loops, <int>part[0], <int>part[1])
            count(loops, 3, -part[2])
            count(loops, 1, -part[3])
            if trap:
                break
        return trap

    cdef int run_replicas_together(self, Loops *loops, int64_t position) except -1 nogil:
        """Run an iteration, less its update, of replicas that meet within a micro-batch; returns a trap.

        Each has memory of its own.
        """
        cdef int64_t micro
        cdef int trap = self.run_apart(loops, loops.prologue[0], loops.reset[1], position, 0, loops.replicas)
        for micro in range(0 if trap else loops.micro_batches):
            trap = self.run_micro_batch(loops, position + micro, 0, loops.replicas)
            if trap:
                return trap
            count(loops, 3, 1)
        count(loops, 3, -loops.micro_batches)
        position += loops.micro_batches - 1
        if trap == 0:
            trap = self.run_apart(loops, loops.fold[0], loops.fold[1], position, 0, loops.replicas)
        self.advance(position, 0)
        return trap

    cdef int run_replicas(self, Loops *loops, int64_t position) except -1 nogil:
        """Run an iteration, less its update: all micro-batches of some replicas, then of the next; returns a trap."""
        cdef int64_t first = 0, micro, last
        cdef int trap, slots = 1
        trap = self.run_apart(loops, loops.prologue[0], loops.prologue[1], position, 0, 1)
        while first < loops.replicas and not trap:
            last = min(first + loops.beside[1], loops.replicas)
            trap = self.run_apart(loops, loops.reset[0], loops.reset[1], position, first, last)
            micro = 0
            while micro < loops.micro_batches and not trap:
                slots = <int>min(<int64_t>loops.beside[0], loops.micro_batches - micro)
                if loops.beside[0] * loops.beside[1] == 1:
                    trap = self.run_micro_batch(loops, position + micro, first, last)
                else:
                    trap = self.run_beside(loops, position + micro, slots, first, last)
                count(loops, 3, slots)
                micro += slots
            count(loops, 3, -micro)
            if not trap:
                trap = self.run_fold(loops, position + loops.micro_batches - 1, slots, first, last)
            first = last
        # What the update reads beside states is the last lane's.
        self.advance(position + loops.micro_batches - 1, loops.replicas - 1, 0, slots - 1)
        loops.first_lane = loops.last_lane
        return trap

    cdef int run_fold(self, Loops *loops, int64_t position, int slots, int64_t first, int64_t last) except -1 nogil:
        """Run what folds replicas, in the lanes that they had for the last of their micro-batches; returns a trap."""
        cdef int lane, trap, width = <int>(last - first)
        for lane in range(width):
            self.advance(position, first + lane, lane, slots - 1)
        loops.lanes = width
        loops.first_lane = (slots - 1) * width
        loops.micro_batch, loops.replica = position, first
        trap = self.run_range(loops, loops.fold[0], loops.fold[1])
        loops.lanes = 1
        loops.first_lane = 0
        return trap

    cdef void take_counters(self, Loops *loops) noexcept nogil:
        """Let what runs outside the body of several lanes read the counters of all."""
        if loops.counter_buffer >= 0:
            self.current[loops.counter_buffer] = <char *>loops.counters

    cdef int run_beside(self, Loops *loops, int64_t position, int slots, int64_t first, int64_t last) except -1 nogil:
        """Run the body for some replicas of neighbouring micro-batches side by side; returns a trap."""
        cdef int64_t *own
        cdef int trap, lane, slot, replica, i, width = <int>(last - first)
        loops.lanes = slots * width
        loops.last_lane = loops.lanes - 1
        loops.micro_batch, loops.replica = position, first
        for slot in range(slots):
            for replica in range(width):
                lane = slot * width + replica
                self.advance(position + slot, first + replica, lane, slot)
                if loops.counter_buffer >= 0:
                    own = <int64_t *>self.current[lane * self.num_buffers + loops.counter_buffer]
                    memcpy(own, loops.counters, 32 * loops.num_counters)
                    for i in range(loops.num_counters):
                        own[4 * i + 1] += first + replica
                        own[4 * i + 3] += slot
        trap = self.run_range(loops, loops.body[0], loops.body[1])
        loops.lanes = 1
        return trap

    cdef int run_micro_batch(self, Loops *loops, int64_t position, int64_t first, int64_t last) except -1 nogil:
        """Run the body for some replicas, from one step that they take together to the next; returns a trap."""
        cdef int64_t replica
        cdef int trap, begin = loops.body[0], end
        while True:
            end = begin
            while end < loops.body[1] and not self.steps[end].together:
                end += 1
            for replica in range(first, last):
                self.advance(position, replica)
                loops.micro_batch, loops.replica = position, replica
                count(loops, 1, replica)
                trap = self.run_range(loops, begin, end)
                count(loops, 1, -replica)
                if trap:
                    return trap
            if end >= loops.body[1]:
                return 0
            self.advance(position, first)
            trap = self.run_range(loops, end, end + 1)
            if trap:
                return trap
            begin = end + 1

    def run(self, prologue, body, update, int64_t micro_batches, int64_t iterations, int threads,
            uintptr_t counters=0, int num_counters=0, borrow=False, int64_t replicas=1, beside=(1, 1),
            int counter_buffer=-1, reset=None, fold=None,
            const int64_t[:, ::1] order=None):
        """Run ``iterations x (prologue, replicas x (reset, micro_batches x body, fold), update)``.

        Replicas that have calls made together run every micro-batch side by side.

        Args:
            prologue: Range of steps run at the beginning of every iteration.
            body: Range of steps run for every micro-batch of every replica.
            update: Range of steps run at the end of every iteration; never interrupted by a signal.
            micro_batches: Micro-batches in an iteration.
            iterations: Iterations.
            threads: Host threads, the caller among them.
            counters: Address of rows of four int64, or 0: the body finds the number of the replica added to the
                second word, the last counts micro-batches.
            num_counters: Number of such rows.
            borrow: Whether OpenMP's threads, where there are any, do the work instead of the engine's own. For short
                runs between other work of torch's on as many threads.
            replicas: Replicas, each of which runs the body for every micro-batch.
            beside: How many micro-batches, and how many replicas of each, run the body side by side, step by step.
                The body then has neither jumps nor callbacks nor calls made together, and no two of its steps touch
                memory that one of them changes and lanes share.
            counter_buffer: Number of the buffer through which steps read the counters; it is bound to room for those
                of each lane. -1 where there are no lanes.
            reset: Range of steps run before the first micro-batch of every replica, behind the prologue; None for
                none.
            fold: Range of steps run after the last micro-batch of every replica, side by side as there, behind the
                body; None for none.
            order: Instead of all of the body for one micro-batch after another: rows of the first step of a part of
                it, the step after its last, micro-batch, replica, and which memory the run has of buffers that are
                bound with a stride from lane to lane. They name every part of every run of an iteration once, the parts
                of a run in their order and in one lane. What folds replicas reads accumulators alone then.

        Raises:
            KernelTrap: A kernel refused its input.
            RuntimeError: The engine is entered again from one of its own callbacks.
        """
        cdef Loops loops
        cdef int trap = 0
        cdef bint on_loan
        cdef int lanes = beside[0] * beside[1]
        cdef char **grown
        if not 1 <= lanes <= MAX_LANES:
            raise ValueError(f"{lanes} lanes, not 1 to {MAX_LANES}")
        if lanes > 1 and (self.calls_back(body[0], body[1]) or self.num_together or not beside[1] <= replicas):
            raise ValueError(f"a plan of {replicas} replicas cannot run {beside[0]} x {beside[1]} lanes")
        if lanes > self.num_lanes:
            grown = <char **>calloc(lanes * (self.num_buffers + 1), sizeof(char *))
            if not grown:
                raise MemoryError
            free(self.current)
            self.current, self.num_lanes = grown, lanes
        loops.beside[0], loops.beside[1] = beside
        loops.lanes = 1
        loops.first_lane = loops.last_lane = 0
        loops.counter_buffer = counter_buffer if lanes > 1 and num_counters else -1
        loops.plan = <void *>self
        loops.prologue[0], loops.prologue[1] = prologue
        loops.body[0], loops.body[1] = body
        loops.reset[0], loops.reset[1] = reset or (loops.prologue[1], loops.prologue[1])
        loops.fold[0], loops.fold[1] = fold or (loops.body[1], loops.body[1])
        if loops.reset[0] != loops.prologue[1] or loops.fold[0] != loops.body[1]:
            raise ValueError("reset comes right behind the prologue, and fold behind the body")
        loops.update[0], loops.update[1] = update
        loops.micro_batches = micro_batches
        loops.replicas = replicas
        loops.iterations = iterations
        # A region of OpenMP's, and waking threads, take longer than a small step.
        threads = <int>max(1, min(<int64_t>threads, self.most_chunks * lanes))
        loops.threads = threads
        loops.counters = <int64_t *>counters
        loops.num_counters = num_counters
        loops.order = NULL
        loops.num_ordered = 0
        if order is not None and order.shape[0]:
            if order.shape[1] != 5 or lanes > 1 or self.num_together:
                raise ValueError("an order has rows of five numbers, and neither lanes side by side nor joint steps")
            loops.order, loops.num_ordered = &order[0, 0], order.shape[0]
        loops.at = 0
        loops.micro_batch = 0
        loops.replica = 0
        if getattr(_RUNNING, "active", False):
            raise RuntimeError("the engine is already running on this thread: a callback may not run a program")
        with _LOCK:
            _RUNNING.active = True
            loops.args = <char **>malloc(lanes * TI_MAX_ARGS * sizeof(char *))
            try:
                if not loops.args:
                    raise MemoryError
                # A callback's torch operators would have no threads left inside a region of OpenMP's.
                on_loan = borrow and threads > 1 and not self.num_callbacks and ti_can_borrow()
                loops.pool = &TI_TEAM if on_loan else &TI_POOL
                if on_loan:
                    if ti_prepare_scratch(&TI_TEAM, threads, self.scratch_bytes):
                        raise MemoryError("no memory for the engine")
                    with nogil:
                        trap = ti_borrow(run_on_loan, &loops, threads)
                    if trap < 0:
                        raise_pending()
                else:
                    if ti_prepare(threads, self.scratch_bytes):
                        raise MemoryError("no memory, or no threads, for the engine")
                    with nogil:
                        trap = self.run_loops(&loops)
            finally:
                _RUNNING.active = False
                free(loops.args)
        if trap:
            raise KernelTrap(loops.at, trap, loops.micro_batch, loops.replica)


cdef int run_on_loan(void *context) noexcept with gil:
    """Run the loops inside OpenMP's region; returns a trap, or -1 with a Python exception in PENDING."""
    cdef Loops *loops = <Loops *>context
    cdef Plan plan = <Plan>loops.plan
    cdef int trap
    try:
        with nogil:
            trap = plan.run_loops(loops)
    except BaseException as error:
        PENDING.append(error)
        trap = -1
    return trap


cdef raise_pending():
    raise PENDING.pop()
