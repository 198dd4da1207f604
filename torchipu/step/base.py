"""What training and inference share: capture at the first call, compiling, states, and the run of a program."""

from __future__ import annotations

import inspect
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchipu import artifacts
from torchipu.advice.remedies import compile_or_advise
from torchipu.capture.built import Built
from torchipu.capture.captured import Captured
from torchipu.compiler import Compiled
from torchipu.distributed.exchange import Exchange
from torchipu.distributed.handshake import agree
from torchipu.distributed.members import Members
from torchipu.errors import ConstraintError, OptionsError
from torchipu.host.copying import copy_all
from torchipu.host.executor import FIRST_EXTERNAL, BoundPlan, as_pairs, default_threads, resolved
from torchipu.host.generic import TORCH_DTYPES
from torchipu.host.lanes import Lanes, choose_lanes
from torchipu.host.observation import Observation
from torchipu.host.plan import HostPlan
from torchipu.host.planner import Planner
from torchipu.host.resident import Resident, Returned
from torchipu.ir.graph import Graph, Tensor
from torchipu.optable.random_streams import Seeding
from torchipu.options import Options
from torchipu.parts.program import Piece
from torchipu.report.recorder import record
from torchipu.step import watching
from torchipu.step.in_common import described
from torchipu.step.in_parts import InParts
from torchipu.step.loaders import measure_loaders
from torchipu.step.on_tiles import run_on_tiles
from torchipu.step.parted import PartedStep
from torchipu.step.replicated import ReplicatedStep
from torchipu.step.reported import ReportedStep
from torchipu.step.seen import Seen, graph_again, why_again
from torchipu.target import lookup_target

Progress = Callable[[int, int], None]
Capturing = Callable[[Callable[[], Captured]], Captured]
STAGES_OF_COMPILATION = 4


def _at_once(capture: Callable[[], Captured]) -> Captured:
    return capture()


@dataclass(frozen=True, slots=True)
class _Made:
    """A program before it has memory."""

    built: Built
    compiled: Compiled
    planner: Planner
    plan: HostPlan
    observation: Observation
    piece: Piece | None = None


