"""The function that torch.compile(backend="ipu") calls: joins capture, compiler and host plan."""

from __future__ import annotations

import enum
import itertools
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._guards import CompileContext, TracingContext
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes

from torchipu import artifacts
from torchipu.advice.remedies import compile_or_advise
from torchipu.capture import substitutes
from torchipu.capture.complex_numbers import with_complex_results, without_complex
from torchipu.capture.custom_ops import replace_calls
from torchipu.capture.decompositions import decompositions
from torchipu.capture.fx_import import Given, Imported, import_graph
from torchipu.capture.fx_source import OUR_ROOT, TORCH_ROOT, source_of
from torchipu.capture.fx_types import refuse_inputs
from torchipu.capture.joint_graph import partition
from torchipu.capture.process_wide import capturing
from torchipu.compiler import Compiled
from torchipu.errors import CaptureError, OptionsError, nearest
from torchipu.host.agreement import Agreement
from torchipu.host.collectives import wait_for
from torchipu.host.executor import GraphExecutor, as_type, resolved
from torchipu.host.generic import TORCH_DTYPES
from torchipu.ir.graph import Graph, Tensor, walk_ops
from torchipu.ir.types import Leg, Role, Source
from torchipu.optable.generic import EFFECT_TOKEN
from torchipu.options import Options
from torchipu.report import profile_of
from torchipu.report.recorder import record
from torchipu.target import Target, lookup_target

substitutes.register()

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""What torch.compile's ``mode`` may be."""

MAX_SHAPES = 32
"""Sizes for which a graph with sizes unknown to torch is kept compiled."""


@dataclass(slots=True)
class Counts:
    """What the backend did in this process.

    Attributes:
        graphs: FX graphs that Dynamo handed over.
        programs: Programs compiled: forward, backward and inference, once for each set of sizes.
        evicted: Programs dropped again because there were too many sizes.
    """

    graphs: int = 0
    programs: int = 0
    evicted: int = 0


COUNTS = Counts()
_RESUMED = "torch_dynamo_resume_in_"
_UNBROKEN = "rewrite the line, or leave out strict and let torch run what lies between the graphs"
_NO_EFFECT = torch.empty(0)
_NUMBERS = itertools.count()
_RECOMPILES = torch._logging.getArtifactLogger("torch._dynamo.ipu", "recompiles")  # type: ignore[attr-defined]
"""Beside Dynamo's own reasons to compile again, under ``TORCH_LOGS=recompiles``."""


def ipu_backend(
    gm: GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, object] | Options | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo's for the emulated IPU.

    Args:
        gm: Torch-level FX graph.
        example_inputs: Inputs, the parameters among them.
        options: ``torch.compile(..., options={...})``, by the names in `Options`.
        mode: Ignored with a warning: its values are meant for other backends.

    Returns:
        A callable that takes and returns tensors as ``gm`` does; gradients flow through it.

    Raises:
        OptionsError: An option or the mode is unknown or out of range.
        CaptureError: The graph cannot be captured, or under ``strict`` not without leaving code to eager.
        OutOfTileMemoryError: The program does not fit.
    """
    settings = options if isinstance(options, Options) else Options.from_mapping(options or {})
    if mode is not None:
        if mode not in MODES:
            raise OptionsError(
                f"unknown mode {mode!r}{nearest(mode, MODES)}", option="mode", value=mode, allowed=", ".join(MODES),
                remedy="leave mode out: these are for other backends, and are ignored with a warning",
            )
        warnings.warn(f"torchipu: mode={mode!r} has no meaning for the IPU and is ignored", stacklevel=2)
    for name in ("replicas", "gradient_accumulation", "device_iterations"):
        value = getattr(settings, name)
        if value > 1:
            raise OptionsError(
                f"{name}={value} needs a whole step as one program", option=name, value=value,
                allowed="1 with torch.compile", remedy="use torchipu.TrainStep or torchipu.InferenceStep",
            )
    if settings.executor != "host":
        raise OptionsError(
            "the tiles run whole programs, and torch.compile has a program for each graph", option="executor",
            value=settings.executor, allowed="'host' with torch.compile",
            remedy="use torchipu.TrainStep or torchipu.InferenceStep",
        )
    if settings.strict:
        refuse_eager(gm)
    if isinstance(gm, GraphModule):
        refuse_inputs(gm, example_inputs)
    COUNTS.graphs += 1
    doors = _Doors(f"graph{next(_NUMBERS)}", settings, lookup_target(settings.target))
    compiled: Callable[..., Any] = aot_autograd(
        fw_compiler=doors.forward, bw_compiler=doors.backward, inference_compiler=doors.inference,
        partition_fn=doors.partition, decompositions=decompositions(),
    )(replace_calls(gm), example_inputs)
    return compiled


def refuse_eager(gm: GraphModule) -> None:
    """Raise CaptureError where Dynamo leaves code to eager, or is about to for lack of further recompilations."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    if reason is not None and reason.graph_break:
        lines = [line.strip() for line in str(reason.reason).splitlines() if line.strip()]
        mine = [frame for frame in reason.user_stack if not frame.filename.startswith((TORCH_ROOT, OUR_ROOT))]
        source = Source(mine[-1].filename, mine[-1].lineno or 0, mine[-1].line or "") if mine else ""
        raise CaptureError(
            f"strict: the model breaks into several graphs: {lines[0] if lines else 'graph break'}", source=source,
            remedy=_UNBROKEN,
        )
    resumed = next((node for node in gm.graph.nodes if _RESUMED in (node.meta.get("stack_trace") or "")), None)
    if resumed is not None:
        raise CaptureError(
            "strict: the model breaks into several graphs: torch ran what comes before this line in eager",
            source=source_of(resumed), remedy=_UNBROKEN,
        )
    current = CompileContext.current_compile_id()
    limit = torch._dynamo.config.recompile_limit
    if current is not None and current.frame_compile_id is not None and current.frame_compile_id >= limit - 1:
        raise CaptureError(
            f"strict: this is compilation {limit} of the same code, after which torch runs it in eager",
            remedy="keep shapes and Python arguments the same, use torch.compile(dynamic=True), or raise "
            "torch._dynamo.config.recompile_limit",
        )


