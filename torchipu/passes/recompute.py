"""Runs forward ops again in the backward leg, so that fewer activations are kept between the legs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import Leg
from torchipu.optable.marks import CHECKPOINT_REGION, MARK
from torchipu.optable.spec import spec_of
from torchipu.options import Options

PIPELINES = ("pipelined", "1f1b", "interleaved")


def recompute(graph: Graph, options: Options) -> Graph:
    """Return a graph whose backward reads recomputed activations.

    With ``recompute='stage'``, the inputs of each stage are kept and everything else that its backward reads is
    computed again from them. The last stage is left alone: its backward follows its forward at once, so nothing waits
    in between. With a list of blocks, the inputs of each of these blocks are kept. ``auto`` stands for ``stage`` where
    several stages form a training pipeline, as in PopTorch. Ops under ``torch.utils.checkpoint`` are computed again
    from what goes into it, whatever the option says.

    Kept is what passes through ``torchipu.recomputation_checkpoint``. Kept as well are results of ops without a record,
    of control flow, and of ops that need a state that the forward changes: computed again, they could differ. Ops that
    draw random bits are not among them: they draw the same bits again, from the seed of their micro-batch. Nor are
    batch normalisations: they normalise again, and leave the running statistics alone.

    Args:
        graph: A placed graph.
        options: ``recompute`` and ``execution`` are read.

    Returns:
        The graph with clones in leg B, each naming its original in ``attrs['recomputed_from']``, or the same object
        when there is nothing to recompute.

    Source: PopART gives every random op a seed as an operand, and to the op that recomputes it the same; the masks of
    dropouts are not stashed. ``ipu_hardware.md`` 4.1.
    """
    choice = _choice(options)
    if choice == "none" and not any(CHECKPOINT_REGION in op.attrs for op in graph.ops):
        return graph
    clones = _Clones(graph, _regions(graph, choice))
    for op in graph.ops:
        clones.add(op)
    return replace(graph, ops=tuple(clones.ops)) if clones.made else graph


def _choice(options: Options) -> str | tuple[str, ...]:
    if options.recompute != "auto":
        return options.recompute
    return "stage" if options.execution in PIPELINES else "none"


def _regions(graph: Graph, choice: str | tuple[str, ...]) -> Mapping[Op, object]:
    """Return the region of each op that may be recomputed or may read recomputed values."""
    placed = [(op, op.placement) for op in graph.ops if op.placement is not None]
    regions: dict[Op, object] = {
        op: (CHECKPOINT_REGION, op.attrs[CHECKPOINT_REGION], place.stage) for op, place in placed
        if CHECKPOINT_REGION in op.attrs and op.leg is Leg.FORWARD
    }
    if choice == "stage":
        last = max((place.stage for _, place in placed), default=0)
        return regions | {op: place.stage for op, place in placed if place.stage < last}
    return regions | {op: (place.block, place.stage) for op, place in placed if place.block in choice}


class _Clones:
    """The ops of the new graph, and the clone of each tensor recomputed so far."""

    def __init__(self, graph: Graph, regions: Mapping[Op, object]) -> None:
        self.ops: list[Op] = []
        self.made: dict[Tensor, Tensor] = {}
        self._regions = regions
        self._names = {tensor.name for op in graph.ops for tensor in op.outputs} | {t.name for t in graph.inputs}
        changing, kept = _changing_states(graph), _kept(graph, regions)
        self._repeats = {op: repeat for op in regions if (repeat := _repeat_of(op, changing)) is not None}
        self._maker = {
            tensor: op for op, repeat in self._repeats.items() for tensor in repeat.outputs if tensor not in kept
        }

    def add(self, op: Op) -> None:
        """Append an op; in leg B, append what it needs recomputed just before it."""
        if op.leg is not Leg.BACKWARD:
            self.ops.append(op)
            return
        inputs = tuple(self._recomputed(tensor, self._region_for(op, tensor)) for tensor in op.inputs)
        unchanged = all(new is old for new, old in zip(inputs, op.inputs, strict=True))
        self.ops.append(op if unchanged else replace(op, inputs=inputs))

    def _region_for(self, op: Op, tensor: Tensor) -> object:
        """Return the region from which a backward op may have a value again, or None."""
        maker = self._maker.get(tensor)
        region = self._regions[maker] if maker is not None else None
        if maker is not None and isinstance(region, tuple) and region[0] == CHECKPOINT_REGION:
            here, there = op.placement, maker.placement
            return region if here is not None and there is not None and here.stage == there.stage else None
        return self._regions.get(op)

    def _recomputed(self, wanted: Tensor, region: object) -> Tensor:
        """Return a value's clone, making it and all that it needs; values from outside the region are kept.

        Walks with a stack of its own: a chain of forward ops may be longer than Python's recursion limit.
        """
        stack = [wanted]
        while stack:
            tensor = stack[-1]
            maker = self._maker_in(tensor, region)
            if maker is None or tensor in self.made:
                stack.pop()
                continue
            operands = self._repeats[maker].inputs
            missing = [t for t in operands if t not in self.made and self._maker_in(t, region) is not None]
            if missing:
                stack += missing
            else:
                self._clone(maker)
                stack.pop()
        return self.made[wanted] if self._maker_in(wanted, region) is not None else wanted

    def _maker_in(self, tensor: Tensor, region: object) -> Op | None:
        """Return the op of the region that can make a value again."""
        maker = self._maker.get(tensor) if region is not None else None
        return maker if maker is not None and self._regions[maker] == region else None

    def _clone(self, original: Op) -> None:
        region, op = self._regions[original], self._repeats[original]
        inputs = tuple(self.made[t] if self._maker_in(t, region) is not None else t for t in op.inputs)
        outputs = tuple(replace(tensor, name=self._fresh(f"{tensor.name}.again")) for tensor in op.outputs)
        self.made.update(zip(op.outputs, outputs, strict=True))
        place = None if op.placement is None else replace(op.placement, leg=Leg.BACKWARD)
        attrs = {**op.attrs, MARK: op.outputs[0].name}
        self.ops.append(replace(op, inputs=inputs, outputs=outputs, attrs=attrs, placement=place, leg=Leg.BACKWARD))

    def _fresh(self, name: str) -> str:
        while name in self._names:
            name += "_"
        self._names.add(name)
        return name


def _kept(graph: Graph, regions: Mapping[Op, object]) -> set[Tensor]:
    """Return what is kept: what the user marked, and what leaves a region of torch.utils.checkpoint."""
    kept: set[Tensor] = set()
    maker = {tensor: op for op in graph.ops for tensor in op.outputs}
    for op in graph.ops:
        if op.kind == "checkpoint":
            kept.update((*op.inputs, *op.outputs))
        if op.leg is Leg.FORWARD:
            for tensor in op.inputs:
                made_in = regions.get(maker[tensor]) if tensor in maker else None
                is_checkpoint = isinstance(made_in, tuple) and made_in[0] == CHECKPOINT_REGION
                if is_checkpoint and regions.get(op) != made_in:
                    kept.add(tensor)
    return kept


def _changing_states(graph: Graph) -> set[Tensor]:
    """Return the states that change before the update leg, such as running statistics."""
    maker = {tensor: op for op in graph.ops for tensor in op.outputs}
    return {state for state, value in graph.updates if value not in maker or maker[value].leg is not Leg.UPDATE}


def _repeat_of(op: Op, changing: set[Tensor]) -> Op | None:
    """Return the op that gives results of a forward op once more, in the backward leg, with the same values."""
    spec = spec_of(op)
    if op.leg is not Leg.FORWARD or spec is None or spec.has_effect or op.bodies:
        return None
    if any(tensor in changing for tensor in op.inputs):
        return spec.without_states(op) if spec.without_states is not None else None
    return op
