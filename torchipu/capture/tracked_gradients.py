"""Which gradients automatic loss scaling looks at: of a kind, or of tensors and modules that the user names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torchipu.errors import OptionsError, nearest
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType, Leg
from torchipu.optable.spec import spec_of
from torchipu.passes.precision import WITH_PARTIALS

SHOWN = 12
"""Names that an error lists."""


def of_kind(graph: Graph, gradients: Iterable[Tensor], which: str) -> tuple[Tensor, ...]:
    """Return the gradients of a kind: halves, and floats where there are none.

    Args:
        graph: As captured.
        gradients: Those of the parameters.
        which: ``weights`` for these, ``all`` for every result of the backward leg that is no view of another,
            ``products`` for those of products and convolutions.
    """
    chosen = list(gradients)
    if which != "weights":
        ops = [op for op in _backward_ops(graph) if which == "all" or op.kind.startswith(WITH_PARTIALS)]
        chosen = _floating(ops)
    return _halves_first(chosen)


def of_names(
    graph: Graph, gradients: Mapping[str, Tensor], names: Sequence[str],
    others: Mapping[str, Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """Return the gradients of what is named: halves, and floats where there are none.

    Args:
        graph: As captured.
        gradients: Gradient of each parameter by its name.
        names: Each a parameter, for its gradient; a module, for every gradient that its backward computes; a tensor of
            the graph: of the backward leg for itself, of the forward leg for the gradients of its shape that the
            backward of its line reads.
        others: Tensors of the graph by further names.

    Raises:
        OptionsError: There is nothing of a name, or no gradient of it.
    """
    tensors = {tensor.name: tensor for op in graph.ops for tensor in op.outputs}
    tensors |= {tensor.name: tensor for tensor in graph.inputs} | dict(others or {})
    modules: dict[str, list[Op]] = {}
    for op in _backward_ops(graph):
        parts = op.source.module.split(".") if op.source.module else []
        for end in range(1, len(parts) + 1):
            modules.setdefault(".".join(parts[:end]), []).append(op)
    chosen: list[Tensor] = []
    for name in names:
        if name in gradients:
            found = [gradients[name]]
        elif name in tensors:
            found = _gradients_of(graph, tensors[name])
        else:
            found = _floating(modules.get(name, ()))
        if not found:
            raise _unknown(name, [*gradients, *modules, *tensors], is_known=name in tensors)
        chosen += found
    return _halves_first(chosen)


def _unknown(name: str, known: Sequence[str], *, is_known: bool) -> OptionsError:
    why = "which has no gradient" if is_known else f"which the model does not have{nearest(name, known)}"
    shown = ", ".join(known[:SHOWN]) + (f" and {len(known) - SHOWN} more" if len(known) > SHOWN else "")
    return OptionsError(
        f"loss_scale_tensors names {name!r}, {why}", option="loss_scale_tensors", value=name, allowed=shown,
        remedy="name parameters or modules as in model.named_parameters() and model.named_modules(), or tensors as in "
        "torchipu.statistics()",
    )


def _gradients_of(graph: Graph, tensor: Tensor) -> list[Tensor]:
    """Return a gradient itself, or the gradients that reach what the forward has computed."""
    made = next((op for op in graph.ops if tensor in op.outputs), None)
    if made is None:
        return []
    if made.leg is Leg.BACKWARD:
        return [tensor] if tensor.dtype.is_floating else []
    computed = {result for op in graph.ops if op.leg is Leg.BACKWARD for result in op.outputs}
    reading = [op for op in graph.ops if op.leg is Leg.BACKWARD and op.source == made.source]
    return [
        operand for op in reading for operand in op.inputs
        if operand in computed and operand.shape == tensor.shape and operand.dtype is tensor.dtype
    ]


def _backward_ops(graph: Graph) -> list[Op]:
    """Return the ops of the backward leg that compute, in their order."""
    return [op for op in graph.ops if op.leg is Leg.BACKWARD and not _is_view(op)]


def _is_view(op: Op) -> bool:
    spec = spec_of(op)
    return spec is not None and spec.is_view


def _floating(ops: Iterable[Op]) -> list[Tensor]:
    return [result for op in ops for result in op.outputs if result.dtype.is_floating]


def _halves_first(chosen: Iterable[Tensor]) -> tuple[Tensor, ...]:
    once = tuple(dict.fromkeys(chosen))
    return tuple(tensor for tensor in once if tensor.dtype is DType.HALF) or once
