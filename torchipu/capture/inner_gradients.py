"""Gradients that a forward takes of itself: penalties on gradients, forces, derivatives within a loss."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.exc import unimplemented
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.tensor import TensorVariable
from torch.fx import Node

from torchipu.capture import leaves
from torchipu.capture.process_wide import replaced

_TRACES = "trace_autograd_ops"
_CHECK = "_check_requires_grad_intermediate_outputs"
_CONSUMED = "_validate_outputs_safe_for_autograd_nodes"


def register() -> None:
    """Let Dynamo trace ``torch.autograd.grad`` of compiled functions, in whatever thread.

    What needs a gradient that AOT autograd does not give leads to a break of the graph still. Releases of torch that do
    not trace ``torch.autograd.grad`` have neither setting nor check.
    """
    entry = torch._dynamo.config._config.get(_TRACES)  # type: ignore[attr-defined]
    if entry is None or entry.default:
        return
    entry.default = True
    setattr(torch._dynamo.config, _TRACES, True)
    if hasattr(OutputGraph, _CHECK):
        setattr(OutputGraph, _CHECK, _narrowed(getattr(OutputGraph, _CHECK)))
        leaves.register()
    if hasattr(OutputGraph, _CONSUMED):
        setattr(OutputGraph, _CONSUMED, _retaining)
    TensorVariable.method_backward = _with_its_graph(TensorVariable.method_backward)  # type: ignore[method-assign]


@contextlib.contextmanager
def inner_gradients() -> Iterator[None]:
    """Let a step differentiate by whatever forward calls ``requires_grad_`` on, an argument too.

    Who runs a step asks for gradients of parameters alone, and leaves the caller's tensors as they are.
    """
    with contextlib.ExitStack() as stack:
        if _TRACES in torch._dynamo.config._config:  # type: ignore[attr-defined]
            stack.enter_context(torch._dynamo.config.patch({_TRACES: True}))
        if hasattr(OutputGraph, _CHECK):
            stack.enter_context(replaced(OutputGraph, _CHECK, _unchecked))
            stack.enter_context(replaced(TensorVariable, "method_requires_grad_", leaves.of_arguments_too))
        yield


def _unchecked(*arguments: object) -> None:
    """Pass what Dynamo is about to hand back."""


# ---------------------------------------------------------------------- what is handed back
def _narrowed(plain: Callable[..., None]) -> Callable[..., None]:
    """Return Dynamo's check of what it hands back, for those graphs alone of which AOT autograd loses something.

    Dynamo hands back nothing that was made from a value on which ``requires_grad_`` was called. AOT autograd gives all
    of it, and its gradients by what the graph is given. It cannot give a gradient by the value itself, which nobody can
    ask for who does not have that; and it marks nothing as having a gradient where the graph is given nothing that has.
    """

    def check(graph: Any, results: list[VariableTracker], tx: Any) -> None:
        made = [_value(one) for one in graph.leaf_var_creation_order if not one.source]
        returned = [value for one in results if (value := _value(one)) is not None and value.requires_grad]
        leaves_itself = any(
            value is leaf or value._base is leaf for value in returned for leaf in made if leaf is not None
        )
        if leaves_itself or not any(_needs_gradient(node) for node in graph.graph.nodes):
            plain(graph, results, tx)

    return check


def _value(variable: VariableTracker) -> Tensor | None:
    return variable.as_proxy().node.meta.get("example_value") if isinstance(variable, TensorVariable) else None


def _needs_gradient(node: Node) -> bool:
    value = node.meta.get("example_value")
    return node.op == "placeholder" and isinstance(value, Tensor) and value.requires_grad


def _retaining(graph: Any, results: object, tx: object) -> None:
    """Keep what ``torch.autograd.grad`` would free, for the gradients of what is handed back.

    Where eager raises that a graph was freed, which it does when someone asks for those, there is a gradient then.
    """
    if not graph.autograd_grad_consumed_grad_fns:
        return
    for node in graph.graph.nodes:
        if node.target is not torch.autograd.grad:
            continue
        if len(node.args) > 3:
            node.args = (*node.args[:3], True, *node.args[4:])
        else:
            node.kwargs = {**node.kwargs, "retain_graph": True}


def _with_its_graph(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return what traces ``backward``, and leaves to eager one whose gradients have gradients: Dynamo drops those."""

    def method_backward(
        self: TensorVariable, tx: Any, gradient: Any = None, retain_graph: Any = None, create_graph: Any = None,
        inputs: Any = None,
    ) -> Any:
        if create_graph is not None and not create_graph.is_constant_match(None, False):
            unimplemented(
                gb_type="backward(create_graph=True)", context=f"call_method {self} backward",
                explanation="A gradient in .grad that has a gradient itself is not part of a graph.",
                hints=["Take it by torch.autograd.grad(..., create_graph=True)."],
            )
        return plain(self, tx, gradient, retain_graph, create_graph, inputs)

    return method_backward
