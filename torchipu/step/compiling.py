"""From a model and its arguments to a program with memory: capture, compiling, and when to do so anew."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._dynamo.eval_frame import OptimizedModule
from torch.utils import _pytree as pytree

from torchipu import artifacts, forks
from torchipu._kernels.abi import Footprint, ModelMembers
from torchipu.advice.remedies import compile_or_advise
from torchipu.capture.built import Built
from torchipu.capture.captured import Captured
from torchipu.capture.tensor_classes import first_of, plain, told
from torchipu.compiler import Compiled
from torchipu.distributed.exchange import Exchange
from torchipu.distributed.handshake import agree
from torchipu.distributed.members import Members
from torchipu.errors import ConstraintError, OptionsError
from torchipu.host.border import as_pairs
from torchipu.host.bound_plan import BoundPlan
from torchipu.host.copying import RepeatedCopy
from torchipu.host.edge import Edge
from torchipu.host.executor import default_threads
from torchipu.host.laid import Laid
from torchipu.host.lanes import Lanes, choose_lanes
from torchipu.host.observation import Observation
from torchipu.host.plan import HostPlan
from torchipu.host.planner import Planner
from torchipu.host.resident import Resident, Versions
from torchipu.host.unseen_writes import Sampled
from torchipu.ir.garbage import seldom_collected
from torchipu.ir.graph import Graph, Tensor
from torchipu.options import Options, given_or_default
from torchipu.parts.program import Piece
from torchipu.report.recorder import is_heard, record
from torchipu.step.edge import Arguments, Results
from torchipu.step.in_parts import InParts
from torchipu.step.loaders import measure_loaders
from torchipu.step.parted import PartedStep
from torchipu.step.replicated import ReplicatedStep
from torchipu.step.reported import ReportedStep
from torchipu.step.seen import Seen, graph_again, why_again
from torchipu.target import lookup_target

Progress = Callable[[int, int], None]
Capturing = Callable[[Callable[[], Captured]], Captured]
STAGES_OF_COMPILATION = 4


@dataclass(frozen=True, slots=True)
class _Made:
    """A program before it has memory."""

    built: Built
    compiled: Compiled
    planner: Planner
    plan: HostPlan
    observation: Observation
    piece: Piece | None = None


class CompilingStep(ReplicatedStep, PartedStep, ReportedStep):
    """A model with the program that was last made of it.

    Args:
        model: What is captured.
        options: Of the machine and the program; None for those that hold unless told otherwise.
    """

    leaves_states = False
    """Whether states are in the program's memory, from call to call, whatever the user's tensors hold."""

    def __init__(self, model: torch.nn.Module, options: Options | None) -> None:
        _refuse_what_is_no_module(model)
        # What torch.compile has wrapped is captured here, and whole.
        self.model = model._orig_mod if isinstance(model, OptimizedModule) else model
        self.options = given_or_default(options)
        self.target = lookup_target(self.options.target)
        self._lock = forks.reentrant_lock()  # Lightning has a report written from within a call
        self._parts = None if self.options.pipeline_group is None else InParts(self.options)
        self._bound: BoundPlan | None = None
        self._compiled: Compiled | None = None
        self._built: Built | None = None
        self._residents: list[Resident] = []
        self._hosts: list[torch.Tensor] = []  # the user's tensor of each
        self._footprint: Footprint | None = None  # of the model and these, which calls look at
        self._versions: Versions | None = None  # of these, where something is made of them once
        self._sampled: Sampled | None = None  # of those that are asked about, to see writes that torch does not count
        self._has_warned = False  # of such a write
        self._copied: list[Resident] = []  # those of which the program has a copy
        self._written_in_place: list[torch.Tensor] = []  # tensors of the user's on which it works
        self._arguments: Arguments | None = None  # from the first call on
        self._results: Results | None = None
        self._has_prepared = False  # whether anything is made of the states once, for as long as these stay
        self._ends: list[torch.Tensor] = []  # between which the copies back go, host and memory of each state
        self._back = RepeatedCopy([], [])
        self._laid: Laid | None = None  # how the user's tensors lay when states were placed; None where none are
        self._is_in_place = False  # whether the program works on some of them
        self._signature: tuple[object, ...] | None = None
        self._model_members: ModelMembers | None = None  # what the model was made of then
        self._clean = False
        self._committed = False
        self._calls = 0
        self._rounds_stochastically = self.options.stochastic_rounding
        self._members: Members | None = None
        self._capturing: Capturing | None = None
        self._seen = Seen()
        self.facts: dict[str, object] = {}
        """What else all processes have to agree on, by name; compared when the program is compiled."""

    # ------------------------------------------------------------------ for subclasses
    def _capture(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Captured:
        """Capture the model."""
        raise NotImplementedError

    def _build(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Built:
        """Capture the model and add to its graph what the step does beside it."""
        raise NotImplementedError

    def _module_states(self, capture: Captured) -> dict[Tensor, torch.Tensor | None]:
        """Return the module's tensor of each weight and buffer of the graph."""
        parameters = dict(self.model.named_parameters())
        buffers = dict(self.model.named_buffers())
        states: dict[Tensor, torch.Tensor | None] = {t: parameters[n] for n, t in capture.parameters.items()}
        states |= {tensor: buffers[name] for name, tensor in capture.buffers.items()}
        return {tensor: None if value is None else as_pairs(value) for tensor, value in states.items()}

    # ------------------------------------------------------------------ compiling
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

    def _signature_of(self, leaves: Sequence[Any]) -> tuple[object, ...]:
        # By identity too: a model may be given other parameters, by load_state_dict(assign=True) for one.
        self._model_members = ModelMembers(self.model)
        return (_described(leaves), *self._model_members.found)

    def _is_as_compiled(self, leaves: Sequence[Any]) -> bool:
        """Whether the program is for these inputs, and for the model as it is."""
        if self._signature is None or self._model_members is None or self._signature[0] != _described(leaves):
            return False
        return self._model_members.are_same()

    def _slice(self, leaf: Any) -> Any:
        """Return the first micro-batch of an input."""
        if not isinstance(leaf, torch.Tensor):
            return leaf
        pieces = self.micro_batches * self.iterations * self.options.input_groups
        if pieces == 1:
            return leaf
        shape = plain(leaf).shape
        if not shape or shape[0] % pieces or shape[0] == 0:
            size = shape[0] if shape else "a 0-d tensor"
            below = shape[0] // pieces * pieces if shape else 0
            raise ConstraintError(
                f"batch of {size} is not divisible by {self._pieces_text()} = {pieces}",
                remedy=f"pass {below or pieces} or {below + pieces} samples along dimension 0",
            )
        return first_of(leaf, shape[0] // pieces)

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
        with _outside_inference_mode(), seldom_collected():
            made, bound = self._made_and_bound(arguments, keywords, progress)
        built, compiled = made.built, made.compiled
        if self._members is not None and self._compiled is None:
            self._take_states_of_first(self._members, built, self._parts)
        progress(3, STAGES_OF_COMPILATION)
        self._signature = None  # nothing is compiled until all of this is in place
        self._arguments = self._results = None
        self._built, self._compiled, self._bound = built, compiled, bound
        before = {id(r.host): r for r in self._residents if r.replicas is not None and not r.changed()}
        states = _states_of_user(built, bound.host_plan)
        are_users, self._laid = [False] * len(states), None
        if states and bound.placed_states:
            hosts = list(states.values())
            self._laid, are_users = Laid(hosts), bound.place_states(hosts)
        self._residents = [
            Resident.of(bound.state_view(tensor), host, tensor.name, tensor in built.written, bound.is_apart(tensor))
            for tensor, host in states.items()
        ]
        for resident, is_users in zip(self._residents, are_users, strict=True):
            resident.is_users = is_users
            earlier = before.get(id(resident.host))
            if resident.replicas is not None and earlier is not None and earlier.replicas is not None:
                resident.replicas.copy_(earlier.replicas)
                resident.mark()
        self._note_hosts()
        self._has_prepared = bool(self._frozen(built))
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
        if is_heard() or artifacts.is_wanted():
            profile = self.profile
            record(profile, compiled, is_step=True, owner=self)
            artifacts.emit(profile, compiled)
        progress(STAGES_OF_COMPILATION, STAGES_OF_COMPILATION)

    def _mirror(self, hosts: Mapping[Tensor, torch.Tensor | None]) -> None:
        """Let states mirror other tensors of the user's; those that are not named stay with theirs."""
        assert self._built is not None and self._bound is not None
        for tensor, resident in zip(_states_of_user(self._built, self._bound.host_plan), self._residents, strict=True):
            host = hosts.get(tensor)
            if host is not None:
                resident.host, resident.shape = host, host.shape
        self._note_hosts()

    def _note_hosts(self) -> None:
        self._hosts = [resident.host for resident in self._residents]
        self._versions = None
        self._footprint = Footprint(self.model, self._hosts)
        self._note_places()

    def _note_places(self) -> None:
        residents = self._residents
        self._copied = [resident for resident in residents if not resident.is_users]
        self._sampled = None
        self._written_in_place = [one.host for one in residents if one.is_users and one.is_written]
        self._is_in_place = len(self._copied) < len(residents)

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
            placed=list(_states_of_user(made.built, made.plan)) if self._may_place(made.planner) else (),
        )

    def _may_place(self, planner: Planner) -> bool:
        """Whether the program may work on the user's tensors, if these will do: nobody else has part of a state."""
        is_alone = self._members is None and self._parts is None and not planner.banked
        return is_alone and not self.leaves_states and self.options.executor != "tiles"

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
            is_strict=self.options.strict_numerics, edge=Edge(shows=False),
        )
        self._check_buffers(built, planner.banked)
        plan = planner.plan()
        self._seen.plan_seconds = time.perf_counter() - began
        return _Made(built, compiled, planner, plan, observation)

    def _frozen(self, built: Built) -> Sequence[Tensor]:
        """Return inputs of which what depends on them alone is computed once; none where a subclass says nothing."""
        return ()

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

    @property
    def _host_threads(self) -> int:
        return self.options.host_threads or default_threads()


