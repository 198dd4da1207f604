"""Operators that run Python functions as bodies: a choice, and a loop whose number of trips is known.

For capture by running, which Dynamo does not see. A body may use tensors from around it; they become operands, and so
does what it is given: writing into any of these changes the body's own copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch._C import DispatchKey
from torch._higher_order_ops.utils import reenter_make_fx, register_fake, unique_graph_id
from torch._ops import HigherOrderOperator
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.proxy_tensor import (
    ProxyTorchDispatchMode,
    disable_proxy_modes_tracing,
    track_tensor_tree,
)
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils import _pytree as pytree

from torchipu.errors import CaptureError

Body = Callable[..., Any]


class WithBodies(HigherOrderOperator):
    """An operator with bodies.

    Args:
        name: Its name.
        hands_on: Whether its head goes into the bodies, before the operands.
    """

    def __init__(self, name: str, hands_on: bool) -> None:
        super().__init__(name)
        self.hands_on = hands_on
        self.py_impl(DispatchKey.CompositeExplicitAutograd)(self._run)
        self.py_impl(ProxyTorchDispatchMode)(self._trace)
        self.py_functionalize_impl(self._functionalise)
        self.py_autograd_impl(self._below_autograd)
        register_fake(self)(self._pretend)

    def __call__(
        self, bodies: Sequence[Body], trips: int, head: Sequence[torch.Tensor], operands: Sequence[torch.Tensor],
    ) -> list[torch.Tensor]:
        """Run the bodies.

        Args:
            bodies: What runs; each returns a list of tensors.
            trips: How often a loop does.
            head: The condition, or what a loop carries.
            operands: What the bodies read beside it.
        """
        result: list[torch.Tensor] = super().__call__(bodies, trips, head, operands)
        return result

    def given(self, head: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        """Return what a body is given."""
        return [*(head if self.hands_on else ()), *operands]

    def _run(
        self, bodies: Sequence[Body], trips: int, head: Sequence[torch.Tensor], operands: Sequence[torch.Tensor],
    ) -> list[torch.Tensor]:
        if not self.hands_on:
            return list(bodies[0 if bool(head[0]) else 1](*operands))
        carried = list(head)
        for _ in range(trips):
            carried = list(bodies[0](*carried, *operands))
        return carried

    def _pretend(
        self, bodies: Sequence[Body], trips: int, head: Sequence[torch.Tensor], operands: Sequence[torch.Tensor],
    ) -> list[torch.Tensor]:
        return fresh(bodies[0](*self.given(head, operands)))

    def _functionalise(
        self, context: Any, bodies: Sequence[Body], trips: int, head: Sequence[torch.Tensor],
        operands: Sequence[torch.Tensor],
    ) -> Any:
        plain_head, plain_operands = context.unwrap_tensors(tuple(head)), context.unwrap_tensors(tuple(operands))
        pure = tuple(context.functionalize(body) for body in bodies)
        with context.redispatch_to_next():
            return context.wrap_tensors(self(pure, trips, plain_head, plain_operands))

    def _trace(
        self, mode: Any, bodies: Sequence[Body], trips: int, head: Sequence[torch.Tensor],
        operands: Sequence[torch.Tensor],
    ) -> Any:
        graphs = tuple(reenter_make_fx(body)(*self.given(head, operands)) for body in bodies)
        for graph in graphs:
            _, name = unique_graph_id(mode, prefix=f"{self._name}_body")
            mode.tracer.root.register_module(name, graph)
        arguments = pytree.tree_map(mode.tracer.unwrap_proxy, (graphs, trips, tuple(head), tuple(operands)))
        proxy = mode.tracer.create_proxy("call_function", self, arguments, {}, name=self._name)
        with disable_proxy_modes_tracing():
            results = self._pretend(bodies, trips, head, operands)
        return track_tensor_tree(results, proxy, constant=None, tracer=mode.tracer)

    def _below_autograd(
        self, bodies: Sequence[Body], trips: int, head: Sequence[torch.Tensor], operands: Sequence[torch.Tensor],
    ) -> list[torch.Tensor]:
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*head, *operands)):
            raise CaptureError(
                f"{self._name} has no gradient", remedy="call it under torch.no_grad(), or use torch.cond or scan",
            )
        with torch._C._AutoDispatchBelowAutograd():
            return self(bodies, trips, head, operands)


def fresh(results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors like these that share memory with nothing."""
    return [torch.empty_like(result, memory_format=torch.contiguous_format) for result in results]


