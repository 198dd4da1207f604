"""Finds out what the planner has to know of products: which pass of a layer they are, of how many steps in time, which
of their operands other ops make, and which softmax reads what they have made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from torchipu.device.product_sets import (
    BACKWARD,
    CALLED,
    FORWARD,
    LAYER_INPUTS,
    LAYER_PASS,
    LEFT,
    MADE_OPERANDS,
    RIGHT,
    TIME_STEPS,
    UPDATE,
)
from torchipu.device.whole_rows import READ_IN_ROWS, SCATTERED_ROWS, is_along_rows, lying_in
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.sizes import may_be_same
from torchipu.optable.spec import spec_of

RECURRENCE = "recurrence_backward"
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")


def find_layers(graph: Graph) -> Graph:
    """Return a graph whose products say what the planner has to know: which of their operands other ops make, and which
    pass of a layer they are, where its weight has a gradient: the forward is named for one sample alone, and an update
    has the inputs of its layer where the weight is no op's result. A softmax says whether its rows lie as a product has
    left them. The backward of a layer says whether others of its IPU are alike.

    The forward multiplies an input by a weight, the update the input by the gradient of the result, and the backward
    that gradient by the weight. Which operand is which follows from what they are views of, and from sizes. The
    gradients of weights of a recurrence also say how many steps in time it has: PopLibs adds a term in each.

    Args:
        graph: A valid graph, placed or not.

    Returns:
        The new graph, or the same object where there is nothing to say.

    Source: PopART and PopLibs' tools tell the planner which pass each product is, ipu_hardware.md 3.1.
    """
    products, made = _products_of(graph), _made(graph)
    by_operand: dict[Tensor, list[_Product]] = {}
    for product in products:
        for operand in {product.left: None, product.right: None}:
            by_operand.setdefault(operand, []).append(product)
    passes: dict[int, dict[str, object]] = {}
    for forward in products:
        if id(forward.op) not in passes:
            passes.update(_passes_of(forward, by_operand, passes, made))
    found = {key: dict(said) for key, said in passes.items()}
    sequences = {op.outputs[0]: op.outputs[0].shape[:2] for op in graph.ops if op.kind == RECURRENCE}
    for product in products:
        for operand in (product.left, product.right):
            steps, samples = sequences.get(operand, (1, 0))
            if steps > 1 and product.inputs == steps * samples:
                found.setdefault(id(product.op), {})[TIME_STEPS] = steps
    lying = lying_in(graph)
    for called in _called(products, passes, made):
        found.setdefault(id(called), {})[CALLED] = True
    for product in products:
        left, right = product.op.inputs[-2:]
        # Rows of a softmax lie as the left operand is taken: the elements of a row are its summands.
        is_made = {LEFT: left in made and left not in lying.whole, RIGHT: right in made}
        sides = [side for side, holds in is_made.items() if holds]
        if sides:
            found.setdefault(id(product.op), {})[MADE_OPERANDS] = " ".join(sides)
    for op in graph.ops:
        if op.kind in READ_IN_ROWS and is_along_rows(op) and op.needed(READ_IN_ROWS[op.kind]) in lying.scattered:
            found.setdefault(id(op), {})[SCATTERED_ROWS] = True
    if not found:
        return graph
    return replace(graph, ops=tuple([
        replace(op, attrs={**op.attrs, **found[id(op)]}) if id(op) in found else op for op in graph.ops
    ]))


def _called(
    products: Iterable[_Product], passes: Mapping[int, Mapping[str, object]], made: Set[Tensor],
) -> Iterator[Op]:
    """Yield the backwards of layers alike, whose code is one function on each IPU; they multiply by weights."""
    alike: dict[object, list[Op]] = {}
    for product in products:
        is_backward = passes.get(id(product.op), {}).get(LAYER_PASS) == BACKWARD
        if is_backward and product.groups == 1 and product.right not in made:
            ipu = product.op.placement.ipu if product.op.placement is not None else 0
            alike.setdefault((ipu, product.sizes, product.left.dtype), []).append(product.op)
    return (op for ops in alike.values() if len(ops) > 1 for op in ops)


def _made(graph: Graph) -> set[Tensor]:
    """Return what ops make, and views of it: all but the graph's inputs and views of these."""
    made: set[Tensor] = set()
    for op in graph.ops:
        spec = spec_of(op)
        if not (spec is not None and spec.is_view and op.inputs) or op.inputs[0] in made:
            made.update(op.outputs)
    return made