class ProgramStep(ReplicatedStep, PartedStep, ReportedStep):
    """A model as one program a call, captured at the first one, whose states lie in the program's memory.

    Weights, buffers and optimiser state live with the program while it runs and are written back to the user's
    tensors when a call has ended well; a call that fails or is interrupted leaves them as they were.
    """

    default_output_mode = "all"
    gives_zeros = True  # where calls are only estimated; else such a call ends the script
    captures_again = True  # for micro-batches of other sizes, when a report tries some

    def __init__(self, model: torch.nn.Module, options: Options | None) -> None:
        if not isinstance(model, torch.nn.Module):
            raise OptionsError(
                f"model must be a torch.nn.Module, got {type(model).__name__}", option="model", value=model,
                remedy="wrap the function in a module whose forward calls it",
            )
        self.model = model
        self.options = options or Options()
        self.target = lookup_target(self.options.target)
        self._lock = threading.RLock()  # Lightning has a report written from within a call
        self._parts = None if self.options.pipeline_group is None else InParts(self.options)
        self._bound: BoundPlan | None = None
        self._compiled: Compiled | None = None
        self._built: Built | None = None
        self._residents: list[Resident] = []
        self._signature: tuple[object, ...] | None = None
        self._clean = False
        self._committed = False
        self._calls = 0
        self._rounds_stochastically = self.options.stochastic_rounding
        self._members: Members | None = None
        self._capturing: Capturing | None = None
        self._seen = Seen()
        self.facts: dict[str, object] = {}
        """What else all processes have to agree on, by name; compared when the program is compiled."""

    @property
    def stochastic_rounding(self) -> bool:
        """Whether half results are rounded stochastically; may be switched between calls, without compiling again.

        Raises:
            OptionsError: It is switched on in a step whose options leave it off, so that the program lacks it.
        """
        return self._rounds_stochastically

    @stochastic_rounding.setter
    def stochastic_rounding(self, on: bool) -> None:
        if on and not self.options.stochastic_rounding:
            raise OptionsError(
                "the program has no stochastic rounding to switch on", option="stochastic_rounding", value=on,
                remedy="make the step with torchipu.Options(stochastic_rounding=True); then switch it off and on",
            )
        self._rounds_stochastically = bool(on)

    def __reduce__(self) -> Any:
        """Say what to save instead: a program has memory of its own and cannot be pickled or copied."""
        of_optimiser = " and optimizer.state_dict()" if hasattr(self, "optimizer") else ""
        raise pickle.PicklingError(
            f"a {type(self).__name__} is a compiled program and cannot be pickled or copied: save model.state_dict()"
            f"{of_optimiser}, up to date after each call, load that into a new model, and make a new "
            f"{type(self).__name__} of it"
        )

    def _in_order(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments in the order of forward, so that one given by its name is the same as by its place."""
        if not keywords:
            return arguments, keywords
        try:
            bound = inspect.signature(self.model.forward).bind(*arguments, **keywords)
        except (TypeError, ValueError):  # what forward raises tells more
            return arguments, keywords
        return bound.args, bound.kwargs

    # ------------------------------------------------------------------ for subclasses
    @property
    def output_mode(self) -> str:
        """Which micro-batches' results a call returns: ``all``, ``final``, ``sum`` or ``every_n``."""
        return self.options.output_mode or self.default_output_mode

    @property
    def used_loss_scale(self) -> float | None:
        """Factor on the loss in the last update of the last call; None for inference."""
        return None

    def _returned(self) -> list[Returned]:
        """Say for each output of the graph which micro-batches' results are handed back."""
        assert self._built is not None
        return [Returned(self.output_mode, self.options.output_period)] * len(self._built.graph.outputs)

    def _deliver(self, values: list[torch.Tensor]) -> Any:
        """Build what a call returns from the joined results of the graph's outputs."""
        assert self._built is not None
        return self._built.capture.restore(values)

    def _capture(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Captured:
        """Capture the model."""
        raise NotImplementedError

    def _build(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Built:
        """Capture the model and add to its graph what the step does beside it."""
        raise NotImplementedError

    def _refresh(self) -> None:
        """Bring what may change between calls into the program's memory."""

    def _mark_stepped(self) -> None:
        """Tell the optimiser, if there is one, that it has made a step."""

    def _keep(self) -> Callable[[], None]:
        """Note what capture and refreshing change of the user's; return what undoes it."""
        return lambda: None

    # ------------------------------------------------------------------ what users call
    def compile(self, *arguments: Any, progress: Progress | None = None, **keywords: Any) -> None:
        """Compile for inputs of these shapes without running.

        Args:
            *arguments: Inputs as for a call: ``[batch x micro-batches x iterations, ...]``.
            progress: Called with ``(done, total)`` as stages of the compilation end.
            **keywords: Keyword inputs.

        Raises:
            CaptureError: The model cannot be captured as one graph.
            ConstraintError: The batch is not divisible by the number of micro-batches.
            OutOfTileMemoryError: The fullest tile does not hold the program.
        """
        if stand_in := watching.stand_in_for_steps():
            stand_in(self, arguments, keywords)
            return
        arguments, keywords = self._in_order(arguments, keywords)
        with self._lock, self._together():
            undo = self._keep()
            try:
                if self._parts is not None:
                    self._meet("compile", pytree.tree_leaves((arguments, keywords)), is_stale=True)
                self._compile(arguments, keywords, progress or (lambda done, total: None))
                if self._parts is not None:
                    self._parts.forget_key()
            except BaseException:
                undo()
                raise

    def graph_of(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any], capturing: Capturing | None = None,
    ) -> Graph:
        """Capture for the inputs of one micro-batch, without compiling; the model and the optimiser stay as they are.

        Weights may be meta tensors or fake ones: nothing needs their values.

        Args:
            arguments: Of the model.
            keywords: Of the model.
            capturing: Is given what captures the model, and returns the capture: that one, or one made before.

        Raises:
            CaptureError: The model cannot be captured as one graph.
        """
        arguments, keywords = self._in_order(arguments, keywords)
        with self._lock:
            undo = self._keep()
            self._capturing = capturing or _at_once
            try:
                return self._build(arguments, keywords).graph
            finally:
                self._capturing = None
                undo()

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run one call.

        Args:
            *arguments: Inputs, ``[batch x micro-batches x iterations, ...]``; tensors are cut along dimension 0.
            **keywords: Keyword inputs.

        Returns:
            What the model's forward returns. In output mode ``all`` (the default for inference) results of the
            micro-batches are joined along dimension 0 and a 0-d result becomes ``[micro-batches]``; in ``final``
            (the default for training) those of the last one are given; in ``sum`` they are added; in ``every_n``
            those of every ``output_period``-th device iteration are joined.
        """
        if stand_in := watching.stand_in_for_steps():
            return stand_in(self, arguments, keywords)
        arguments, keywords = self._in_order(arguments, keywords)
        with self._lock, self._together():
            self._committed = False
            undo = self._keep()
            try:
                leaves = pytree.tree_leaves((arguments, keywords))
                is_stale = self._signature is None or self._signature_of(leaves) != self._signature
                if self._parts is not None:
                    is_stale = self._meet("call", leaves, is_stale=is_stale)
                if is_stale:
                    self._compile(arguments, keywords, lambda done, total: None)
                assert self._built is not None
                if self._parts is None:
                    return self._run(self._built.capture.flatten(arguments, keywords))
                self._parts.settle_key()
                with self._parts.call(self.iterations):
                    return self._run(self._built.capture.flatten(arguments, keywords))
            except BaseException:
                # After the write-back the new values are the user's, even if Ctrl-C comes before the results do.
                if not self._committed:
                    undo()
                raise

    @property
    def is_compiled(self) -> bool:
        """Whether there is a program."""
        return self._compiled is not None

    @property
    def compiled(self) -> Compiled:
        """Graph, schedule, program and cost of the last compilation.

        Raises:
            OptionsError: Nothing was compiled yet.
        """
        if self._compiled is None:
            raise OptionsError(
                "nothing is compiled yet", option="compile", remedy="call compile(*inputs) or run one step"
            )
        return self._compiled

    # ------------------------------------------------------------------ compiling
    def _signature_of(self, leaves: Sequence[Any]) -> tuple[object, ...]:
        mode = tuple(module.training for module in self.model.modules())
        # By identity too: a model may be given other parameters, by load_state_dict(assign=True) for one.
        frozen = tuple((id(parameter), parameter.requires_grad) for parameter in self.model.parameters())
        buffers = tuple(id(buffer) for buffer in self.model.buffers())
        described = tuple(
            (leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else (type(leaf), leaf) for leaf in leaves
        )
        return (described, mode, frozen, buffers)

    def _slice(self, leaf: Any) -> Any:
        """Return the first micro-batch of an input."""
        if not isinstance(leaf, torch.Tensor):
            return leaf
        pieces = self.micro_batches * self.iterations * self.options.input_groups
        if pieces == 1:
            return leaf
        if leaf.dim() == 0 or leaf.shape[0] % pieces or leaf.shape[0] == 0:
            size = leaf.shape[0] if leaf.dim() else "a 0-d tensor"
            below = leaf.shape[0] // pieces * pieces if leaf.dim() else 0
            raise ConstraintError(
                f"batch of {size} is not divisible by {self._pieces_text()} = {pieces}",
                remedy=f"pass {below or pieces} or {below + pieces} samples along dimension 0",
            )
        return leaf[: leaf.shape[0] // pieces]

    def _pieces_text(self) -> str:
        options = self.options
        text = f"device_iterations {options.device_iterations} x gradient_accumulation {options.gradient_accumulation}"
        if options.replicas == 1:
            return text
        groups = "" if options.input_group_size == 1 else f" / input_group_size {options.input_group_size}"
        return f"{text} x replicas {options.replicas}{groups}"

    def _compile(self, arguments: tuple[Any, ...], keywords: dict[str, Any], progress: Progress) -> None:
        if self._members is None:
            self._members = self._find_members()
        with self._among_members():
            self._compile_among_members(arguments, keywords, progress)

    def _compile_among_members(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any], progress: Progress,
    ) -> None:
        leaves = pytree.tree_leaves((arguments, keywords))
        before_this, began = self._signature, time.perf_counter()
        made, bound = self._made_and_bound(arguments, keywords, progress)
        built, compiled = made.built, made.compiled
        if self._members is not None and self._compiled is None:
            self._take_states_of_first(self._members, built, self._parts)
        progress(3, STAGES_OF_COMPILATION)
        self._signature = None  # nothing is compiled until all of this is in place
        self._built, self._compiled, self._bound = built, compiled, bound
        before = {id(r.host): r for r in self._residents if r.replicas is not None and not r.changed()}
        self._residents = [
            Resident.of(bound.state_view(tensor), host, tensor in built.written, bound.is_apart(tensor))
            for tensor, host in built.states.items() if host is not None and tensor in bound.host_plan.states
        ]
        for resident in self._residents:
            earlier = before.get(id(resident.host))
            if resident.replicas is not None and earlier is not None and earlier.replicas is not None:
                resident.replicas.copy_(earlier.replicas)
                resident.mark()
        self._clean = False
        self._signature = self._signature_of(leaves)
        if self._parts is not None:
            self._prepare_parts(self._parts)
        if before_this is not None:
            reason = why_again(before_this, self._signature)
            self._seen.recompilations.append((reason, time.perf_counter() - began))
        if self.options.host_times:
            bound.time_steps()
            measure_loaders()
        profile = self.profile
        record(profile, compiled, is_step=True, owner=self)
        artifacts.emit(profile, compiled)
        progress(STAGES_OF_COMPILATION, STAGES_OF_COMPILATION)

    def _made_and_bound(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any], progress: Progress,
    ) -> tuple[_Made, BoundPlan]:
        """Make the program, and give it memory."""
        replicas, members = self.options.replicas, self._members
        exchange = None if members is None else partial(Exchange, members, self._replicas)
        if self._parts is not None:

            def make() -> tuple[_Made, Graph, Piece]:
                made = self._make(arguments, keywords, progress)
                assert made.piece is not None
                return made, made.compiled.graph, made.piece

            self._signature = None  # a process that fails leaves none with another program than the others
            made = self._parts.agree(make, self.micro_batches * replicas)
            return made, self._parts.bind(made.observation, exchange)
        made = self._make(arguments, keywords, progress)
        threads = self._host_threads
        # What looks at results wants to know of which micro-batch they are.
        lanes = Lanes() if made.observation.is_on else choose_lanes(made.plan, self.micro_batches, replicas, threads)
        return made, BoundPlan(
            made.plan, made.planner.graph, replicas, observation=made.observation, lanes=lanes, exchange=exchange,
        )

    def _make(self, arguments: tuple[Any, ...], keywords: dict[str, Any], progress: Progress) -> _Made:
        """Capture and compile the program, and plan how the host runs it."""
        cut_arguments, cut_keywords = pytree.tree_map(self._slice, (arguments, keywords))
        progress(0, STAGES_OF_COMPILATION)
        began = time.perf_counter()
        built = self._build(cut_arguments, cut_keywords)
        self._seen.capture_seconds = time.perf_counter() - began
        self._seen.keep_example(cut_arguments, cut_keywords)
        progress(1, STAGES_OF_COMPILATION)
        members, options = self._members, self.options
        if members is not None:
            agree(members, self._facts_of(built, pytree.tree_leaves((arguments, keywords))))
        compiled = compile_or_advise(
            built.graph, options, self.target, micro_batches=self.micro_batches,
            instances=1 if members is None else members.size,
            again=partial(graph_again, self, built, self._seen.example), capture_seconds=self._seen.capture_seconds,
        )
        began = time.perf_counter()
        progress(2, STAGES_OF_COMPILATION)
        observation = Observation(traps=options.floating_point_exceptions, counts=options.statistics)
        if self._parts is not None:
            piece = self._parts.make_piece(
                compiled.graph, built.states, self.micro_batches, self._replicas, observation,
            )
            self._check_buffers(built, piece.planner.banked)
            return _Made(built, compiled, piece.planner, piece.plan, observation, piece)
        planner = Planner(
            compiled.graph, states=list(built.states), micro_batches=self.micro_batches,
            replicas=self._replicas, observation=observation, frozen=self._frozen(built),
            is_strict=self.options.strict_numerics,
        )
        planner.may_view_outputs = False  # every output has memory of its own
        self._check_buffers(built, planner.banked)
        plan = planner.plan()
        self._seen.plan_seconds = time.perf_counter() - began
        return _Made(built, compiled, planner, plan, observation)

    def _check_buffers(self, built: Built, banked: frozenset[Tensor]) -> None:
        """Refuse replicas whose buffers would go apart."""
        names = [name for name, tensor in built.capture.buffers.items() if tensor in banked]
        if self.options.broadcast_buffers and names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise OptionsError(
                f"the model writes buffer {names[0]!r}{more}, but with replicas={self.options.replicas} "
                "broadcast_buffers=True keeps the buffers of all replicas the same", option="broadcast_buffers",
                value=True, allowed="False for a model that writes buffers",
                remedy="set broadcast_buffers=False: each replica then has its own, and the model is given those of "
                "the first",
            )

    def replica_buffers(self) -> dict[str, torch.Tensor]:
        """Return what each replica has of the buffers that it has for itself: ``[replicas, ...]`` by name.

        The module's own buffers are those of the first replica.
        """
        with self._lock:
            apart = {id(r.host): r.replicas for r in self._residents if r.replicas is not None}
            found = {name: apart.get(id(buffer)) for name, buffer in self.model.named_buffers()}
            return {name: value.clone() for name, value in found.items() if value is not None}

    def states_on_device(self) -> dict[Tensor, torch.Tensor]:
        """Return what the program's memory holds of each state after a call; of replicas that are apart, the first's.

        The user's tensors have the same, unless the door leaves them behind until they are asked for, as PopTorch does.
        """
        assert self._bound is not None
        assert self._built is not None
        bound = self._bound
        return {
            tensor: bound.state_view(tensor)[0] if bound.is_apart(tensor) else bound.state_view(tensor)
            for tensor, host in self._built.states.items() if host is not None and tensor in bound.host_plan.states
        }

    def _module_states(self, capture: Captured) -> dict[Tensor, torch.Tensor | None]:
        """Return the module's tensor of each weight and buffer of the graph."""
        parameters = dict(self.model.named_parameters())
        buffers = dict(self.model.named_buffers())
        states: dict[Tensor, torch.Tensor | None] = {t: parameters[n] for n, t in capture.parameters.items()}
        states |= {tensor: buffers[name] for name, tensor in capture.buffers.items()}
        return {tensor: None if value is None else as_pairs(value) for tensor, value in states.items()}

    # ------------------------------------------------------------------ running
    def _run(self, tensors: Sequence[torch.Tensor]) -> Any:
        if self.options.host_times and self._bound is not None:
            return self._seen.timed(lambda: self._run_watched(tensors), self._bound)
        return self._run_watched(tensors)

    def _run_watched(self, tensors: Sequence[torch.Tensor]) -> Any:
        with self._among_members() as members:
            if members is not None:
                agree(members, {"what is done": "training", "inputs": described(tensors), **self._described()})
            ends = watching.begun(self, tensors)
            results = self._run_among(members, tensors)
        for end in ends:
            end(results)
        return results

    def _seeding_of_next_call(self) -> Seeding:
        """Return from what the streams of random bits of the next call begin, in one process; draws nothing."""
        with torch.random.fork_rng(devices=[]):
            return self._seeding_of(None)

    def _seeding_of(self, members: Members | None) -> Seeding:
        """Return from what the streams of random bits of a call begin; without a seed, torch's generator gives one."""
        seed, rounds = self.options.seed, self._rounds_stochastically
        if seed is None:
            return Seeding(self._key_of(members), 0, self.micro_batches, rounds)
        return Seeding(seed, self._calls * self.micro_batches * self.iterations, self.micro_batches, rounds)

    def _run_among(self, members: Members | None, tensors: Sequence[torch.Tensor]) -> Any:
        assert self._bound is not None and self._built is not None
        bound = self._bound
        inputs = self._bind_inputs(bound, tensors)
        outputs = self._bind_outputs(bound)
        self._refresh()
        is_prepared = self._upload() and bool(self._frozen(self._built))
        seeding = Seeding()
        if bound.random_rows is not None:
            seeding = self._seeding_of(members)
            bound.seed(seeding.seed, self._replicas.first, stochastic_rounding=seeding.is_rounding)
            bound.count_calls(seeding.first_micro_batch)
        self._clean = False
        if self.options.executor == "tiles":
            assert self._built is not None
            run_on_tiles(
                self._built, self.compiled, bound, self.options, tensors, self.micro_batches, outputs, seeding,
                has_members=members is not None,
            )
        else:
            bound.run(self.micro_batches, self.iterations, self._host_threads, is_prepared=is_prepared)
        if self._parts is not None:
            outputs = self._shared(self._parts, bound, outputs)
        rules, iterations = self._returned(), self.options.device_iterations
        results = self._deliver([
            rule.join(value, iterations, bound.replicas) for rule, value in zip(rules, outputs, strict=True)
        ])
        del inputs
        # Nothing that can fail follows the write-back.
        self._download()
        self._clean = True
        self._calls += 1
        self._mark_stepped()
        return results

    def _bind_inputs(self, bound: BoundPlan, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        assert self._built is not None
        kept = []
        number = {tensor: index for index, tensor in enumerate(bound.graph.inputs)}
        options = self.options
        groups = options.input_groups
        pieces = self.micro_batches * self.iterations * groups
        # Groups of neighbours: replica r reads value r // size; of replicas that lie apart: value r % groups.
        sharing = (1, groups) if options.input_grouping == "orthogonal" else (options.input_group_size, 0)
        arguments = [tensor for tensor in self._built.capture.arguments if tensor is not None]
        for tensor, value in zip(arguments, tensors, strict=True):
            if tensor not in number:
                continue
            value = resolved(value.detach()).to(TORCH_DTYPES[tensor.dtype]).contiguous()
            stride = tensor.num_elements * tensor.dtype.host_bytes if pieces > 1 else 0
            bound.engine.bind(FIRST_EXTERNAL + number[tensor], value.data_ptr(), stride * groups, stride, *sharing)
            kept.append(value)
        for tensor, value in self._built.capture.constants.items():
            if tensor in number:
                value = resolved(value.detach()).to(TORCH_DTYPES[tensor.dtype]).contiguous()
                bound.engine.bind(FIRST_EXTERNAL + number[tensor], value.data_ptr())
                kept.append(value)
        return kept

    def _bind_outputs(self, bound: BoundPlan) -> list[torch.Tensor]:
        outputs = []
        rules, replicas = self._returned(), self.options.replicas
        first = FIRST_EXTERNAL + len(bound.graph.inputs)
        parts = self._parts
        if parts is not None:
            assert parts.piece is not None
            rules = [rules[place] for place in parts.piece.part.outputs]
        for index, tensor in enumerate(bound.graph.outputs):
            is_last = rules[index].mode == "final"
            # Micro-batches that run side by side write side by side, too.
            kept = bound.lanes.micro_batches if is_last else self.micro_batches * self.iterations
            value = torch.empty((kept, replicas, *tensor.shape), dtype=TORCH_DTYPES[tensor.dtype])
            stride = tensor.num_elements * tensor.dtype.host_bytes
            apart = stride * replicas
            bound.engine.bind(
                first + index, value.data_ptr(), 0 if is_last else apart, stride,
                lane_stride_bytes=apart if is_last else 0,
            )
            if is_last:
                outputs.append(value if parts is not None else value[(self.micro_batches - 1) % kept])
            else:
                outputs.append(value.flatten(0, 1))
        return outputs

    @property
    def _host_threads(self) -> int:
        return self.options.host_threads or default_threads()

    def _frozen(self, built: Built) -> Sequence[Tensor]:
        """Return inputs of which what depends on them alone is computed once; none where a subclass says nothing."""
        return ()

    def _upload(self) -> bool:
        """Bring the user's tensors into the program's memory, and return whether all were there."""
        stale = [r for r in self._residents if not self._clean or r.changed()]
        if stale:
            with torch.no_grad():
                copy_all([r.memory for r in stale], [r.source() for r in stale], self._host_threads)
        for resident in stale:
            resident.mark()
        return not stale and self._clean

    def _download(self) -> None:
        """Write all states back in one call, which no signal can cut in two."""
        written = [r for r in self._residents if r.is_written]
        pairs = [pair for resident in written for pair in resident.targets()]
        if self._parts is not None:
            pairs += self._parts.arrived
        hosts, memories = [host for host, _ in pairs], [memory for _, memory in pairs]
        with torch.no_grad():
            self._committed = True
            if hosts:
                copy_all(hosts, memories, self._host_threads)
        for resident in written:
            resident.mark()