choose = WithBodies("ipu_choose", hands_on=False)
"""``choose((then, otherwise), 0, [condition], operands)``."""
repeat = WithBodies("ipu_repeat", hands_on=True)
"""``repeat((body,), trips, carried, operands)``; the body returns the next values of what is carried."""


# ---------------------------------------------------------------------- what a body takes from around it
class _Surroundings(TorchFunctionMode):
    """Puts copies in the place of tensors that a body takes from around it.

    Args:
        known: Copies by the id of the tensor; those of further ones are made where ``grows``.
        grows: Whether tensors that nobody knows yet may come.
        own: Tensors of the body itself.
    """

    def __init__(self, known: dict[int, torch.Tensor], grows: bool, own: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.known, self.grows = known, grows
        self.kept: list[torch.Tensor] = []  # so that no id is given to another
        self.own: set[int] = set()
        self.taken: list[torch.Tensor] = []
        self.adopt(own)

    def adopt(self, tensors: Iterable[Any]) -> None:
        """Take tensors for those of the body itself."""
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                self.own.add(id(tensor))
                self.kept.append(tensor)

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        args, kwargs = pytree.tree_map_only(torch.Tensor, self.within, (args, kwargs or {}))
        result = function(*args, **kwargs)
        self.adopt(pytree.tree_leaves(result))
        return result

    def within(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what stands for a tensor in the body."""
        if id(tensor) in self.own:
            return tensor
        found = self.known.get(id(tensor))
        if found is None and self.grows:
            self.taken.append(tensor)
            self.kept.append(tensor)
            found = self.known[id(tensor)] = tensor.detach().clone()
            self.adopt([found])
        return tensor if found is None else found


def surroundings(body: Body, inputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Run a body to no effect.

    Args:
        body: A function of tensors that returns a list of tensors.
        inputs: What it is given.

    Returns:
        The tensors from around it that it uses, in the order of their first use, and what it returned.
    """
    with disable_proxy_modes_tracing():
        copies = [tensor.detach().clone() for tensor in inputs]
        mode = _Surroundings({}, True, copies)
        with mode:
            results = body(*copies)
        return mode.taken, [mode.within(result) for result in results]


def as_operands(taken: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors from around a body as operands; those that the model does not own become constants here."""
    return [tensor if isinstance(tensor, FunctionalTensor) else tensor.detach() for tensor in taken]


def closed(body: Body, num_inputs: int, taken: Sequence[torch.Tensor]) -> Body:
    """Return a body that is given what it takes from around it behind its inputs.

    Args:
        body: The body.
        num_inputs: How many inputs it has.
        taken: Tensors from around it, as `surroundings` returns them.
    """
    modes = _get_current_function_mode_stack()

    def run(*given: torch.Tensor) -> list[torch.Tensor]:
        inputs, lifted = given[:num_inputs], given[num_inputs:]
        known = {id(outer): inner for outer, inner in zip(taken, lifted, strict=True)}
        mode = _Surroundings(known, False, given)
        for around in modes:
            if isinstance(around, _Surroundings):
                around.adopt(given)
        with _entered(modes), mode:
            return [mode.within(result) for result in body(*inputs)]

    return run


@contextlib.contextmanager
def _entered(modes: Sequence[TorchFunctionMode]) -> Iterator[None]:
    """Let function modes see the calls within: torch takes them away while it calls an operator."""
    active = {id(mode) for mode in _get_current_function_mode_stack()}
    with contextlib.ExitStack() as stack:
        for mode in modes:
            if id(mode) not in active:
                stack.enter_context(mode)
        yield
