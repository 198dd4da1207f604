"""The function that torch.compile(backend="ipu") calls: joins capture, compiler and host plan."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext
from torch.fx import GraphModule

from torchipu.backend import left_frames
from torchipu.backend.any_size import AnySize, alone, has_unknown_sizes, placeholders
from torchipu.backend.counts import COUNTS, Counts
from torchipu.backend.eager import refuse_eager, warn_of_last_compilation, warn_of_suppression
from torchipu.backend.program import Program, Recipe
from torchipu.backend.short_call import Programs, shortened
from torchipu.backend.signals import DynamoSignals
from torchipu.backend.sparse_gradients import without_sparse_results
from torchipu.backend.written import written_arguments
from torchipu.capture import backends, substitutes
from torchipu.capture.checkpoint import with_regions_of_all_kinds
from torchipu.capture.custom_ops import replace_calls
from torchipu.capture.decompositions import decompositions
from torchipu.capture.folded_constants import fold_constants
from torchipu.capture.fx_import import Given
from torchipu.capture.fx_types import refuse_inputs
from torchipu.capture.held_signals import signals_held
from torchipu.capture.joint_graph import partition
from torchipu.capture.saved_in_blocks import without_reads
from torchipu.capture.whole_ops import whole
from torchipu.errors import IpuError, OptionsError, nearest
from torchipu.ir.garbage import seldom_collected
from torchipu.ir.types import Leg, Role
from torchipu.options import Options
from torchipu.target import Target, lookup_target

__all__ = ("COUNTS", "SIGNALS", "Counts", "ipu_backend", "refuse_eager")

substitutes.register()

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""What torch.compile's ``mode`` may be."""

_NUMBERS = itertools.count()


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
    try:
        return _compiled(gm, example_inputs, settings, mode)
    except IpuError as error:
        warn_of_suppression(error)
        raise


def _compiled(
    gm: GraphModule, example_inputs: Sequence[Any], settings: Options, mode: str | None,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo's; arguments and errors are those of `ipu_backend`."""
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
    else:
        warn_of_last_compilation(gm)
    if isinstance(gm, GraphModule):
        refuse_inputs(gm, example_inputs, is_strict=settings.strict)
    COUNTS.graphs += 1
    doors = _Doors(f"graph{next(_NUMBERS)}", settings, lookup_target(settings.target))
    if isinstance(gm, GraphModule):
        doors.programs = Programs.of(gm)
    with signals_held(), seldom_collected(), whole():
        traced = aot_autograd(
            fw_compiler=doors.forward, bw_compiler=doors.backward, inference_compiler=doors.inference,
            partition_fn=doors.partition, decompositions=decompositions(),
        )
        replaced = replace_calls(gm)
        compiled = with_regions_of_all_kinds(lambda: traced(replaced, example_inputs))
    return shortened(compiled, doors.programs, doors.name)


SIGNALS = DynamoSignals(ipu_backend)
backends.enter(ipu_backend)
left_frames.register()


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
        self.programs = Programs(is_altered=True)
        self.program: Program | AnySize | None = None  # the last one

    def partition(self, joint: GraphModule, inputs: Any, *, num_fwd_outputs: int, **kwargs: Any) -> Any:
        """Cut the joint graph, and note how many results of the forward are the caller's."""
        self.num_results = num_fwd_outputs
        fold_constants(joint)  # a backward is given masks as tensors
        return partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)

    def forward(self, gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a forward whose backward will follow."""
        _keep_what_is_saved()
        static = _static_inputs()
        for position, (node, value) in enumerate(zip(placeholders(gm), inputs, strict=True)):
            is_weight = position in static or isinstance(value, torch.nn.Parameter)
            self.roles[node.name] = Role.WEIGHT if is_weight else Role.INPUT
        self.programs.forward = self._program(gm, Leg.FORWARD, "forward", self.num_results)
        self.programs.num_inputs = len(placeholders(gm))
        self._note_trained()
        return self.programs.forward

    def backward(self, gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a backward."""
        without_reads(gm)
        for node in placeholders(gm):
            if node.name not in self.roles:
                self.roles[node.name] = Role.GRADIENT if node.name.startswith("tangents") else Role.ACTIVATION
        put_together = without_sparse_results(gm)
        run = self._program(gm, Leg.BACKWARD, "backward", None)
        if put_together is not None:
            program = run
            run = _boxed(lambda arguments: put_together(program(arguments)))
        else:
            self._note_trained()
        self.programs.note_backward(run, gm)
        return run

    def _note_trained(self) -> None:
        """Take note of the last program where a call of it is all that there is to do."""
        if isinstance(self.program, Program):
            self.programs.trained.append(self.program)

    def inference(self, gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a forward without a backward."""
        static = _static_inputs()
        for position, node in enumerate(placeholders(gm)):
            self.roles[node.name] = Role.WEIGHT if position in static else Role.INPUT
        run = self._program(gm, Leg.FORWARD, "inference", None)
        if isinstance(self.program, Program):
            self.programs.note_inference(self.program, len(placeholders(gm)))
        return run

    def _program(self, gm: GraphModule, leg: Leg, name: str, num_results: int | None) -> Callable[..., Any]:
        given = [Given(self.roles.get(node.name, Role.INPUT)) for node in placeholders(gm)]

        is_frozen = self.options.frozen_weights and name == "inference"
        written = written_arguments(len(given)) if name == "inference" else {}
        recipe = Recipe(f"{self.name}.{name}", leg, given, self.options, self.target, num_results, is_frozen, written)
        if has_unknown_sizes(gm):
            self.program = AnySize(gm, recipe)
        else:
            with alone(), seldom_collected():
                self.program = recipe.program(gm, is_dynamic=False)
        return _boxed(self.program.run)


def _static_inputs() -> frozenset[int]:
    """Return the positions of parameters, and of other tensors that modules hold, as Dynamo found them.

    AOT autograd detaches inputs: of models that Dynamo captured none is a parameter by its type.
    """
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    return frozenset(metadata.static_input_indices if metadata is not None else ())


def _keep_what_is_saved() -> None:
    """Tell AOT autograd that backwards overwrite nothing that was saved for them, so that they may run twice."""
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


def _boxed(run: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
    """Return a callable that AOT autograd hands its arguments in a list, which it empties."""

    def call(arguments: list[Any]) -> list[Any]:
        return run(arguments)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call
