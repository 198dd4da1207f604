# Calls of a plan as a compiled graph makes most of them: one run, on tensors that lie as before, into fresh memory.


cdef class Call:
    """A plan with what is the same at each call of it, found once: to ask again takes longer than a small graph runs.

    Args:
        plan: All of it is bound but what a call brings and makes, and `ARENA` where that is shared.
        inputs: ``(place among the arguments of a call, element type, number of the buffer, strides)`` of each tensor it
            reads; no strides for a row-major one.
        rooms: ``(shape, strides, element type, ...)`` of each tensor it makes, row-major.
        first_made: Number of the buffer of the first of these; the others follow.
        results: What a call returns: the number of a tensor that is made and None, None and the place of an argument,
            or None and None for a result that is none.
        ranges: First step and the step after the last one of prologue, body and update.
        threads: Host threads.
        torch: The module.
        empty: Returns tensors of ``rooms``.
        lock: Held while the plan's buffers are bound and used.
        arena: Has ``memory``, shared with other plans; None where the plan has its own.
        arena_buffer: Its buffer.
        resting: A call does nothing while there is anything in it.
        frozen: ``(place, tensor)`` of each tensor whose values the plan has prepared something of: among the arguments, or
            the tensor itself and None for the place.
        prepared: Its ``stamp`` tells of which values that was, as `stamp_of` says it, None where nothing is prepared, and
            its ``samples``, which are `Samples`, of some of their elements.
        explained: Returns what is raised, given a `KernelTrap`.
        packed: Of each room the bytes from the begin of one tensor, which ``empty`` returns last, to where it lies; -1
            for one that is a tensor of its own. None has any unless told.
        draws: Of a plan with random bits: ``begin()`` draws their seed before a run, ``undo()`` takes that back after one
            that failed, and ``rows`` are the counters of its streams. None where nothing is random.
        block: ``(place, bytes, [(number of the buffer, offset)])`` of an argument, bytes without gaps, that holds what
            is in these buffers; None where there is none.
    """

    cdef Plan plan
    cdef Loops loops
    cdef Py_ssize_t num_inputs, num_arguments
    cdef Py_ssize_t *places
    cdef int *buffers
    cdef list dtypes, strides
    cdef tuple rooms
    cdef int first_made
    cdef tuple results
    cdef bint are_as_made
    cdef int threads
    cdef object torch, profiler, plain, parameter, empty, lock, arena, resting, prepared, explained, draws
    cdef tuple frozen
    cdef int arena_buffer
    cdef int64_t *packed        # by room; NULL where each is a tensor
    cdef int64_t block_bytes
    cdef Py_ssize_t block_place, num_in_block
    cdef int *block_buffers
    cdef int64_t *block_offsets

    def __cinit__(self, Plan plan, inputs, *args, **kwargs):
        cdef Py_ssize_t count = max(len(inputs), 1)
        self.places = <Py_ssize_t *>calloc(count, sizeof(Py_ssize_t))
        self.buffers = <int *>calloc(count, sizeof(int))
        if not self.places or not self.buffers:
            raise MemoryError

    def __init__(self, Plan plan, inputs, rooms, int first_made, results, ranges, int threads, torch, empty, lock,
                 arena=None, int arena_buffer=0, resting=(), frozen=(), prepared=None, explained=None, packed=None,
                 block=None, draws=None):
        cdef Py_ssize_t i
        self.plan, self.num_inputs = plan, len(inputs)
        self.dtypes = [dtype for _, dtype, _, _ in inputs]
        self.strides = [strides for _, _, _, strides in inputs]
        self.num_arguments = 0
        for i, (place, _, buffer, _) in enumerate(inputs):
            if not 0 <= buffer < plan.num_buffers or place < 0:
                raise ValueError(f"argument {place}, buffer {buffer} of {plan.num_buffers}")
            self.places[i], self.buffers[i] = place, buffer
            self.num_arguments = max(self.num_arguments, place + 1)
        self.rooms, self.first_made, self.results = tuple(rooms), first_made, tuple(results)
        if not 0 <= first_made <= plan.num_buffers - len(self.rooms):
            raise ValueError(f"{len(self.rooms)} buffers from {first_made} on, of {plan.num_buffers}")
        cdef Py_ssize_t num_made = len(self.rooms)
        if packed is not None:
            num_made = self.take_packed(packed)
        if block is not None:
            self.take_block(block[0], block[1], block[2])
        for made, place in self.results:
            if made is not None and not 0 <= made < num_made:
                raise ValueError(f"result {made} of {num_made}")
            if place is not None:
                self.num_arguments = max(self.num_arguments, place + 1)
        self.are_as_made = self.results == tuple((number, None) for number in range(num_made))
        self.torch, self.profiler, self.empty, self.lock = torch, torch.autograd.profiler, empty, lock
        self.plain, self.parameter = torch.Tensor, torch.nn.Parameter
        self.arena, self.arena_buffer, self.resting = arena, arena_buffer, resting
        self.frozen, self.prepared, self.explained = tuple(frozen), prepared, explained
        for place, _ in self.frozen:
            if place is not None:
                self.num_arguments = max(self.num_arguments, place + 1)
        self.threads = threads
        cdef Loops *loops = &self.loops
        loops.prologue[0], loops.prologue[1] = ranges[0]
        loops.body[0], loops.body[1] = ranges[1]
        loops.update[0], loops.update[1] = ranges[2]
        loops.reset[0] = loops.reset[1] = loops.prologue[1]
        loops.fold[0] = loops.fold[1] = loops.body[1]
        loops.micro_batches = loops.replicas = loops.iterations = loops.lanes = 1
        loops.beside[0] = loops.beside[1] = 1
        loops.counter_buffer = -1
        self.draws = draws
        if draws is not None:
            loops.counters = <int64_t *><uintptr_t>draws.rows.data_ptr()
            loops.num_counters = len(draws.rows)
        loops.threads = plan.useful_threads(threads, 1)

    cdef Py_ssize_t take_packed(self, offsets) except -1:
        """Note where rooms lie in one tensor; returns how many tensors are made."""
        cdef Py_ssize_t i, num_apart = 0
        if len(offsets) != len(self.rooms):
            raise ValueError(f"{len(offsets)} offsets for {len(self.rooms)} rooms")
        self.packed = <int64_t *>calloc(len(offsets) + 1, sizeof(int64_t))
        if not self.packed:
            raise MemoryError
        for i in range(len(offsets)):
            self.packed[i] = offsets[i]
            num_apart += self.packed[i] < 0
        return num_apart + 1

    cdef take_block(self, Py_ssize_t place, int64_t num_bytes, members):
        """Note which buffers an argument holds."""
        cdef Py_ssize_t i
        self.block_buffers = <int *>calloc(len(members) + 1, sizeof(int))
        self.block_offsets = <int64_t *>calloc(len(members) + 1, sizeof(int64_t))
        if not self.block_buffers or not self.block_offsets:
            raise MemoryError
        for i, (buffer, offset) in enumerate(members):
            if not 0 <= buffer < self.plan.num_buffers or not 0 <= offset <= num_bytes:
                raise ValueError(f"buffer {buffer} of {self.plan.num_buffers}, {offset} bytes into {num_bytes}")
            self.block_buffers[i], self.block_offsets[i] = buffer, offset
        self.block_place, self.block_bytes, self.num_in_block = place, num_bytes, len(members)
        self.num_arguments = max(self.num_arguments, place + 1)

    cdef bint is_prepared(self, arguments) except -1:
        """Whether what the plan has prepared is of the values that the arguments have."""
        stamp = self.prepared.stamp
        if stamp is None:
            return False
        cdef Py_ssize_t i
        for i in range(len(self.frozen)):
            place, tensor = self.frozen[i]
            if place is not None:
                tensor = arguments[place]
            address, version = (<tuple>stamp)[i]
            if tensor.is_inference() or tensor.data_ptr() != address or tensor._version != version:
                return False
        return not (<Samples>self.prepared.samples).changed()

    cdef run_seeded(self, Loops *loops, bint borrow):
        """Run with random bits of a new seed."""
        self.draws.begin()
        try:
            self.plan.run_alone(loops, 1, borrow)
        except BaseException:
            self.draws.undo()
            raise

    cdef bind_made(self, list made):
        """Bind what a call makes."""
        cdef Py_ssize_t i, number = 0
        cdef uintptr_t address, block = 0
        if self.packed:
            block = made[len(made) - 1].data_ptr()
        for i in range(len(self.rooms)):
            if self.packed and self.packed[i] >= 0:
                address = block + self.packed[i]
            else:
                address = made[number].data_ptr()
                number += 1
            self.plan.bindings[self.first_made + i] = Binding(<char *>address, 0, 0, 0, 1, 0)

    def __dealloc__(self):
        free(self.places)
        free(self.buffers)
        free(self.packed)
        free(self.block_buffers)
        free(self.block_offsets)

    def __call__(self, arguments):
        """Run the plan on the arguments of a call.

        Args:
            arguments: A list or a tuple, tensors of torch among them.

        Returns:
            The results, or None where something is to be seen to first, and nothing was done: tensors that lie in
            another way or are of another element type, a profiler that records, or what was prepared is stale.

        Raises:
            ExecutionError: A tensor has elements and no memory.
        """
        if self.resting or self.profiler._is_profiler_enabled or self.plan.seconds != NULL:
            return None
        if len(arguments) < self.num_arguments:
            return None
        cdef Loops loops = self.loops
        cdef Py_ssize_t i
        cdef uintptr_t address, block = 0
        cdef uintptr_t *addresses = <uintptr_t *>malloc(max(self.num_inputs, 1) * sizeof(uintptr_t))
        if not addresses:
            raise MemoryError
        try:
            for i in range(self.num_inputs):
                tensor = arguments[self.places[i]]
                if type(tensor) is not self.plain and type(tensor) is not self.parameter:
                    return None
                strides = self.strides[i]
                if strides is None:
                    if not lies_row_major(tensor, self.dtypes[i]):
                        return None
                elif not lies_in(tensor, self.dtypes[i], strides):
                    return None
                address = tensor.data_ptr()
                if not address and tensor.numel():
                    raise without_memory(f"of shape {list(tensor.shape)}")
                addresses[i] = address
            if self.num_in_block:
                tensor = arguments[self.block_place]
                if type(tensor) is not self.plain or not lies_row_major(tensor, self.torch.uint8):
                    return None
                if tensor.numel() != self.block_bytes:
                    return None
                block = tensor.data_ptr()
            made = self.empty()
            borrow = loops.threads > 1 and self.threads == self.torch.get_num_threads()
            if getattr(_RUNNING, "active", False):
                return None  # which is refused, in the words of others
            with self.lock, _LOCK:
                if self.frozen and not self.is_prepared(arguments):
                    return None
                for i in range(self.num_inputs):
                    self.plan.bindings[self.buffers[i]] = Binding(<char *>addresses[i], 0, 0, 0, 1, 0)
                for i in range(self.num_in_block):
                    address = block + self.block_offsets[i]
                    self.plan.bindings[self.block_buffers[i]] = Binding(<char *>address, 0, 0, 0, 1, 0)
                self.bind_made(made)
                if self.arena is not None:
                    memory = self.arena.memory  # stays while it runs, whoever else asks for more
                    address = memory.data_ptr()
                    self.plan.bindings[self.arena_buffer] = Binding(<char *>address, 0, 0, 0, 1, 0)
                if self.draws is None:
                    self.plan.run_alone(&loops, 1, borrow)
                else:
                    self.run_seeded(&loops, borrow)
        except KernelTrap as trap:
            raise self.explained(trap) from None
        finally:
            free(addresses)
        if self.are_as_made:
            return made
        return [
            made[number] if number is not None else None if place is None else arguments[place]
            for number, place in self.results
        ]