def _described(leaves: Sequence[Any]) -> tuple[object, ...]:
    return tuple([
        (leaf.shape, leaf.dtype) if type(leaf) is torch.Tensor
        else told(leaf) if isinstance(leaf, torch.Tensor) else (type(leaf), leaf)
        for leaf in leaves
    ])


@contextlib.contextmanager
def _outside_inference_mode() -> Iterator[None]:
    """Make tensors that may be written to later, whatever mode the program is compiled in."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():  # the former switches gradients on
        yield


def _states_of_user(built: Built, plan: HostPlan) -> dict[Tensor, torch.Tensor]:
    """Return the states of a plan that mirror a tensor of the user's."""
    return {tensor: host for tensor, host in built.states.items() if host is not None and tensor in plan.states}


def _refuse_what_is_no_module(model: object) -> None:
    """Raise OptionsError for what cannot be captured as a model."""
    if isinstance(model, torch.nn.Module):
        return
    got = f"the class {model.__name__} itself" if isinstance(model, type) else type(model).__name__
    remedy = "wrap the function in a module whose forward calls it"
    if isinstance(model, type):
        remedy = "make one of it, and give that"
    elif isinstance(model, CompilingStep):
        remedy = "give the model that it was made of, its attribute model"
    raise OptionsError(
        f"model must be a torch.nn.Module, got {got}", option="model", value=model, remedy=remedy,
    )
