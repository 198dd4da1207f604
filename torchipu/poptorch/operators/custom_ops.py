"""`custom_op`: ops that a program brings along, and `registerCustomOp`, which says what they compute here.

PopTorch loads such ops from native libraries for the device. Here a Python function stands in their place: one written
with torch's operators becomes a part of the program, with its cost and its gradient; one that does anything else runs
on the host in the middle of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchipu.capture.host_calls import call_host, register_host_function
from torchipu.poptorch.capturing import isRunningOnIpu
from torchipu.poptorch.poptorch_core import createPoptorchError

Function = Callable[..., Any]
FLOAT_MAX = torch.finfo(torch.float32).max


@dataclass(frozen=True, slots=True)
class _CustomOp:
    """What a custom op computes.

    Attributes:
        name: ``domain.name:version``.
        forward: From inputs and attributes to outputs.
        gradient: From gradients of the outputs, inputs, outputs and attributes to gradients of the inputs; or None.
        on_host: Whether both run on the host.
    """

    name: str
    forward: Function
    gradient: Function | None
    on_host: bool


def _gathered(inputs: Sequence[torch.Tensor], attributes: Mapping[str, Any]) -> torch.Tensor:
    """Return elements of the first tensor's last dimension by the numbers in the second."""
    values, places = inputs
    if attributes.get("axis", -1) not in (-1, values.dim() - 1):
        raise createPoptorchError(f"FastGatherLastDim gathers along the last dimension, not axis={attributes['axis']}")
    return torch.gather(values, -1, places.long())


OF_POPTORCH = {
    ("poptorch.custom_ops", "FastGatherLastDim", 1):
        _CustomOp("poptorch.custom_ops.FastGatherLastDim:1", _gathered, gradient=None, on_host=False),
}
"""Custom ops that PopTorch itself brings along; optimum-graphcore's DeBERTa asks for them by name."""
_OPS: dict[tuple[str, str, int], _CustomOp] = dict(OF_POPTORCH)


def registerCustomOp(
    name: str, domain: str, domain_version: int, forward: Function, gradient: Function | None = None, *,
    on_host: bool = False,
) -> None:
    """Say what a custom op computes; a later call replaces an earlier one. PopTorch has no such function.

    Args:
        name: Name of the op.
        domain: Its domain.
        domain_version: The domain's version.
        forward: ``forward(inputs, attributes) -> outputs``: a list of tensors and a dictionary, to a tensor or a list.
        gradient: ``gradient(grad_outputs, inputs, outputs, attributes) -> grad_inputs``, None where there is none;
            where it is left out, that of torch's operators in ``forward``.
        on_host: Whether the functions run on the host with the values of the tensors; otherwise they are captured.

    Raises:
        Error: They are no functions.
    """
    if not callable(forward) or not (gradient is None or callable(gradient)):
        raise createPoptorchError("registerCustomOp: forward and gradient must be functions")
    op = _CustomOp(f"{domain}.{name}:{domain_version}", forward, gradient, on_host)
    _OPS[domain, name, domain_version] = op
    if on_host:
        register_host_function(op.name, lambda inputs, attributes: _listed(forward(list(inputs), dict(attributes))))
        register_host_function(_gradient_name(op), lambda given, attributes: _host_gradient(op, given, attributes))


def custom_op(
    inputs: Sequence[torch.Tensor], name: str, domain: str, domain_version: int,
    example_outputs: Sequence[torch.Tensor], attributes: Mapping[str, Any] | None = None,
) -> list[torch.Tensor]:
    """Compute an op that the program brings along; see `registerCustomOp`.

    Without a wrapper an op that is not registered gives zeros.

    Args:
        inputs: What it is given.
        name: Name of the op.
        domain: Its domain.
        domain_version: The domain's version.
        example_outputs: Tensors with the shapes and types of its results; inputs may be among them.
        attributes: Numbers, texts, or lists of numbers or of texts, by name.

    Raises:
        ValueError: An attribute is something else.
        Error: A number does not fit, the op is unknown, or its results are not like the examples.
    """
    inputs, attributes = list(inputs), dict(attributes or {})
    _check_attributes(attributes)
    found = _OPS.get((domain, name, domain_version))
    if found is None:
        if isRunningOnIpu():
            raise createPoptorchError(_how_to_give(name, domain, domain_version, inputs, attributes, example_outputs))
        return [torch.zeros_like(example) for example in example_outputs]
    results = _apply(found, inputs, attributes, list(example_outputs))
    given, expected = ([(list(t.shape), t.dtype) for t in tensors] for tensors in (results, example_outputs))
    if given != expected:
        raise createPoptorchError(
            f"The custom op {found.name} returned {_told(given)} where its example_outputs are {_told(expected)}."
        )
    return results