class _Doors:
    """The compilers of one Dynamo graph: forward, backward, inference, and the cut between the first two.

    Args:
        name: Name of the graph in reports and dumps.
        options: What to emulate.
        target: The machine.
    """

    def __init__(self, name: str, options: Options, target: Target) -> None:
        self.name = name
        self.options = options
        self.target = target
        self.num_results: int | None = None
        self.roles: dict[str, Role] = {}

    def partition(self, joint: GraphModule, inputs: Any, *, num_fwd_outputs: int, **kwargs: Any) -> Any:
        """Cut the joint graph, and note how many results of the forward are the caller's."""
        self.num_results = num_fwd_outputs
        return partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)

    def forward(self, gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a forward whose backward will follow."""
        static = _static_inputs()
        for position, (node, value) in enumerate(zip(_placeholders(gm), inputs, strict=True)):
            is_weight = position in static or isinstance(value, torch.nn.Parameter)
            self.roles[node.name] = Role.WEIGHT if is_weight else Role.INPUT
        return self._program(gm, Leg.FORWARD, "forward", self.num_results)

    def backward(self, gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a backward."""
        for node in _placeholders(gm):
            if node.name not in self.roles:
                self.roles[node.name] = Role.GRADIENT if node.name.startswith("tangents") else Role.ACTIVATION
        return self._program(gm, Leg.BACKWARD, "backward", None)

    def inference(self, gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a forward without a backward."""
        static = _static_inputs()
        for position, node in enumerate(_placeholders(gm)):
            self.roles[node.name] = Role.WEIGHT if position in static else Role.INPUT
        return self._program(gm, Leg.FORWARD, "inference", None)

    def _program(self, gm: GraphModule, leg: Leg, name: str, num_results: int | None) -> Callable[..., Any]:
        given = [Given(self.roles.get(node.name, Role.INPUT)) for node in _placeholders(gm)]

        @_alone
        def build(module: GraphModule) -> _Program:
            module = without_complex(module)
            imported = import_graph(
                module, name=f"{self.name}.{name}", given=given, leg=leg, strict_ops=self.options.strict_ops,
            )
            compiled = compile_or_advise(imported.graph, self.options, self.target)
            COUNTS.programs += 1
            profile = profile_of(compiled.executable, compiled.cost, compiled.target, compiled.options.io_tiles)
            record(profile, compiled)
            artifacts.emit(profile, compiled)
            is_frozen = self.options.frozen_weights and name == "inference"
            imported = with_complex_results(imported, module)
            return _Program(imported, compiled, self.options, num_results, _handed_back(module, is_dynamic), is_frozen)

        is_dynamic = _has_unknown_sizes(gm)
        run = _ByShape(gm, build).run if is_dynamic else build(gm).run
        return _boxed(run)


def _static_inputs() -> frozenset[int]:
    """Return the positions of parameters, and of other tensors that modules hold, as Dynamo found them.

    AOT autograd detaches inputs: of models that Dynamo captured none is a parameter by its type.
    """
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    return frozenset(metadata.static_input_indices if metadata is not None else ())


def _alone(build: Callable[[GraphModule], _Program]) -> Callable[[GraphModule], _Program]:
    """Call without the modes under which AOT autograd compiles: constants have values, buffers memory.

    No other thread captures meanwhile. A forward has torch's lock already; a backward is compiled when it first runs.
    """

    def call(module: GraphModule) -> _Program:
        with capturing(), _disable_current_modes():
            return build(module)

    return call


def _boxed(run: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
    """Return a callable that AOT autograd hands its arguments in a list, which it empties."""

    def call(arguments: list[Any]) -> list[Any]:
        return run(arguments)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _placeholders(gm: GraphModule) -> list[Node]:
    return [node for node in gm.graph.nodes if node.op == "placeholder"]


class _Kind(enum.Enum):
    """What a result is in the FX graph."""

    COMPUTED = "computed"
    INPUT = "input"  # handed back as it is
    VIEW = "view"  # which AOT autograd makes anew, from what it is a view of and the result's strides and offset


def _handed_back(gm: GraphModule, is_dynamic: bool) -> tuple[_Kind, ...]:
    """Tell what each result is; where all sizes are known, AOT autograd plays views again by their ops instead."""
    has_views = is_dynamic or not torch._functorch.config.view_replay_for_aliased_outputs

    def kind(member: object) -> _Kind:
        if not isinstance(member, Node):
            return _Kind.COMPUTED
        if member.op == "placeholder":
            return _Kind.INPUT
        is_view = isinstance(member.target, torch._ops.OpOverload) and member.target.is_view
        return _Kind.VIEW if has_views and is_view else _Kind.COMPUTED

    (returned,) = next(node for node in gm.graph.nodes if node.op == "output").args
    return tuple(map(kind, returned))


class _Program:
    """One compiled graph with the border to torch: order, dtypes, strides and aliases as torch expects them.

    Args:
        imported: The graph as imported.
        compiled: The same graph, compiled.
        options: Threads and seed.
        num_results: How many of the results, from the first, reach the caller; the others are saved for the
            backward. None for all.
        kinds: What each result is.
        is_frozen: Whether what depends on weights alone is computed once.
    """

    def __init__(
        self, imported: Imported, compiled: Compiled, options: Options, num_results: int | None,
        kinds: tuple[_Kind, ...], is_frozen: bool = False,
    ) -> None:
        frozen = [tensor for tensor in compiled.graph.inputs if is_frozen and tensor.role is Role.WEIGHT]
        self.executor = GraphExecutor(
            compiled.graph, imported.constants, threads=options.host_threads, seed=options.seed, frozen=frozen,
            traps=options.floating_point_exceptions, counts=options.statistics, is_strict=options.strict_numerics,
        )
        place = {tensor: index for index, tensor in enumerate(imported.placeholders) if tensor is not None}
        self.arguments = [place[tensor] for tensor in self.executor.arguments]
        self.foreign = [place[tensor] for tensor in self.executor.arguments if tensor.role is not Role.ACTIVATION]
        self.awaited = [place[tensor] for tensor in imported.awaited if tensor in place]
        agreement = Agreement(imported.graph)
        self.agreement = agreement if agreement.ops else None
        self.has_effects = any(EFFECT_TOKEN in op.operands for op in walk_ops(imported.graph.ops))
        number = {tensor: index for index, tensor in enumerate(imported.graph.outputs)}
        self.results: list[_Result] = []
        for position, (value, fake) in enumerate(zip(imported.results, imported.result_values, strict=True)):
            visible = num_results is None or position < num_results
            layout = _layout(fake, is_view=kinds[position] is _Kind.VIEW)
            if not isinstance(value, Tensor):
                self.results.append(_Result(constant=value))
            elif value in number:
                self.results.append(_Result(output=number[value], visible=visible, fake=layout))
            elif value in place:
                owned = visible and kinds[position] is not _Kind.INPUT
                self.results.append(_Result(argument=place[value], visible=owned, fake=layout))
            else:
                self.results.append(_Result(constant=imported.constants[value].clone(), visible=visible))
        self.returned_as_made = self._find_returned_as_made(compiled.graph)

    def _find_returned_as_made(self, graph: Graph) -> frozenset[int] | None:
        """Return the numbers of the outputs that the caller sees; None if any result may need a copy or a cast."""
        visible = [result for result in self.results if result.visible]
        numbers = [result.output for result in visible if result.output is not None]
        if len(set(numbers)) < len(visible):
            return None
        for result, number in zip(visible, numbers, strict=True):
            layout = result.fake
            if layout is not None and not layout.is_as_made(TORCH_DTYPES[graph.outputs[number].dtype]):
                return None
        return frozenset(numbers)

    def run(self, arguments: list[Any]) -> list[Any]:
        """Run on a list of arguments, which is emptied."""
        values = list(arguments)
        arguments.clear()
        if self.has_effects:  # torch hands None for the token of effects
            values = [_NO_EFFECT if value is None else value for value in values]
        for index in self.foreign:
            values[index] = resolved(values[index])
        for index in self.awaited:
            values[index] = wait_for(values[index])
        if self.agreement is not None:
            self.agreement.reach()
        outputs = self.executor(*(values[index] for index in self.arguments))
        if self.returned_as_made is not None and self.returned_as_made.isdisjoint(self.executor.shared_results):
            return [result.pick(values, outputs) for result in self.results]
        taken = {_memory(value) for value in values if isinstance(value, torch.Tensor)}
        returned = []
        for result in self.results:
            value = result.pick(values, outputs)
            returned.append(result.own(value, taken) if result.visible and isinstance(value, torch.Tensor) else value)
        return returned


@dataclass(frozen=True, slots=True)
class _Layout:
    """What torch expects of a result: element type, and strides when they are not row-major.

    Attributes:
        dtype: The element type.
        strides: In elements; None for row-major.
        offset: Of the first element in its memory; None if that is of no account, and the strides dense then.
    """

    dtype: torch.dtype
    strides: tuple[int, ...] | None
    offset: int | None = None

    def is_as_made(self, dtype: torch.dtype) -> bool:
        """Whether a fresh row-major result of a type is as torch expects it."""
        return dtype is self.dtype and self.strides is None and not self.offset

    def placed(self, value: torch.Tensor) -> torch.Tensor:
        """Return a tensor with these strides, and this offset, that has the same elements."""
        if self.offset is None:
            if self.strides is None:
                return value.contiguous()
            if value.stride() == self.strides:
                return value
            return torch.empty_strided(value.shape, self.strides, dtype=value.dtype).copy_(value)
        strides = value.contiguous().stride() if self.strides is None else self.strides
        if value.stride() == strides and value.storage_offset() == self.offset:
            return value
        end = self.offset + 1 + sum((size - 1) * stride for size, stride in zip(value.shape, strides, strict=True))
        memory = torch.empty(end if value.numel() else self.offset, dtype=value.dtype)
        # By number: elements may lie on one another, as those of an expanded tensor.
        numbers = torch.arange(len(memory)).as_strided(value.shape, strides, self.offset)
        memory[numbers.reshape(-1)] = value.reshape(-1)
        return memory.as_strided(value.shape, strides, self.offset)


def _layout(fake: torch.Tensor | None, *, is_view: bool = False) -> _Layout | None:
    """Read the layout of a fake value; unless it is a view, strides with gaps or overlaps count as row-major."""
    if fake is None:
        return None
    strides = None if fake.is_contiguous() else tuple(int(stride) for stride in fake.stride())
    if is_view:
        return _Layout(fake.dtype, strides, int(fake.storage_offset()))
    return _Layout(fake.dtype, strides if _is_dense(fake) else None)


def _is_dense(value: torch.Tensor) -> bool:
    """Whether the elements fill their memory without gaps or overlaps, in any order of the dimensions."""
    expected = 1
    for stride, size in sorted(pair for pair in zip(value.stride(), value.shape, strict=True) if pair[1] > 1):
        if stride != expected:
            return False
        expected *= size
    return True


@dataclass(frozen=True, slots=True)
class _Result:
    """Where a result comes from: an output of the program, an argument, or neither.

    Attributes:
        constant: The value, for one that is no tensor of the program.
        output: Number of the program's output.
        argument: Number of the argument.
        visible: Whether the caller may write into it, so that it must not share memory with anything else.
        fake: What torch expects of it.
    """

    constant: object = None
    output: int | None = None
    argument: int | None = None
    visible: bool = False
    fake: _Layout | None = None

    def pick(self, arguments: Sequence[Any], outputs: Sequence[torch.Tensor]) -> Any:
        """Return the value."""
        if self.output is not None:
            return outputs[self.output]
        return arguments[self.argument] if self.argument is not None else self.constant

    def own(self, value: torch.Tensor, taken: set[int]) -> torch.Tensor:
        """Return the value in torch's type and strides, in memory of its own; enter that into ``taken``."""
        layout = self.fake
        if layout is not None:
            value = layout.placed(as_type(value, layout.dtype))
        if _memory(value) in taken:
            value = value.clone() if layout is None or layout.offset is None else layout.placed(value.clone())
        taken.add(_memory(value))
        return value


def _memory(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()


# ---------------------------------------------------------------------- sizes that torch does not know
def _has_unknown_sizes(gm: GraphModule) -> bool:
    """Whether any input is a number, or has a size that is not fixed."""
    for node in _placeholders(gm):
        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return True
        if isinstance(value, torch.Tensor) and any(not isinstance(size, int) for size in value.shape):
            return True
    return False


class _ByShape:
    """A graph of unknown sizes, compiled anew for each set of sizes that it is called with.

    Args:
        gm: ATen graph with symbolic sizes.
        build: Compiles a graph of fixed sizes.
    """

    def __init__(self, gm: GraphModule, build: Callable[[GraphModule], _Program]) -> None:
        self.gm = gm
        self.build = build
        self.has_views = _Kind.VIEW in _handed_back(gm, is_dynamic=True)  # they have the strides of what they are of
        self.programs: OrderedDict[tuple[object, ...], _Program] = OrderedDict()
        self.lock = threading.Lock()
        self.warned = False

    def run(self, arguments: list[Any]) -> list[Any]:
        """Run on a list of arguments, which is emptied."""
        key = tuple(
            (tuple(value.shape), value.dtype, value.stride(), value.storage_offset() if self.has_views else 0)
            if isinstance(value, torch.Tensor) else value for value in arguments
        )
        return (self._kept(key) or self._compiled(key, arguments)).run(arguments)

    def _kept(self, key: tuple[object, ...]) -> _Program | None:
        """Return the program for a set of sizes, which becomes the most recent one."""
        with self.lock:
            program = self.programs.get(key)
            if program is not None:
                self.programs.move_to_end(key)
            return program

    def _compiled(self, key: tuple[object, ...], arguments: Sequence[Any]) -> _Program:
        """Compile for a set of sizes, unless another thread has done so meanwhile."""
        with capturing():
            program = self._kept(key)
            if program is None:
                if self.programs:
                    sizes = ", ".join(str(list(one[0])) if isinstance(one, tuple) else str(one) for one in key)
                    _RECOMPILES.debug("Recompiling for the IPU, in a graph of any size, for inputs %s", sizes)
                program = self.build(specialise(self.gm, arguments))
            with self.lock:
                if key not in self.programs:
                    self._make_room()
                    self.programs[key] = program
            return program

    def _make_room(self) -> None:
        if len(self.programs) < MAX_SHAPES:
            return
        self.programs.popitem(last=False)
        COUNTS.evicted += 1
        if not self.warned:
            self.warned = True
            warnings.warn(
                f"torchipu: called with more than {MAX_SHAPES} sets of sizes; the least recent programs are compiled "
                "anew when they return (pad inputs to fewer sizes)", stacklevel=2,
            )


def specialise(gm: GraphModule, arguments: Sequence[Any]) -> GraphModule:
    """Return a graph with the sizes and numbers of these arguments fixed, source lines and blocks kept.

    Args:
        gm: ATen graph with symbolic sizes.
        arguments: Values of its placeholders.
    """
    mode = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [
        mode.from_tensor(value, static_shapes=True) if isinstance(value, torch.Tensor) else value for value in arguments
    ]

    def interpret(*values: Any) -> Any:
        with torch.fx.traceback.preserve_node_meta():
            return torch.fx.Interpreter(gm).run(*values)

    with torch.no_grad(), mode:
        fixed: GraphModule = make_fx(interpret, tracing_mode="real")(*fakes)
    fixed.graph.eliminate_dead_code()
    return fixed
