"""What is checked of overlapped transfers when a model is compiled."""

from __future__ import annotations

from torchipu.capture.captured import Captured
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import Role
from torchipu.poptorch.enums import OutputMode, OverlapMode
from torchipu.poptorch.operators.overlap import INPUT, OUTPUT
from torchipu.poptorch.options import Options
from torchipu.poptorch.options.strategies import PipelinedExecution
from torchipu.poptorch.poptorch_core import createPoptorchError
from torchipu.poptorch.tracing.traced_model import TracedModel


def check_overlaps(captured: Captured, traced: TracedModel, options: Options, num_ipus: int) -> None:
    """Refuse marks on other tensors than inputs and results, and options under which nothing can overlap.

    Args:
        captured: The capture.
        traced: What was captured.
        options: The executor's.
        num_ipus: IPUs of a replica.

    Raises:
        Error: There is such a mark, or such an option.
    """
    marks = [op for op in captured.graph.ops if op.target == "torchipu.overlap.default"]
    readers: dict[Tensor, list[Op]] = {}
    for op in captured.graph.ops:
        for operand in set(op.inputs):
            readers.setdefault(operand, []).append(op)
    for op in marks:
        if op.attrs["transfer"] == "input":
            _check_input(op, readers, captured.graph)
        else:
            _check_output(op, readers, captured, traced)
    if any(op.attrs["mode"] != OverlapMode.NoOverlap.value for op in marks):
        _check_options(options, num_ipus)


def _check_input(op: Op, readers: dict[Tensor, list[Op]], graph: Graph) -> None:
    (marked,) = op.inputs
    if marked.role is not Role.INPUT:
        raise createPoptorchError(
            f"poptorch.{INPUT} applied on a node which is not a tensor input to the model.{_line(op)}"
        )
    if len(readers[marked]) > 1 or marked in graph.outputs:
        raise createPoptorchError(f"poptorch.{INPUT} must be the only op applied to an input.{_line(op)}")


def _check_output(op: Op, readers: dict[Tensor, list[Op]], captured: Captured, traced: TracedModel) -> None:
    returned = captured.graph.outputs
    results = [tensor for tensor in op.outputs if tensor in returned]
    for reader in readers.get(op.outputs[0], []):
        copies = [tensor for tensor in reader.outputs if tensor in returned]
        if reader.target != "aten.clone.default" or not copies:
            results = []
            break
        results += copies
    if not results:
        raise createPoptorchError(
            f"poptorch.{OUTPUT} applied on a node which is not a tensor output to the model.{_line(op)}"
        )
    places = [place for place, leaf in enumerate(captured.leaves) if leaf in results]
    if sum(traced.members.count(place) for place in places) > 1 or len(readers[op.inputs[0]]) > 1 and any(
        other.target == "torchipu.overlap.default" and other is not op for other in readers[op.inputs[0]]
    ):
        raise createPoptorchError(f"poptorch.{OUTPUT} cannot be used with a tensor that is returned twice.{_line(op)}")


def _line(op: Op) -> str:
    return f" ({op.source.file}:{op.source.line})" if op.source.file else ""


def _check_options(options: Options, num_ipus: int) -> None:
    if not options.TensorLocations.exists("numIOTiles"):
        raise createPoptorchError(
            "No IO tiles allocated. You must allocate at least 32 IO tiles using "
            "poptorch.Options().TensorLocations.numIOTiles to use overlapped IO."
        )
    if num_ipus > 1 and isinstance(options._execution_strategy, PipelinedExecution):
        raise createPoptorchError(
            "Overlapped IO is not supported with poptorch.PipelinedExecution. Use one IPU, or "
            "poptorch.ShardedExecution."
        )
    if options.output_mode not in (OutputMode.All, OutputMode.Sum):
        raise createPoptorchError(
            "Unsupported output mode for overlapped IO: use poptorch.OutputMode.All or poptorch.OutputMode.Sum."
        )
