"""`torch.autograd.functional` by the transforms of `torch.func`, which Dynamo traces into the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import functional

Inputs = Tensor | tuple[Tensor, ...]
Vectors = Tensor | tuple[Tensor, ...] | None


def jacobian(
    func: Callable[..., Any], inputs: Inputs, create_graph: bool = False, strict: bool = False, vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """`torch.autograd.functional.jacobian`."""
    _refuse_strict(strict)
    given, places = _given(inputs)
    return _kept(torch.func.jacrev(func, argnums=places)(*given), create_graph)


def hessian(
    func: Callable[..., Any], inputs: Inputs, create_graph: bool = False, strict: bool = False, vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """`torch.autograd.functional.hessian`."""
    _refuse_strict(strict)
    given, places = _given(inputs)
    scalar = _scalar(func)
    return _kept(torch.func.jacrev(torch.func.jacrev(scalar, argnums=places), argnums=places)(*given), create_graph)


def vjp(
    func: Callable[..., Any], inputs: Inputs, v: Vectors = None, create_graph: bool = False, strict: bool = False,
) -> tuple[Any, Any]:
    """`torch.autograd.functional.vjp`."""
    _refuse_strict(strict)
    given, places = _given(inputs)
    outputs, pull = _pulled(func, given)
    if v is None:
        if not isinstance(outputs, Tensor) or outputs.numel() != 1:
            raise RuntimeError("The vector v can only be None if the function returns one tensor of one element.")
        v = torch.ones_like(outputs)
    found = pull(v)
    return _kept(outputs, create_graph), _kept(found if isinstance(places, tuple) else found[0], create_graph)


def jvp(
    func: Callable[..., Any], inputs: Inputs, v: Vectors = None, create_graph: bool = False, strict: bool = False,
) -> tuple[Any, Any]:
    """`torch.autograd.functional.jvp`."""
    _refuse_strict(strict)
    given, _ = _given(inputs)
    outputs, found = torch.func.jvp(func, given, _vectors(v, given))[:2]
    return _kept(outputs, create_graph), _kept(found, create_graph)


def hvp(
    func: Callable[..., Any], inputs: Inputs, v: Vectors = None, create_graph: bool = False, strict: bool = False,
) -> tuple[Any, Any]:
    """`torch.autograd.functional.hvp`, and `vhp`: a Hessian is symmetric."""
    _refuse_strict(strict)
    given, places = _given(inputs)
    scalar = _scalar(func)
    _, pull = _pulled(torch.func.grad(scalar, argnums=places), given)
    vectors = _vectors(v, given)
    found = pull(vectors if isinstance(places, tuple) else vectors[0])
    return _kept(func(*given), create_graph), _kept(found if isinstance(places, tuple) else found[0], create_graph)


def _refuse_strict(strict: bool) -> None:
    if strict:  # left to eager where the graph may break
        raise RuntimeError("torch.autograd.functional with strict=True looks at values of a run: take strict=False")


def _given(inputs: Inputs) -> tuple[tuple[Tensor, ...], int | tuple[int, ...]]:
    """Return inputs as arguments, and by which of them to differentiate."""
    return (inputs, tuple(range(len(inputs)))) if isinstance(inputs, tuple) else ((inputs,), 0)


def _pulled(func: Callable[..., Any], given: tuple[Tensor, ...]) -> tuple[Any, Callable[..., tuple[Tensor, ...]]]:
    """Return what a function gives, and what multiplies its Jacobian by a vector from the left."""
    outputs, pull = torch.func.vjp(func, *given)[:2]
    return outputs, pull


def _vectors(v: Vectors, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    if v is not None:
        return v if isinstance(v, tuple) else (v,)
    if len(given) != 1 or given[0].numel() != 1:
        raise RuntimeError("The vector v can only be None if the input to the function is one tensor of one element.")
    return (torch.ones_like(given[0]),)


def _scalar(func: Callable[..., Any]) -> Callable[..., Tensor]:
    """Return a function of no dimensions: `torch.func` takes no gradient of one element in a vector."""
    def scalar(*given: Tensor) -> Tensor:
        found: Tensor = func(*given)
        if found.numel() != 1:
            raise RuntimeError(f"The function must return one element, and returns one of shape {list(found.shape)}")
        return found.reshape(())

    return scalar


def _kept(found: Any, create_graph: bool) -> Any:
    """Return results with their gradients, or without."""
    if create_graph:
        return found
    return tuple([_kept(one, False) for one in found]) if isinstance(found, tuple) else found.detach()


TRACED: Mapping[Callable[..., Any], Callable[..., Any]] = {
    functional.jacobian: jacobian, functional.hessian: hessian, functional.vjp: vjp, functional.jvp: jvp,
    functional.hvp: hvp, functional.vhp: hvp,
}
"""Functions of torch that call what they are given, and what Dynamo traces."""
