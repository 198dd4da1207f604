# The steps of a plan, checked as they are added, and the buffers that they work on; see abi.pyx.

# How the lanes of a step, runs of it on other micro-batches, may go; see ``Plan.add_step``.
APART, IN_ITEMS, IN_TURN = 0, 1, 2
cdef enum:
    _IN_ITEMS = 1
    _IN_TURN = 2
MAX_LANES = 64


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
    int64_t round_items         # that all threads end before others begin; 0 where they may be made in any order
    int joined_lanes            # whose calls are one where their arguments lie so far apart; 0 for none
    int64_t *joined_strides
    int64_t *joined_ints
    int64_t joined_items
    int64_t joined_grain
    int64_t scratch_bytes
    ti_ending *endings
    int num_endings


cdef class Steps:
    """A flat list of steps over numbered buffers, and where these lie.

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
    cdef double *seconds        # of each step since `time_steps`; NULL where none is timed
    cdef int64_t *runs          # of each step, each lane as one
    cdef double charged         # when a step was last charged
    cdef object watcher         # called with the number of each step before it runs, and with -1 behind the last
    cdef bint is_watched
    cdef bint are_complete      # phases have taken them
    cdef public bint has_ended  # whether the last run got to the end of its last update

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
        free(self.seconds)
        free(self.runs)

    cdef refuse_if_complete(self):
        if self.are_complete:
            raise ValueError("steps and what ends them are added before phases take them")

    cdef Step *append(self) except NULL:
        cdef int capacity
        cdef Step *grown
        self.refuse_if_complete()
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
                 int64_t scratch_bytes, bint together=False, int order=IN_TURN, lane_strides=(), joined=None,
                 int64_t round_items=0):
        """Append a kernel call and return its number.

        A call that is made together is made once for all replicas, on the memory of the first, after each of them has
        run the steps before it. ``order`` says how micro-batches and replicas that run side by side make the call:
        ``APART`` where each writes memory of its own, in any order; ``IN_ITEMS`` where they add onto the same memory,
        an item of the call onto a part that no other item touches, in their order within each item; ``IN_TURN`` one
        after another. ``lane_strides`` are the bytes from each argument of one of them to that of the next. ``joined``
        is ``(lanes, strides, ints, items, grain)`` of the call that does what so many of them do, where their arguments
        turn out to lie ``strides`` bytes apart. Where ``round_items`` is not 0, so many items are made by all threads
        before the next so many begin.
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
        step.round_items = round_items
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
        self.refuse_if_complete()
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

    def time_steps(self):
        """Time every step from the next run on, from zero; all steps are added already."""
        cdef double *seconds = <double *>calloc(self.num_steps + 1, sizeof(double))
        cdef int64_t *runs = <int64_t *>calloc(self.num_steps + 1, sizeof(int64_t))
        if not seconds or not runs:
            free(seconds)
            free(runs)
            raise MemoryError
        free(self.seconds)
        free(self.runs)
        self.seconds, self.runs = seconds, runs

    def watch(self, watcher):
        """Let a callable be told of every step of the following runs, on the thread that runs them.

        Args:
            watcher: Takes the number of a step before it runs, and -1 behind the last one of a range; with None nobody
                is told.
        """
        self.watcher = watcher
        self.is_watched = watcher is not None

    def times(self):
        """Return ``(seconds, runs)`` of each step since `time_steps`; nothing where none is timed."""
        cdef int i
        if self.seconds == NULL:
            return []
        return [(self.seconds[i], self.runs[i]) for i in range(self.num_steps)]

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

    def bind_tensors(self, int first, tensors):
        """Say that tensors lie in buffers that follow one another, which do not advance.

        Args:
            first: Number of the first buffer.
            tensors: Of torch, each without gaps from its first element on as its buffer's steps expect it.

        Raises:
            ExecutionError: One has elements and no memory.
        """
        cdef int buffer = first
        cdef uintptr_t address
        for tensor in tensors:
            if not 0 <= buffer < self.num_buffers:
                raise ValueError(f"buffer {buffer} of {self.num_buffers}")
            address = tensor.data_ptr()
            if not address and tensor.numel():
                raise without_memory(f"of shape {list(tensor.shape)}")
            self.bindings[buffer] = Binding(<char *>address, 0, 0, 0, 1, 0)
            buffer += 1

    cdef bint calls_back(self, int begin, int end):
        """Whether any of these steps calls Python."""
        cdef int i
        for i in range(begin, min(end, self.num_steps)):
            if self.steps[i].function == NULL and self.steps[i].jump < 0:
                return True
        return False
