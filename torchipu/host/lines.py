"""Lines of channels, ``[N, C, L]``, taken for images of one row, for whose convolutions there are more ways to compute.

What holds for images - channels in blocks, what is computed together with a convolution - then holds for convolutions
of one dimension. Where none of those that hand values to each other is in blocks, they stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from torchipu.host.dead_ops import without_dead
from torchipu.host.uses import Uses
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.optable.chain import can_join
from torchipu.optable.lines import LINE_PRODUCTS, LINE_RULES, AsImages, Lying, are_lines

UNSQUEEZE, SQUEEZE = "aten.unsqueeze.default", "aten.squeeze.dim"
PERMUTE, TRANSPOSE = "aten.permute.default", "aten.transpose.int"
RESHAPES = ("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default")
SHOWS = (UNSQUEEZE, SQUEEZE, "aten.squeeze.dims", "aten.squeeze.default", *RESHAPES)
VIEWS = (*SHOWS, PERMUTE, TRANSPOSE)
CHANNELS_LAST, CHANNELS_SECOND = (0, 2, 3, 1), (0, 3, 1, 2)


def with_lines(graph: Graph, in_blocks: Callable[[Graph], Collection[Op]]) -> Graph:
    """Return the graph with lines as images where convolutions of them are computed in blocks.

    Args:
        graph: Any.
        in_blocks: Returns the ops of a graph that are.
    """
    found = _joined(graph)
    if not found:
        return graph
    trial = _Rewriting(graph, {op: form for group in found for op, form in group.items()})
    taken = in_blocks(trial.graph)
    paying = [group for group in found if any(trial.made[op] in taken for op in group if op.target in LINE_PRODUCTS)]
    if len(paying) == len(found):
        return trial.graph
    return _Rewriting(graph, {op: form for group in paying for op, form in group.items()}).graph if paying else graph


def _joined(graph: Graph) -> list[dict[Op, AsImages]]:
    """Return ops on lines that hand these to each other, a convolution among them, and how each is one on images."""
    forms = {op: form for op in graph.ops if (form := _as_images(op)) is not None}
    if not any(op.target in LINE_PRODUCTS for op in forms):
        return []
    groups: dict[Tensor, dict[Op, AsImages]] = {}
    for op, form in forms.items():
        own = {op: form}
        for tensor in _lines_of(op, form):
            other = groups.get(tensor, own)
            if other is not own:
                own, other = (own, other) if len(own) >= len(other) else (other, own)
                own.update(other)
                for member, its in other.items():
                    groups.update(dict.fromkeys(_lines_of(member, its), own))
            groups[tensor] = own
        groups.update(dict.fromkeys(_lines_of(op, form), own))
    distinct = {id(group): group for group in groups.values()}
    return [group for group in distinct.values() if any(op.target in LINE_PRODUCTS for op in group)]


def _as_images(op: Op) -> AsImages | None:
    if op.bodies:
        return None
    if (rule := LINE_RULES.get(op.target)) is not None:
        return rule(op)
    return _elementwise(op) if can_join(op) else None


def _elementwise(op: Op) -> AsImages | None:
    """Return an op on each element; what is repeated along lines has as many dimensions as before, and one more."""
    shape = op.outputs[0].shape
    if len(shape) != 3 or any(result.shape != shape for result in op.outputs):
        return None
    if not any(tensor.shape == shape for tensor in op.inputs):
        return None
    inputs = [
        Lying.LINES if tensor.shape == shape else Lying.AS_IT_IS if len(tensor.shape) < 2 else Lying.RAISED
        for tensor in op.inputs
    ]
    return AsImages(inputs, [Lying.LINES] * len(op.outputs), {})


def _lines_of(op: Op, form: AsImages) -> Iterator[Tensor]:
    for tensor, lying in (*zip(op.inputs, form.inputs, strict=True), *zip(op.outputs, form.outputs, strict=True)):
        if lying is Lying.LINES:
            yield tensor


class _Rewriting:
    """A graph in which some ops on lines are ops on images.

    Args:
        graph: The one before.
        forms: Which ops, and what they become.

    Attributes:
        graph: The one after.
        made: What each op has become.
    """

    def __init__(self, graph: Graph, forms: Mapping[Op, AsImages]) -> None:
        self.made: dict[Op, Op] = {}
        self._forms, self._uses = forms, Uses(graph)
        self._images: dict[Tensor, Tensor] = {}
        self._same: dict[Tensor, Tensor] = {}  # images that others have shown so, too
        self._raised: dict[Tensor, Tensor] = {}
        self._ops: list[Op] = []
        self._names = {tensor.name for tensor in (*graph.inputs, *self._uses.makers)}
        for op in graph.ops:
            self._take(op)
        self.graph = replace(graph, ops=without_dead(self._ops, graph, VIEWS))

    def _take(self, op: Op) -> None:
        given, form = op, self._forms.get(op)
        if any(tensor in self._same for tensor in op.inputs):
            op = replace(op, inputs=tuple(self._same.get(each, each) for each in op.inputs))
        if form is not None:
            self._convert(op, form, given)
        elif not self._show(op):
            self._ops.append(op)

    def _convert(self, op: Op, form: AsImages, of: Op) -> None:
        """Add an op on images, which another one has become, and the views of its results that others read."""
        inputs = [self._given(tensor, lying, op) for tensor, lying in zip(op.inputs, form.inputs, strict=True)]
        outputs, flat = [], list[Op]()
        for tensor, lying in zip(op.outputs, form.outputs, strict=True):
            if lying is Lying.AS_IT_IS:
                outputs.append(tensor)
                continue
            images = self._like(tensor, _raised(tensor.shape))
            outputs.append(images)
            if lying is Lying.LINES:
                self._images[tensor] = images
            flat.append(_view(op, SQUEEZE, images, tensor, {"dim": len(tensor.shape) - 1}))
        self.made[of] = replace(
            op, inputs=tuple(inputs), outputs=tuple(outputs), attrs={**op.attrs, **form.attrs},
        )
        self._ops += [self.made[of], *flat]

    def _given(self, tensor: Tensor, lying: Lying, op: Op) -> Tensor:
        """Return an operand as the op on images reads it."""
        if lying is Lying.AS_IT_IS:
            return tensor
        known = self._images if lying is Lying.LINES else self._raised
        if tensor not in known:
            known[tensor] = self._tokens(tensor, op) or self._viewed(tensor, op)
        return known[tensor]

    def _viewed(self, tensor: Tensor, op: Op) -> Tensor:
        images = self._like(tensor, _raised(tensor.shape))
        self._ops.append(_view(op, UNSQUEEZE, tensor, images, {"dim": len(tensor.shape) - 1}))
        return images

    def _tokens(self, tensor: Tensor, op: Op) -> Tensor | None:
        """Return lines that are tokens turned, as images that have their channels last; None for other values."""
        maker = self._uses.makers.get(tensor)
        if maker is None or not _turns(maker):
            return None
        tokens = maker.inputs[0]
        images, length, channels = tokens.shape
        last = self._like(tokens, (images, 1, length, channels))
        second = self._like(tensor, _raised(tensor.shape))
        self._ops.append(_view(op, UNSQUEEZE, tokens, last, {"dim": 1}))
        self._ops.append(_view(op, PERMUTE, last, second, {"dims": list(CHANNELS_SECOND)}))
        return second

    def _show(self, op: Op) -> bool:
        """Look at an op that shows a value in another shape; return whether there is no need of it any more."""
        if op.target not in VIEWS or len(op.inputs) != 1:
            return False
        source, result = op.inputs[0], op.outputs[0]
        if op.target in SHOWS and len(source.shape) == 4 and _raised(result.shape) == source.shape:
            self._images[result] = source
        images = self._images.get(source)
        if images is None:
            return False
        if op.target in SHOWS and result.shape == images.shape and result not in self._uses.kept:
            self._same[result] = images
            return True
        if not _turns(op):
            return False
        number, channels, length = source.shape
        last = self._like(result, (number, 1, length, channels))
        self._ops.append(_view(op, PERMUTE, images, last, {"dims": list(CHANNELS_LAST)}))
        self._ops.append(_view(op, SQUEEZE, last, result, {"dim": 1}))
        return True

    def _like(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        """Return a value of a name that none has."""
        name = f"{tensor.name}_image"
        while name in self._names:
            name += "_"
        self._names.add(name)
        return Tensor(name, tuple(shape), tensor.dtype)


def _turns(op: Op) -> bool:
    """Whether an op exchanges the last two of three dimensions."""
    if op.target not in (PERMUTE, TRANSPOSE) or len(op.outputs[0].shape) != 3 or not are_lines(op.outputs[0]):
        return False
    if op.target == TRANSPOSE:
        return {op.integer("dim0") % 3, op.integer("dim1") % 3} == {1, 2}
    return [dim % 3 for dim in op.integers("dims")] == [0, 2, 1]


def _raised(shape: Sequence[int]) -> tuple[int, ...]:
    return (*shape[:-1], 1, shape[-1])


def _view(like: Op, target: str, source: Tensor, result: Tensor, attrs: Mapping[str, object]) -> Op:
    """Return an op that shows a value in another shape, where and when another op runs."""
    return replace(
        like, kind=target.split(".")[1], target=target, inputs=(source,), outputs=(result,), operands=("self",),
        attrs=attrs, bodies=(),
    )
