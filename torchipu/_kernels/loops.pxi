# Runs of a plan: its loops over iterations, replicas and micro-batches, on threads; see abi.pyx.

# One engine runs at a time: its threads and their scratch are shared by the whole process.
_LOCK = threading.Lock()
_RUNNING = threading.local()
PENDING = []  # the exception of a run on borrowed threads, until it is out of OpenMP's region


def _renew_lock():
    """Give a forked child a lock of its own: another thread of the parent may have held it."""
    global _LOCK
    _LOCK = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


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


cdef double now() noexcept nogil:
    cdef timespec t
    clock_gettime(ti_clock, &t)
    return t.tv_sec + 1e-9 * t.tv_nsec


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


cdef double coarsely_now() noexcept nogil:
    """Return the time to some milliseconds, which takes a fifth of the time of `now`."""
    cdef timespec t
    clock_gettime(ti_coarse_clock, &t)
    return t.tv_sec + 1e-9 * t.tv_nsec


cdef int look_for_signals(Loops *loops) except -1 nogil:
    """Let Python raise what a signal has asked for, now and then, where the run may be interrupted."""
    if loops.interruptible and coarsely_now() - loops.checked > 0.05:
        with gil:
            PyErr_CheckSignals()
        loops.checked = coarsely_now()
    return 0


cdef class Plan(Phases):
    """A flat list of steps over numbered buffers, which runs.

    Args:
        num_buffers: How many buffers the steps name.
    """

    cdef int run_range(self, Loops *loops, int begin, int end) except -1 nogil:
        """Run steps; returns the trap of the one that failed, at ``loops.at``."""
        cdef ti_job job
        cdef char **current
        cdef Step *step
        cdef int i, k, lane, trap, following = begin, timed = -1
        while following < end:
            i = following
            following = i + 1
            step = &self.steps[i]
            loops.at = i
            if self.seconds != NULL:
                self.charge(timed, loops.lanes)
                timed = i
            if self.is_watched:
                with gil:
                    self.watcher(i)
            look_for_signals(loops)
            if self.has_segment(i, end) and loops.lanes == 1 and self.seconds == NULL and not self.is_watched:
                following = self.segments[i].end
                trap = self.run_segment(loops, &self.segments[i])
                if trap:
                    return trap
                continue
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
            job.first_item = job.round_items = 0
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
            job.round_items = step.round_items
            job.takes_turns = step.order == _IN_ITEMS
            job.lanes = 1 if step.order == _IN_TURN else loops.lanes
            for lane in range(loops.lanes if step.order == _IN_TURN else 1):
                job.args = loops.args + lane * step.num_args
                trap = ti_run(loops.pool, &job, loops.threads)
                if trap:
                    return trap
        if self.seconds != NULL:
            self.charge(timed, loops.lanes)
        if self.is_watched:
            with gil:
                self.watcher(-1)
        return 0

    cdef bint has_segment(self, int begin, int end) noexcept nogil:
        """Whether phases take the steps from one on, and none behind a last one."""
        return self.segments != NULL and 0 < self.segments[begin].end <= end

    cdef int run_segment(self, Loops *loops, const Segment *segment) except -1 nogil:
        """Run the phases of a segment in one lane; returns the trap of the step that failed, at ``loops.at``."""
        cdef int i
        cdef int64_t trap
        for i in range(segment.first_phase, segment.first_phase + segment.num_phases):
            look_for_signals(loops)
            self.gather(&self.phases[i], loops.args, loops.first_lane)
            trap = ti_run_phase(loops.pool, &self.phases[i], loops.threads)
            if trap:
                loops.at = <int>(trap / TI_TRAP)
                return <int>(trap % TI_TRAP)
        return 0

    cdef void charge(self, int step, int lanes) noexcept nogil:
        """Add the time since the last charge to a step, and count its runs; to none where it is -1."""
        cdef double moment = now()
        if step >= 0:
            self.seconds[step] += moment - self.charged
            self.runs[step] += lanes
        self.charged = moment

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
        loops.checked = coarsely_now()
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
        self.has_ended = True
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
            int counter_buffer=-1, reset=None, fold=None, order=None):
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
            order: Instead of all of the body for one micro-batch after another: ``int64[parts, 5]``, rows of the first
                step of a part of it, the step after its last, micro-batch, replica, and which memory the run has of
                buffers that are bound with a stride from lane to lane. They name every part of every run of an iteration once, the parts
                of a run in their order and in one lane. What folds replicas reads accumulators alone then.

        Raises:
            KernelTrap: A kernel refused its input.
            RuntimeError: The engine is entered again from one of its own callbacks.
        """
        cdef Loops loops
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
        loops.threads = self.useful_threads(threads, lanes)
        loops.counters = <int64_t *>counters
        loops.num_counters = num_counters
        loops.order = NULL
        loops.num_ordered = 0
        cdef Rows ordered = None if order is None else Rows(order)
        if ordered is not None and ordered.count:
            if ordered.columns != 5 or lanes > 1 or self.num_together:
                raise ValueError("an order has rows of five numbers, and neither lanes side by side nor joint steps")
            loops.order, loops.num_ordered = ordered.row(0), ordered.count
        self.enter(&loops, lanes, borrow)

    cdef int useful_threads(self, int threads, int lanes) noexcept:
        """Of so many threads, those that have something to do; waking them takes longer than a small step."""
        return <int>max(1, min(<int64_t>threads, self.most_chunks * lanes))

    cdef enter(self, Loops *loops, int lanes, bint borrow):
        """Run what is bound, one engine at a time; see `run` for what is raised."""
        if getattr(_RUNNING, "active", False):
            raise RuntimeError("the engine is already running on this thread: a callback may not run a program")
        with _LOCK:
            self.run_alone(loops, lanes, borrow)

    cdef run_alone(self, Loops *loops, int lanes, bint borrow):
        """Run what is bound, while no other engine runs."""
        cdef int trap = 0
        cdef bint on_loan
        loops.plan = <void *>self
        loops.at = 0
        loops.micro_batch = loops.replica = 0
        _RUNNING.active = True
        self.has_ended = False
        loops.args = <char **>malloc(max(lanes * TI_MAX_ARGS, self.most_args) * sizeof(char *))
        try:
            if not loops.args:
                raise MemoryError
            # A callback's torch operators would have no threads left inside a region of OpenMP's.
            on_loan = borrow and loops.threads > 1 and not self.num_callbacks and ti_can_borrow()
            loops.pool = &TI_TEAM if on_loan else &TI_POOL
            if on_loan:
                if ti_prepare_scratch(&TI_TEAM, loops.threads, self.scratch_bytes):
                    raise MemoryError("no memory for the engine")
                with nogil:
                    trap = ti_borrow(run_on_loan, loops, loops.threads)
                if trap < 0:
                    raise_pending()
            else:
                if ti_prepare(loops.threads, self.scratch_bytes):
                    raise MemoryError("no memory, or no threads, for the engine")
                ti_begin(&TI_POOL)
                with nogil:
                    trap = self.run_loops(loops)
        finally:
            ti_end(&TI_POOL)
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
