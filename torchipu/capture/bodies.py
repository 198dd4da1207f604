"""Operators that run Python functions as bodies: a choice, and a loop whose number of trips is known.

For capture by running, which Dynamo does not see. A body may use tensors from around it; they become operands, and so
does what it is given: writing into any of these changes the body's own copy. Only the state of the model, its
parameters and buffers, outlives the body: what is written into it goes from trip to trip, and back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
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
Refusal = Callable[[torch.Tensor], Any]


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
        given = _apart(self.given(head, operands))
        graphs = tuple(reenter_make_fx(body)(*given) for body in bodies)
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


def _apart(given: Sequence[Any]) -> list[Any]:
    """Return operands without one tensor twice: a graph knows its placeholders by it, and a loop changes one alone."""
    seen: set[int] = set()
    apart = []
    for value in given:
        if isinstance(value, torch.Tensor) and id(value) in seen:
            with disable_proxy_modes_tracing():
                value = value.detach()
        seen.add(id(value))
        apart.append(value)
    return apart


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
        roots: Tensors whose views from around the body are taken again of the copy, so that one write is seen in all.
        refuse: Called with a constant that the body writes into; it raises.
    """

    def __init__(
        self, known: dict[int, torch.Tensor], grows: bool, own: Sequence[torch.Tensor],
        roots: Sequence[torch.Tensor] = (), refuse: Refusal | None = None,
    ) -> None:
        super().__init__()
        self.known, self.grows, self.refuse = known, grows, refuse
        self.roots = {_memory_of(root): root for root in roots}
        self.kept: list[torch.Tensor] = []  # so that no id is given to another
        self.own: set[int] = set()
        self.taken: list[torch.Tensor] = []
        self.outer: dict[int, torch.Tensor] = {}
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
        self._watch()
        # After `self.buffer += 1` the name must hold what it held before, not the copy.
        if id(result) in self.outer:
            return self.outer[id(result)]
        self.adopt(pytree.tree_leaves(result))
        return result

    def _watch(self) -> None:
        """Refuse writes into tensors that are constants."""
        if self.refuse is not None:
            for tensor in self.taken:
                if not isinstance(tensor, FunctionalTensor) and _is_written(self.known[id(tensor)]):
                    self.refuse(tensor)

    def within(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what stands for a tensor in the body."""
        if id(tensor) in self.own:
            return tensor
        found = self.known.get(id(tensor))
        if found is None:
            root = self.roots.get(_memory_of(tensor)) if self.roots else None
            if root is not None and root is not tensor:
                found = self._view(tensor, self.within(root), root)
            elif self.grows:
                self.taken.append(tensor)
                found = tensor.detach().clone()
                if not isinstance(found, FunctionalTensor):  # a constant: only so are writes into it seen
                    found = FunctionalTensor.to_functional(found)
            else:
                return tensor
            self.kept.append(tensor)
            self.known[id(tensor)] = found
            self.adopt([found])
        self.outer[id(found)] = tensor
        return found

    @staticmethod
    def _view(tensor: torch.Tensor, copy: torch.Tensor, root: torch.Tensor) -> torch.Tensor:
        return copy.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() - root.storage_offset())


def _memory_of(tensor: torch.Tensor) -> int:
    # Hidden from function modes: a body around would take the tensor for one of its own operands.
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage()._cdata


@dataclass(frozen=True, slots=True)
class Enclosed:
    """What a body does with what is around it.

    Attributes:
        body: The body, a function of tensors that returns a list of tensors.
        num_inputs: How many tensors it is given.
        taken: The tensors from around it that it uses, in the order of their first use.
        results: What it returns, without values.
        written: Those of the state that it writes into.
        roots: Those of the state of which it uses views from around it too, and that it writes into.
    """

    body: Body
    num_inputs: int
    taken: tuple[torch.Tensor, ...]
    results: tuple[torch.Tensor, ...]
    written: tuple[torch.Tensor, ...]
    roots: tuple[torch.Tensor, ...]


def enclosed(
    body: Body, inputs: Sequence[torch.Tensor], state: Sequence[torch.Tensor], refuse: Refusal,
) -> Enclosed:
    """Run a body to no effect, to see what it does with what is around it.

    Args:
        body: A function of tensors that returns a list of tensors.
        inputs: What it is given.
        state: Tensors of the model that outlive a call: parameters and buffers.
        refuse: Called with a constant that the body writes into; it raises.
    """
    mode, results = _tried(body, inputs, (), refuse)
    touched = {_memory_of(tensor) for tensor in mode.taken if _is_written(mode.known[id(tensor)])}
    written = [tensor for tensor in state if _memory_of(tensor) in touched]
    own = {id(tensor) for tensor in written}
    shared = {_memory_of(tensor) for tensor in mode.taken if id(tensor) not in own} & touched
    roots = [tensor for tensor in written if _memory_of(tensor) in shared]
    if roots:
        mode, results = _tried(body, inputs, roots, refuse)
    return Enclosed(body, len(inputs), tuple(mode.taken), tuple(results), tuple(written), tuple(roots))


def _tried(
    body: Body, inputs: Sequence[torch.Tensor], roots: Sequence[torch.Tensor], refuse: Refusal,
) -> tuple[_Surroundings, list[torch.Tensor]]:
    with disable_proxy_modes_tracing():
        copies = [tensor.detach().clone() for tensor in inputs]
        mode = _Surroundings({}, True, copies, roots, refuse)
        with mode:
            results = body(*copies)
        return mode, [mode.within(result) for result in results]


def _is_written(copy: torch.Tensor) -> bool:
    return bool(torch._functionalize_has_data_mutation(copy.elem))  # type: ignore[attr-defined]


def loop(trips: int, does: Enclosed, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Run a body again and again on what it returned before; the state that it writes into goes along.

    Args:
        trips: How often.
        does: The body.
        inputs: What it is given first.

    Returns:
        What it returned last. The state holds what was written last.
    """
    rest = _without(does.taken, does.written)
    body = _closed(does, (*does.written, *rest), does.written, does.roots)
    results = repeat((body,), trips, (*inputs, *as_operands(does.written)), as_operands(rest))
    return _written_back(results, does.written)


def choice(
    condition: torch.Tensor, then: Enclosed, then_inputs: Sequence[torch.Tensor], otherwise: Enclosed,
    else_inputs: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """Run one of two bodies; the state that either writes into holds afterwards what the chosen one has written.

    Args:
        condition: A bool without sizes.
        then: The body for True.
        then_inputs: What it is given.
        otherwise: The body for False.
        else_inputs: What it is given.

    Returns:
        What the chosen body returned.
    """
    written = (*then.written, *_without(otherwise.written, then.written))
    roots = (*then.roots, *_without(otherwise.roots, then.roots))
    sides = []
    for side, inputs in ((then, then_inputs), (otherwise, else_inputs)):
        taken = (*written, *_without(side.taken, written))
        sides.append((_closed(side, taken, written, roots), [*inputs, *as_operands(taken)]))
    (first, given), (second, given_else) = sides
    border = len(given)
    results = choose(
        (lambda *all_given: first(*all_given[:border]), lambda *all_given: second(*all_given[border:])), 0,
        (condition,), (*given, *given_else),
    )
    return _written_back(results, written)


def _without(tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    ids = {id(other) for other in others}
    return tuple(tensor for tensor in tensors if id(tensor) not in ids)


def _written_back(results: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Write the last results into the state that they are the values of; return the others."""
    border = len(results) - len(written)
    for tensor, value in zip(written, results[border:], strict=True):
        tensor.copy_(value)
    return list(results[:border])


def as_operands(taken: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors from around a body as operands; those that the model does not own become constants here."""
    return [tensor if isinstance(tensor, FunctionalTensor) else tensor.detach() for tensor in taken]


def _closed(
    does: Enclosed, taken: Sequence[torch.Tensor], written: Sequence[torch.Tensor], roots: Sequence[torch.Tensor],
) -> Body:
    """Return a body that is given what it takes from around it behind its inputs, and returns what it wrote last."""
    modes = _get_current_function_mode_stack()

    def run(*given: torch.Tensor) -> list[torch.Tensor]:
        inputs, lifted = given[:does.num_inputs], given[does.num_inputs:]
        known = {id(outer): inner for outer, inner in zip(taken, lifted, strict=True)}
        mode = _Surroundings(known, False, given, roots)
        for around in modes:
            if isinstance(around, _Surroundings):
                around.adopt(given)
        with _entered(modes), mode:
            results = [mode.within(result) for result in does.body(*inputs)]
        return results + [mode.within(tensor) for tensor in written]

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
