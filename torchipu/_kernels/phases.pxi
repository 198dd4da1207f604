# Which steps of a plan run between two meetings of all threads, and which of them a thread runs one after another.


cdef struct Segment:
    int end                     # the step behind the last one; 0 where none begins
    int first_phase
    int num_phases


cdef class Phases(Steps):
    """The steps of a plan and the phases that they run in.

    Args:
        num_buffers: How many buffers the steps name.
    """

    cdef ti_phase *phases
    cdef int num_phases
    cdef int64_t most_args      # that the steps of a phase have
    cdef Segment *segments      # by the step with which each begins; NULL where there are no phases

    def __dealloc__(self):
        cdef int i, k
        for i in range(self.num_phases):
            for k in range(self.phases[i].num_strands):
                self.free_parts(&self.phases[i].strands[k])
            free(<void *>self.phases[i].strands)
        free(self.phases)
        free(self.segments)

    cdef free_parts(self, const ti_strand *strand):
        cdef int i
        for i in range(strand.num_parts):
            free(<void *>strand.parts[i].near)
        free(<void *>strand.parts)

    def set_phases(self, segments):
        """Say in which phases steps run; all steps and what ends them are added already.

        Args:
            segments: ``(first step, step behind the last, phases)``, for runs of neighbouring kernel calls into which
                no jump leads. A phase is a list of strands, none of which needs what another one makes; a strand is
                ``(units, [(step, items of a unit, near), ...])``, whose steps a thread runs for a unit one after
                another. What is near is ``(argument, offset, bytes of a unit)`` for each argument of which a unit lies
                in the scratch of its thread, and not where the argument is bound.

        Raises:
            ValueError: A segment has a step that calls no kernel, or one that is not its own, or an argument is near
                that the step has not.
        """
        cdef int first, end, number
        cdef Segment *segment
        if self.segments != NULL:
            raise ValueError("the phases of a plan are set once")
        self.are_complete = True
        self.segments = <Segment *>calloc(self.num_steps + 1, sizeof(Segment))
        self.phases = <ti_phase *>calloc(sum([len(phases) for _, _, phases in segments]) + 1, sizeof(ti_phase))
        if not self.segments or not self.phases:
            raise MemoryError
        for first, end, phases in segments:
            named = sorted([number for phase in phases for _, parts in phase for number, _, _ in parts])
            if not 0 <= first < end <= self.num_steps or named != list(range(first, end)):
                raise ValueError(f"the phases of steps {first} to {end} do not run each of them once")
            for number in range(first, end):
                if self.steps[number].function == NULL or self.steps[number].together:
                    raise ValueError(f"step {number} is no call that phases can take")
            segment = &self.segments[first]
            segment.end, segment.first_phase, segment.num_phases = end, self.num_phases, len(phases)
            for phase in phases:
                self.take_phase(&self.phases[self.num_phases], phase)
                self.num_phases += 1

    cdef take_phase(self, ti_phase *phase, strands):
        """Fill a phase from its strands."""
        cdef ti_strand *held = <ti_strand *>calloc(len(strands) + 1, sizeof(ti_strand))
        cdef ti_part *parts
        cdef Step *step
        cdef int k = 0, j, number
        cdef int64_t units, per_unit, num_args = 0
        phase.strands = held
        if not held:
            raise MemoryError
        for units, members in strands:
            parts = <ti_part *>calloc(len(members), sizeof(ti_part))
            if not parts:
                raise MemoryError
            held[k].parts, held[k].num_parts, held[k].units = parts, len(members), units
            phase.num_strands = k + 1
            phase.units += units
            self.most_chunks = max(self.most_chunks, phase.units)
            for j, (number, per_unit, near) in enumerate(members):
                if units * per_unit < self.steps[number].items or per_unit % self.steps[number].grain:
                    raise ValueError(f"{units} units of {per_unit} items are not all of step {number}")
                parts[j].number, parts[j].per_unit = number, per_unit
                step = &self.steps[number]
                parts[j].job = ti_job(
                    step.function, NULL, step.ints, step.scalars, step.items, step.grain, 1, step.scratch_bytes,
                    step.num_args, False, step.endings, step.num_endings, 0, 0)
                num_args += step.num_args
                self.take_near(&parts[j], near)
            self.place_near(&held[k])
            k += 1
        self.most_args = max(self.most_args, num_args)

    cdef take_near(self, ti_part *part, near):
        """Note which arguments of a step are near."""
        cdef ti_near *held = <ti_near *>calloc(len(near) + 1, sizeof(ti_near))
        cdef int i
        if not held:
            raise MemoryError
        part.near, part.num_near = held, len(near)
        for i, (argument, offset, unit_bytes) in enumerate(near):
            if not 0 <= argument < self.steps[part.number].num_args or offset < 0 or unit_bytes < 0:
                raise ValueError(f"argument {argument} of step {part.number} cannot be near")
            held[i] = ti_near(offset, unit_bytes, argument)

    cdef place_near(self, ti_strand *strand):
        """Make room for what is near behind the scratch of the steps."""
        cdef int64_t taken = 0, num_bytes = 0
        cdef int j, i
        for j in range(strand.num_parts):
            taken = max(taken, self.steps[strand.parts[j].number].scratch_bytes)
            for i in range(strand.parts[j].num_near):
                num_bytes = max(num_bytes, strand.parts[j].near[i].offset + strand.parts[j].near[i].unit_bytes)
        strand.near_at, strand.near_bytes = (taken + 63) // 64 * 64, num_bytes
        if num_bytes:
            self.scratch_bytes = max(self.scratch_bytes, strand.near_at + num_bytes)

    cdef void gather(self, const ti_phase *phase, char **args, int first_lane) noexcept nogil:
        """Take the addresses of all arguments of a phase for one lane."""
        cdef int k, j, i
        cdef ti_part *part
        cdef Step *step
        for k in range(phase.num_strands):
            for j in range(phase.strands[k].num_parts):
                part = <ti_part *>&phase.strands[k].parts[j]
                step = &self.steps[part.number]
                for i in range(step.num_args):
                    args[i] = (self.current[step.buffers[i]] + step.offsets[i] + first_lane * step.lane_strides[i])
                part.job.args = args
                args += step.num_args