@dataclass(frozen=True, slots=True)
class _Product:
    """A product, what its operands are views of, and its sizes."""

    op: Op
    number: int
    left: Tensor
    right: Tensor
    groups: int
    rows: int
    inputs: int
    columns: int

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return self.groups, self.rows, self.inputs, self.columns


def _products_of(graph: Graph) -> list[_Product]:
    viewed = _Viewed()
    found = []
    for number, op in enumerate(graph.ops):
        spec = spec_of(op)
        if spec is None:
            continue
        if spec.is_view and op.inputs:
            viewed.of.update((result, op.inputs[0]) for result in op.outputs)
        elif spec.kind in PRODUCTS and op.inputs[0].dtype.is_floating:
            left, right = op.inputs[-2:]
            groups = left.shape[0] if len(left.shape) == 3 else 1
            rows, inputs = left.shape[-2:]
            found.append(_Product(
                op, number, viewed.held(left), viewed.held(right), groups, rows, inputs, right.shape[-1],
            ))
    return found


class _Viewed:
    """What tensors are views of: asked of operands of products alone, since sizes decide it.

    Attributes:
        of: What each view shows.
    """

    def __init__(self) -> None:
        self.of: dict[Tensor, Tensor] = {}
        self._held: dict[Tensor, Tensor] = {}

    def held(self, tensor: Tensor) -> Tensor:
        """Return what a tensor shows all of; itself if it is no view.

        A part of a tensor is another operand than its neighbours: queries and keys cut out of one product are.
        """
        chain = [tensor]
        while chain[-1] in self.of and chain[-1] not in self._held:
            chain.append(self.of[chain[-1]])
        held = self._held.get(chain[-1], chain[-1])
        for shown in reversed(chain):
            if shown is not held and shown.num_elements < held.num_elements:
                held = shown
            self._held[shown] = held
        return held


def _passes_of(
    forward: _Product, by_operand: Mapping[Tensor, Iterable[_Product]], taken: Mapping[int, object],
    made: Set[Tensor],
) -> dict[int, dict[str, object]]:
    """Return what to say of passes of the layer whose forward a product is; nothing if its weight has no gradient."""
    groups, samples, inputs, outputs = forward.sizes
    # The planner asks of one sample alone: its forward may be planned with the other two.
    first: dict[int, dict[str, object]] = {id(forward.op): {LAYER_PASS: FORWARD}} if samples == 1 else {}
    said: dict[str, object] = {LAYER_PASS: UPDATE}
    if forward.right not in made:
        said[LAYER_INPUTS] = inputs
    for update in by_operand[forward.left]:
        if update.number <= forward.number or id(update.op) in taken:
            continue
        if update.left is forward.left and _are_same(update.sizes, (groups, inputs, samples, outputs)):
            gradient = update.right
        elif update.right is forward.left and _are_same(update.sizes, (groups, outputs, samples, inputs)):
            gradient = update.left
        else:
            continue
        for backward in by_operand.get(forward.right, ()):
            is_later = backward.number > forward.number and id(backward.op) not in taken
            is_of_gradient = is_later and backward.left is gradient
            if is_of_gradient and _are_same(backward.sizes, (groups, samples, outputs, inputs)):
                return first | {id(backward.op): {LAYER_PASS: BACKWARD}, id(update.op): said}
        return first | {id(update.op): said}
    return {}


def _are_same(sizes: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Whether products have the same sizes, and do not just happen to, as a layer of as many features as samples."""
    return may_be_same(sizes, expected) and sizes == expected