def _how_to_give(
    name: str, domain: str, version: int, inputs: Sequence[torch.Tensor], attributes: Mapping[str, Any],
    example_outputs: Sequence[torch.Tensor],
) -> str:
    """Return what to do about an op that is not registered, with the call that would register this one."""
    unpacked = "".join(f"{letter}, " for letter in _letters(len(inputs))).removesuffix(" ") if inputs else "*_"
    values = "".join(f", attributes[{key!r}]" for key in attributes)
    results = ", ".join(str(list(example.shape)) for example in example_outputs)
    return (
        f"No custom op {name!r} of domain {domain!r}, version {version}, is registered. A shared library of the "
        "program's own (ctypes.cdll.LoadLibrary) holds the op for the machine alone: what it computes is not known "
        "here. Give the same op in torch, before the model is compiled, and take the loading of the library out:\n"
        f"  def forward(inputs, attributes):\n"
        f"      {unpacked} = inputs{'  # and' + values.removeprefix(',') if values else ''}\n"
        f"      return [...]  # tensors of shape {results}, computed by operators of torch\n"
        f"  poptorch.registerCustomOp({name!r}, {domain!r}, {version}, forward)\n"
        "Its gradient is that of torch's operators, unless a function of its own is given as gradient=; on_host=True "
        "calls any Python function, numpy among it. Codelets in C++ (vertex sources, or .gp files of popc) are out of "
        "scope."
    )


def _letters(count: int) -> list[str]:
    return [f"x{number}" for number in range(count)] if count > 3 else ["x", "y", "z"][:count]


def _apply(
    op: _CustomOp, inputs: list[torch.Tensor], attributes: dict[str, Any], like: list[torch.Tensor],
) -> list[torch.Tensor]:
    if op.gradient is None and not op.on_host:
        return _listed(op.forward(inputs, attributes))
    return list(_WithGradient.apply(op, attributes, like, *inputs))


class _WithGradient(torch.autograd.Function):
    """A custom op whose gradient does not come from torch."""

    @staticmethod
    def forward(
        context: Any, op: _CustomOp, attributes: dict[str, Any], like: list[torch.Tensor], *inputs: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Compute the results."""
        if op.on_host and isRunningOnIpu():
            outputs = call_host(op.name, inputs, attributes, like)
        else:
            outputs = _listed(op.forward(list(inputs), attributes))
        # A result may not be an input: autograd would take it for a view.
        outputs = [result.clone() if any(result is value for value in inputs) else result for result in outputs]
        context.op, context.attributes, context.num_inputs = op, attributes, len(inputs)
        context.save_for_backward(*inputs, *outputs)
        return tuple(outputs)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        """Compute the gradients of the inputs."""
        op, saved = context.op, context.saved_tensors
        inputs, outputs = list(saved[: context.num_inputs]), list(saved[context.num_inputs :])
        if op.gradient is None:
            raise createPoptorchError(
                f"The custom op {op.name} has no gradient. Register it with one, or detach its inputs."
            )
        if op.on_host and isRunningOnIpu():
            names = {**context.attributes, "__num_outputs": len(outputs)}
            found: Any = call_host(_gradient_name(op), [*gradients, *inputs, *outputs], names, inputs)
        else:
            found = _listed(op.gradient(list(gradients), inputs, outputs, context.attributes))
        return (None, None, None, *found)


def _host_gradient(op: _CustomOp, given: Sequence[torch.Tensor], attributes: Mapping[str, Any]) -> list[torch.Tensor]:
    """Call a gradient on the host; an input that has none is given zeros."""
    assert op.gradient is not None
    named = dict(attributes)
    num_outputs = named.pop("__num_outputs")
    inputs = list(given[num_outputs : len(given) - num_outputs])
    outputs = list(given[len(given) - num_outputs :])
    found = _listed(op.gradient(list(given[:num_outputs]), inputs, outputs, named))
    return [torch.zeros_like(value) if one is None else one for one, value in zip(found, inputs, strict=True)]


def _gradient_name(op: _CustomOp) -> str:
    return f"{op.name}#gradient"


def _listed(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _told(tensors: Sequence[tuple[list[int], torch.dtype]]) -> str:
    return ", ".join(f"{shape} of {dtype}" for shape, dtype in tensors)


# ---------------------------------------------------------------------- attributes
def _check_attributes(attributes: Mapping[Any, Any]) -> None:
    for name, value in attributes.items():
        if not isinstance(name, str):
            raise ValueError(f"All attribute keys must be strings, but {name!r} is a {type(name).__name__}.")
        _check_ascii(name, name)
        members = list(value) if isinstance(value, (list, tuple)) else [value]
        if not members:
            raise ValueError(f"Attribute {name}: an empty list has no type.")
        for member in members:
            if not isinstance(member, (float, int, str)):
                raise ValueError(
                    f"Attribute {name} must be a float, an int, a str, or a list or tuple of these, not "
                    f"{type(member).__name__}."
                )
            if type(member) is not type(members[0]):
                raise ValueError(f"Attribute {name}: the types of the elements of a list must all be the same.")
            _check_value(name, member)


def _check_value(name: str, value: float | int | str) -> None:
    if isinstance(value, str):
        _check_ascii(name, value)
    elif isinstance(value, float) and abs(value) > FLOAT_MAX and abs(value) != float("inf"):
        which = "high" if value > 0 else "low"
        raise createPoptorchError(f"Attribute {name}: {value} is too {which} for a Popart float.")


def _check_ascii(name: str, text: str) -> None:
    if not text.isascii():
        raise ValueError(f"Attribute {name}: {text!r} contains non-ASCII characters.")
