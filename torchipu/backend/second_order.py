"""Gradients of gradients through a compiled function: AOT autograd has none, which is said in words of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from torchipu.errors import CaptureError

REMEDY = (
    "take the inner gradient within the compiled function, by torch.func.grad or torch.func.hessian, or let "
    "torchipu.TrainStep run a model whose loss holds torch.autograd.grad(..., create_graph=True)"
)


def differentiable_once(run: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a compiled function whose gradients raise an error of ours where they are differentiated themselves.

    Args:
        run: What AOT autograd has made of a graph.
        name: Of the graph, for the message.
    """

    def call(*arguments: Any) -> Any:
        asking = _asking(arguments) if torch.is_grad_enabled() else []
        results = run(*arguments)
        node = function_node(results)
        if node is None:
            return results
        # What the call wrote into comes from the node now, which would keep itself alive.
        inputs = [value for value, made_by in asking if value.grad_fn is made_by]

        def refuse(gradients: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[Any, ...] | None:
            # Without create_graph nobody asks for the gradients of gradients.
            return _marked(gradients, inputs, name) if torch.is_grad_enabled() else None

        node.register_hook(refuse)  # one for all results
        return results

    return call


def refuse_tangents(arguments: Sequence[Any], name: str) -> None:
    """Raise where an argument has a derivative in forward mode, which the results of a program would be without.

    Args:
        arguments: Of a call.
        name: Of the graph, for the message.

    Raises:
        CaptureError: One has.
    """
    if forward_ad._current_level < 0 or torch._C._are_functorch_transforms_active():
        return
    tensors = (value for value in arguments if isinstance(value, torch.Tensor))
    if any(forward_ad.unpack_dual(value).tangent is not None for value in tensors):
        raise CaptureError(
            f"{name}: it is given a tensor with a tangent (torch.autograd.forward_ad); programs compute none",
            remedy="take the derivative within the compiled function, by torch.func.jvp",
        )


def _asking(arguments: Sequence[Any]) -> list[tuple[torch.Tensor, Any]]:
    """Return the arguments that need a gradient, each with the node that it came from."""
    return [
        (value, value.grad_fn) for value in arguments if isinstance(value, torch.Tensor) and value.requires_grad
    ]


def function_node(results: Any) -> Any:
    """Return the node that an autograd function has left in the graph of its results; None if there is none."""
    values = results if isinstance(results, (list, tuple)) else (results,)
    nodes = (value.grad_fn for value in values if isinstance(value, torch.Tensor))
    return next((node for node in nodes if node is not None and hasattr(node, "_forward_cls")), None)


def once(gradients: Sequence[torch.Tensor | None], inputs: Sequence[Any], name: str) -> tuple[torch.Tensor | None, ...]:
    """Return gradients for ``create_graph``, which raise an error of ours where they are differentiated themselves.

    Args:
        gradients: As a program returned them.
        inputs: Of the graph. Torch asks for no gradient of what does not depend on that by which it is asked for.
        name: Of the graph, for the message.
    """
    fresh = [None if gradient is None else gradient.detach().requires_grad_() for gradient in gradients]
    return _marked(fresh, inputs, name)


# Dynamo looks at what torch calls while a function that broke its graph runs in eager, and would drop the mark.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def _marked(
    gradients: Sequence[torch.Tensor | None], inputs: Sequence[Any], name: str,
) -> tuple[torch.Tensor | None, ...]:
    by = [value for value, _ in _asking(inputs)]
    return tuple([None if gradient is None else _Once.apply(gradient, name, *by) for gradient in gradients])


class _Once(torch.autograd.Function):
    """A gradient that has none."""

    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor, name: str, *by: torch.Tensor) -> torch.Tensor:
        """Return the gradient."""
        ctx.name = name
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Raise.

        Raises:
            CaptureError: Always.
        """
        raise CaptureError(
            f"{ctx.name}: a gradient of its gradient is asked for (backward through torch.autograd.grad(..., "
            "create_graph=True), or backward(create_graph=True)); torch's AOT autograd makes first gradients alone",
            remedy=REMEDY,
        )
