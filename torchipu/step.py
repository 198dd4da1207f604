"""The one-Program door: a whole training step, or a loop of inferences, as one program a call."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchipu.capture.accumulation import Accumulation, accumulate, all_reduce, as_made, joined
from torchipu.capture.aot import Captured, capture_inference, capture_joint
from torchipu.capture.batch_norm import moments_over
from torchipu.capture.gradient_scaling import adapt, count_large, scaled, with_scale_of_the_program
from torchipu.capture.optimiser import FIRST_MOMENTS, SECOND_MOMENTS, OptimiserImport, import_optimiser
from torchipu.compiler import Compiled, compile_graph
from torchipu.errors import ConstraintError, OptionsError
from torchipu.ir.graph import Graph, Tensor
from torchipu.ir.types import DType
from torchipu.options import Options
from torchipu.report import Profile, profile_of
from torchipu.report.recorder import record
from torchipu.runtime.executor import FIRST_EXTERNAL, BoundPlan, default_threads
from torchipu.runtime.generic import TORCH_DTYPES
from torchipu.runtime.host_plan import Planner
from torchipu.runtime.observation import Observation
from torchipu.runtime.resident import Resident, Returned
from torchipu.runtime.statistics import TensorStatistics, format_statistics
from torchipu.target import lookup_target

Progress = Callable[[int, int], None]
STAGES_OF_COMPILATION = 4
_TYPES: Mapping[str, DType | None] = {"gradient": None, "weight": None, "half": DType.HALF, "float": DType.FLOAT}


@dataclass(frozen=True, slots=True)
class _Built:
    """What capture gives.

    Attributes:
        capture: The model.
        graph: The whole graph, with accumulation and update for training.
        states: The user's tensor of each state of the program; None for those that only the program knows.
        written: States that a call changes.
        optimiser: The update, for training.
    """

    capture: Captured
    graph: Graph
    states: dict[Tensor, torch.Tensor | None]
    written: frozenset[Tensor]
    optimiser: OptimiserImport | None = None


class _Step:
    """What training and inference share: capture at the first call, state in the program's memory.

    Weights, buffers and optimiser state live with the program while it runs and are written back to the user's
    tensors when a call has ended well; a call that fails or is interrupted leaves them as they were.
    """

    default_output_mode = "all"

    def __init__(self, model: torch.nn.Module, options: Options | None) -> None:
        if not isinstance(model, torch.nn.Module):
            raise OptionsError(
                f"model must be a torch.nn.Module, got {type(model).__name__}", option="model", value=model,
                remedy="wrap the function in a module whose forward calls it",
            )
        self.model = model
        self.options = options or Options()
        self.target = lookup_target(self.options.target)
        self._lock = threading.Lock()
        self._bound: BoundPlan | None = None
        self._compiled: Compiled | None = None
        self._built: _Built | None = None
        self._residents: list[Resident] = []
        self._signature: tuple[object, ...] | None = None
        self._clean = False
        self._committed = False
        self._calls = 0
        self._rounds_stochastically = self.options.stochastic_rounding

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

    # ------------------------------------------------------------------ for subclasses
    @property
    def micro_batches(self) -> int:
        """Micro-batches between two weight updates, or in one inference call."""
        raise NotImplementedError

    @property
    def iterations(self) -> int:
        """Weight updates in one call."""
        raise NotImplementedError

    @property
    def output_mode(self) -> str:
        """Which micro-batches' results a call returns: ``all``, ``final``, ``sum`` or ``every_n``."""
        return self.options.output_mode or self.default_output_mode

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

    def _build(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> _Built:
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
        with self._lock:
            undo = self._keep()
            try:
                self._compile(arguments, keywords, progress or (lambda done, total: None))
            except BaseException:
                undo()
                raise

    def graph_of(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Graph:
        """Capture for the inputs of one micro-batch, without compiling; the model and the optimiser stay as they are.

        Raises:
            CaptureError: The model cannot be captured as one graph.
        """
        with self._lock:
            undo = self._keep()
            try:
                return self._build(arguments, keywords).graph
            finally:
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
        with self._lock:
            self._committed = False
            undo = self._keep()
            try:
                leaves = pytree.tree_leaves((arguments, keywords))
                if self._signature is None or self._signature_of(leaves) != self._signature:
                    self._compile(arguments, keywords, lambda done, total: None)
                assert self._built is not None
                return self._run(self._built.capture.flatten(arguments, keywords))
            except BaseException:
                # After the write-back the new values are the user's, even if Ctrl-C comes before the results do.
                if not self._committed:
                    undo()
                raise

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

    @property
    def profile(self) -> Profile:
        """Modelled cycles, tile memory and pipeline efficiency of the last compilation."""
        compiled = self.compiled
        profile = profile_of(compiled.executable, compiled.cost, compiled.target)
        if not self.options.statistics:
            return profile
        return dataclasses.replace(profile, statistics=format_statistics(self.statistics))

    @property
    def statistics(self) -> tuple[TensorStatistics, ...]:
        """Magnitudes of every result in the last call, in the order of the ops; ``profile.text()`` shows them too.

        Raises:
            OptionsError: The program does not count them, or there is none yet.
        """
        if not self.options.statistics:
            raise OptionsError(
                "the program does not count magnitudes", option="statistics", value=False,
                remedy="make the step with torchipu.Options(statistics=True)",
            )
        self.compiled  # noqa: B018  # says what to do where nothing is compiled yet
        assert self._bound is not None
        return self._bound.statistics()

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
        leaves = pytree.tree_leaves((arguments, keywords))
        cut_arguments, cut_keywords = pytree.tree_map(self._slice, (arguments, keywords))
        progress(0, STAGES_OF_COMPILATION)
        built = self._build(cut_arguments, cut_keywords)
        progress(1, STAGES_OF_COMPILATION)
        compiled = compile_graph(built.graph, self.options, self.target, micro_batches=self.micro_batches)
        progress(2, STAGES_OF_COMPILATION)
        replicas = self.options.replicas
        options = self.options
        observation = Observation(traps=options.floating_point_exceptions, counts=options.statistics)
        planner = Planner(
            compiled.graph, states=list(built.states), micro_batches=self.micro_batches, replicas=replicas,
            observation=observation,
        )
        planner.may_view_outputs = False  # every output has memory of its own
        self._check_buffers(built, planner.banked)
        bound = BoundPlan(planner.plan(), planner.graph, replicas, observation=observation)
        progress(3, STAGES_OF_COMPILATION)
        self._signature = None  # nothing is compiled until all of this is in place
        self._built, self._compiled, self._bound = built, compiled, bound
        before = {id(r.host): r for r in self._residents if r.replicas is not None and not r.changed()}
        self._residents = [
            Resident.of(bound.state_view(tensor), host, tensor in built.written, tensor in planner.banked)
            for tensor, host in built.states.items() if host is not None
        ]
        for resident in self._residents:
            earlier = before.get(id(resident.host))
            if resident.replicas is not None and earlier is not None and earlier.replicas is not None:
                resident.replicas.copy_(earlier.replicas)
                resident.mark()
        self._clean = False
        self._signature = self._signature_of(leaves)
        record(self.profile, compiled)
        progress(STAGES_OF_COMPILATION, STAGES_OF_COMPILATION)

    def _check_buffers(self, built: _Built, banked: frozenset[Tensor]) -> None:
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

    def _module_states(self, capture: Captured) -> dict[Tensor, torch.Tensor | None]:
        """Return the module's tensor of each weight and buffer of the graph."""
        parameters = dict(self.model.named_parameters())
        buffers = dict(self.model.named_buffers())
        states: dict[Tensor, torch.Tensor | None] = {t: parameters[n] for n, t in capture.parameters.items()}
        return states | {tensor: buffers[name] for name, tensor in capture.buffers.items()}

    # ------------------------------------------------------------------ running
    def _run(self, tensors: Sequence[torch.Tensor]) -> Any:
        assert self._bound is not None and self._built is not None
        bound = self._bound
        inputs = self._bind_inputs(bound, tensors)
        outputs = self._bind_outputs(bound)
        self._refresh()
        self._upload()
        if bound.random_rows is not None:
            seed = self.options.seed
            key = seed if seed is not None else int(torch.randint(2**62, ()).item())
            bound.seed(key, stochastic_rounding=self._rounds_stochastically)
            if seed is not None:
                bound.random_rows[:, 3] = self._calls * self.micro_batches * self.iterations
        self._clean = False
        bound.run(self.micro_batches, self.iterations, self.options.host_threads or default_threads())
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
            value = value.detach().to(TORCH_DTYPES[tensor.dtype]).contiguous()
            stride = tensor.num_elements * tensor.dtype.host_bytes if pieces > 1 else 0
            bound.engine.bind(FIRST_EXTERNAL + number[tensor], value.data_ptr(), stride * groups, stride, *sharing)
            kept.append(value)
        for tensor, value in self._built.capture.constants.items():
            if tensor in number:
                value = value.detach().to(TORCH_DTYPES[tensor.dtype]).contiguous()
                bound.engine.bind(FIRST_EXTERNAL + number[tensor], value.data_ptr())
                kept.append(value)
        return kept

    def _bind_outputs(self, bound: BoundPlan) -> list[torch.Tensor]:
        outputs = []
        rules, replicas = self._returned(), self.options.replicas
        first = FIRST_EXTERNAL + len(bound.graph.inputs)
        for index, tensor in enumerate(bound.graph.outputs):
            pieces = replicas * (1 if rules[index].mode == "final" else self.micro_batches * self.iterations)
            value = torch.empty((pieces, *tensor.shape), dtype=TORCH_DTYPES[tensor.dtype])
            stride = tensor.num_elements * tensor.dtype.host_bytes
            apart = 0 if pieces == replicas else stride * replicas
            bound.engine.bind(first + index, value.data_ptr(), apart, stride)
            outputs.append(value)
        return outputs

    def _upload(self) -> None:
        stale = [r for r in self._residents if not self._clean or r.changed()]
        if stale:
            with torch.no_grad():
                torch._foreach_copy_([r.memory for r in stale], [r.source() for r in stale])
        for resident in stale:
            resident.mark()

    def _download(self) -> None:
        """Write all states back in one call, which no signal can cut in two."""
        written = [r for r in self._residents if r.is_written]
        pairs = [pair for resident in written for pair in resident.targets()]
        hosts, memories = [host for host, _ in pairs], [memory for _, memory in pairs]
        with torch.no_grad():
            self._committed = True
            if written:
                torch._foreach_copy_(hosts, memories)
        for resident in written:
            resident.mark()


class InferenceStep(_Step):
    """Runs a model's forward on the emulated IPU, ``device_iterations`` micro-batches a call.

    Args:
        model: Module; its training flags are taken as they are.
        options: What to emulate.

    Raises:
        OptionsError: The model is not a module, or ``gradient_accumulation`` is not 1.
    """

    def __init__(self, model: torch.nn.Module, options: Options | None = None) -> None:
        super().__init__(model, options)
        if self.options.gradient_accumulation != 1:
            raise OptionsError(
                f"gradient_accumulation must be 1 for inference, got {self.options.gradient_accumulation}",
                option="gradient_accumulation", value=self.options.gradient_accumulation, allowed="1",
                remedy="use device_iterations to run several micro-batches in one call",
            )

    @property
    def micro_batches(self) -> int:
        """Micro-batches in one call."""
        return self.options.device_iterations

    @property
    def iterations(self) -> int:
        """One: inference has no weight update."""
        return 1

    def _build(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> _Built:
        with moments_over(self.options.batch_norm_group_size):
            capture = self._capture(arguments, keywords)
        written = frozenset(state for state, _ in capture.graph.updates)
        return _Built(capture, capture.graph, self._module_states(capture), written)

    def _capture(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Captured:
        return capture_inference(self.model, arguments, keywords, strict_ops=self.options.strict_ops)


class TrainStep(_Step):
    """Trains a model on the emulated IPU: forward, loss, backward, accumulation and update are one program.

    A call runs ``device_iterations`` weight updates, each over ``gradient_accumulation`` micro-batches.

    Args:
        model: Module whose forward returns the loss among its outputs.
        optimizer: ``torch.optim`` SGD, Adam, AdamW or RMSprop over the model's parameters. Learning rates and
            other hyper-parameters are read at each call.
        options: What to emulate.
        loss: Position of the loss among the flattened outputs; None finds the only 0-d output that
            requires a gradient.

    Raises:
        OptionsError: The model is not a module, or the optimiser is of another kind.
    """

    default_output_mode = "final"
    ignores_own_step = False  # of an optimiser that is a subclass

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, options: Options | None = None, *,
        loss: int | None = None,
    ) -> None:
        super().__init__(model, options)
        self.optimizer = optimizer
        self.loss = loss
        self._loss_scale = torch.tensor(self.options.loss_scaling, dtype=torch.float32)

    @property
    def micro_batches(self) -> int:
        """Micro-batches between two weight updates."""
        return self.options.gradient_accumulation

    @property
    def iterations(self) -> int:
        """Weight updates in one call."""
        return self.options.device_iterations

    def _build(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> _Built:
        options = self.options
        with moments_over(options.batch_norm_group_size):
            capture = self._capture(arguments, keywords)
        running = options.mean_reduction == "running" and options.accumulation_reduction == "mean"
        accumulated, accumulation = accumulate(
            capture.gradients, self.micro_batches, dtype=_TYPES[options.accumulator_type], running_mean=running,
        )
        accumulated, reductions = all_reduce(accumulated, options.replicas)
        capture, scale, counted, adapted = self._automatic_scale(capture)
        optimiser = self._scaled(self._import(self.optimizer, capture, accumulated), accumulated.values(), scale)
        added = joined([accumulation, counted])
        graph = Graph(
            capture.graph.name,
            (*capture.graph.inputs, *added.inputs, *adapted.inputs, *optimiser.inputs),
            capture.graph.outputs,
            (*as_made(capture.graph.ops, added.ops), *reductions, *optimiser.ops, *adapted.ops, *added.resets),
            (*capture.graph.updates, *added.updates, *optimiser.updates, *adapted.updates),
        )
        states = self._module_states(capture) | optimiser.host | dict.fromkeys(added.inputs)
        states |= dict.fromkeys(adapted.inputs, self._loss_scale)
        return _Built(capture, graph, states, frozenset(state for state, _ in graph.updates), optimiser)

    def _automatic_scale(self, capture: Captured) -> tuple[Captured, Tensor | None, Accumulation, Accumulation]:
        """Make the loss scale a state of the program, if it is to follow the gradients."""
        if not self.options.automatic_loss_scaling or capture.loss_scale is None:
            return capture, None, Accumulation(), Accumulation()
        graph, scale = with_scale_of_the_program(capture.graph, capture.loss_scale)
        constants = {t: value for t, value in capture.constants.items() if t is not capture.loss_scale}
        counters, counted = count_large(capture.gradients)
        adapted = adapt(scale, counters) if counters else Accumulation((scale,))
        return dataclasses.replace(capture, graph=graph, constants=constants), scale, counted, adapted

    def _import(
        self, optimizer: torch.optim.Optimizer, capture: Captured, gradients: Mapping[str, Tensor],
    ) -> OptimiserImport:
        """Write an optimiser as ops that read these gradients."""
        options = self.options
        scale = 1.0 if options.automatic_loss_scaling else options.loss_scaling
        is_mean = options.accumulation_reduction == "mean"
        if is_mean and (options.mean_reduction != "running" or self.micro_batches == 1):
            scale *= (1 if options.divides_loss else self.micro_batches) * options.replicas
        types = {
            key: _TYPES[chosen] for keys, chosen in (
                (FIRST_MOMENTS, options.first_moment_type), (SECOND_MOMENTS, options.second_moment_type),
            ) for key in keys
        }
        return import_optimiser(
            optimizer, self.model, capture.parameters, gradients, gradient_scale=1.0 / scale, state_types=types,
            ignores_own_step=self.ignores_own_step,
        )

    def _scaled(
        self, optimiser: OptimiserImport, gradients: Iterable[Tensor], scale: Tensor | None = None,
    ) -> OptimiserImport:
        """Put clipping and the program's loss scale, as the options ask, between gradients and their optimiser."""
        return scaled(optimiser, gradients, max_norm=self.options.max_grad_norm, loss_scale=scale)

    @property
    def loss_scale(self) -> float:
        """Factor on the loss in the next call: the option ``loss_scaling``, or where automatic scaling has led."""
        return float(self._loss_scale)

    def _capture(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Captured:
        return capture_joint(
            self.model, arguments, keywords, loss=self.loss, loss_scale=self.options.backward_scale,
            strict_ops=self.options.strict_ops,
        )

    def _refresh(self) -> None:
        """Read learning rates and the other hyper-parameters anew."""
        assert self._built is not None and self._built.optimiser is not None and self._bound is not None
        self._built.optimiser.refresh()
        for tensor, value in self._built.optimiser.hyperparameters.items():
            self._bound.state_view(tensor).copy_(value.view(torch.int64))

    def _mark_stepped(self) -> None:
        # Schedulers of learning rates warn unless the optimiser has made a step before theirs.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]

    def _keep(self) -> Callable[[], None]:
        """Note which states the optimiser has: those of a first step are created before it has run."""
        states = self.optimizer.state
        before = {parameter: dict(state) for parameter, state in states.items()}

        def undo() -> None:
            for parameter in [parameter for parameter in states if parameter not in before]:
                del states[parameter]
            for parameter, state in before.items():
                states[parameter].clear()
                states[parameter].update(state)

        return undo
