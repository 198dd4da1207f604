"""Which values of a plan lie with their channels in blocks, from one convolution to the next.

The layout is a fact of the host's values alone: the graph knows nothing of it. Ops that can be computed in blocks are
joined through the values they hand on; each such group is computed so where its convolutions save more than bringing
values into the layout and back costs. Whatever else reads a value is given it row-major.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torchipu.host.emit.blocked_layout import (
    blocked_shape,
    emit_from_blocked,
    emit_rows_from_blocked,
    emit_rows_to_blocked,
    emit_to_blocked,
    with_lanes_third,
)
from torchipu.host.emit.vectors import vector_lanes
from torchipu.host.fusion import Fused
from torchipu.host.uses import Uses
from torchipu.host.values import Values
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.blocked import (
    BLOCKED_FORMS,
    BlockedForm,
    BlockedPlanner,
    Rows,
    Sizes,
    Terms,
    find_rows,
    flat_of,
    rows_of,
)
from torchipu.optable.chain import can_join
from torchipu.optable.emission import emit_cast
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

REORDER_NS = 0.4
"""Measured: an element brought into the layout or back, by one thread."""
ROWS_REORDER_NS = 0.5
"""Likewise where channels come last."""
BORDER_NS = 0.3
"""Likewise of what comes from the caller or goes there with its channels last; most of it is not in a cache."""
TURNING_NS = 0.85
"""Of such an element that the plain form has turned."""


CHANNELS_LAST, CHANNELS_SECOND = (0, 2, 3, 1), (0, 3, 1, 2)
EXACT = ("aten.add.Tensor", "aten.relu.default", "aten.threshold_backward.default")
"""Ops that give the same values computed with those before them as by themselves."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Ops that are computed in blocks in one go, the first result of each handed to the next.

    Attributes:
        ops: In order; one alone, of any elementwise kind, where there is no form.
        form: How they are computed.
    """

    ops: tuple[Op, ...]
    form: BlockedForm | None

    @property
    def sources(self) -> Sequence[Tensor]:
        """What is read in the blocked layout."""
        if self.form is not None:
            return self.form.sources(self.ops)
        return [tensor for tensor in self.ops[0].inputs if tensor.num_elements > 1]

    @property
    def either(self) -> Sequence[Tensor]:
        """What is read in either layout."""
        return () if self.form is None else self.form.either(self.ops)

    @property
    def result(self) -> Tensor | None:
        """The value that is handed on in blocks, if there is one."""
        return self.ops[-1].outputs[0] if self.form is None else self.form.result(self.ops)

    def gain_ns(self, terms: Terms) -> float:
        """Return what is saved by computing in blocks."""
        return 0.0 if self.form is None else self.form.gain_ns(self.ops, terms)


@dataclass(frozen=True, slots=True)
class Crossing:
    """Values that cross in blocks from a plan to another one.

    Attributes:
        given: Inputs of the graph that lie in blocks.
        handed: Outputs that may.
    """

    given: Collection[Tensor] = ()
    handed: Collection[Tensor] = ()


@dataclass(frozen=True, slots=True)
class Border:
    """What values that enter a group or leave it are to others.

    Attributes:
        uses: Who reads what.
        rows: Values that have their channels last in the graph.
        last: Inputs and outputs of the graph that lie with their channels last.
        crossing: Those in blocks.
    """

    uses: Uses
    rows: Rows
    last: Collection[Tensor]
    crossing: Crossing

    def reorder_ns(self, tensor: Tensor, run: Run) -> float:
        """Return what it takes to bring a value there for a run, or from there, beyond what the plain form takes."""
        if tensor in self.rows:
            return ROWS_REORDER_NS * tensor.num_elements
        if tensor not in self.last:
            return REORDER_NS * tensor.num_elements
        return (BORDER_NS - (TURNING_NS if _turns(run) else 0.0)) * tensor.num_elements


class Layouts:
    """The values in blocks.

    Args:
        graph: Whose ops are emitted.
        uses: Who reads what.
        fused: What other kernels compute together; runs that do all of the same take their place.
        terms: What the plan does with weights and sums.
        last: Inputs and outputs of the graph that the caller has, or expects, with their channels last.
        free: Outputs that may lie in any order of their dimensions.
        crossing: Inputs and outputs that lie in blocks, or may.

    Attributes:
        runs: Those with a form, by their last op.
        absorbed: The ops before it.
        elementwise: Ops of chains that are computed in blocks.
        held: Where values lie in blocks; halves as floats.
        rows: Values that have their channels last, and the sizes of the images that they hold.
    """

    def __init__(
        self, graph: Graph | None, uses: Uses, fused: Fused, terms: Terms, last: Collection[Tensor] = (),
        free: Collection[Tensor] = (), crossing: Crossing | None = None,
    ) -> None:
        self._uses, self._fixed = uses, uses.kept.difference(free)
        self.crossing = crossing or Crossing()
        self.runs: dict[Op, Run] = {}
        self.absorbed: set[Op] = set()
        self.elementwise: set[Op] = set()
        self.held: dict[Tensor, HostTensor] = {}
        # A linear layer reads packed weights here, which it need not elsewhere.
        self.rows = find_rows(graph.ops) if graph is not None and terms.packs_ahead else Rows()
        found = [] if graph is None else _find_runs(graph, uses, fused, self.rows, terms)
        choose = _paying if terms.joins_freely else _exact
        border = Border(uses, self.rows, last, self.crossing)
        self._take(choose(found, border, terms))

    def _take(self, group: Iterable[Run]) -> None:
        for run in group:
            if run.form is None:
                self.elementwise.update(run.ops)
            else:
                self.runs[run.ops[-1]] = run
                self.absorbed.update(run.ops[:-1])

    def takes(self, op: Op) -> bool:
        """Whether an op is part of a run that has a form."""
        return op in self.runs or op in self.absorbed

    def blocked(self, tensor: Tensor, plan: HostPlanner) -> HostTensor:
        """Return where a value lies in blocks, brought there if need be."""
        if tensor not in self.held:
            if tensor in self.rows:
                emit_rows_to_blocked(plan, self.output(tensor, plan), plan.value(tensor, DType.FLOAT))
                return self.held[tensor]
            plain = self._as_images(tensor, plan.value(tensor, DType.FLOAT, contiguous=False))
            if plain.has_channels_last:
                emit_rows_to_blocked(plan, self.output(tensor, plan), plain.permuted(CHANNELS_LAST))
            else:
                plain = self._as_images(tensor, plan.value(tensor, DType.FLOAT))
                emit_to_blocked(plan, self.output(tensor, plan), plain)
        return self.held[tensor]

    def sizes(self, tensor: Tensor) -> Sizes:
        """Return the sizes of the images that a value holds, whether channels come second or last."""
        if (sizes := self.rows.get(tensor) or self.rows.flat.get(tensor)) is not None:
            return sizes
        images, channels, height, width = _as_images(tensor.shape)
        return images, channels, height, width

    def _as_images(self, tensor: Tensor, plain: HostTensor) -> HostTensor:
        """Return the place of a value with channels second, as it is, as one of ``[N, C, H, W]``."""
        if len(plain.shape) == 4:
            return plain
        sizes = self.sizes(tensor)
        if tensor in self.rows.flat:
            image, channel, pixel = plain.strides
            return replace(plain, shape=sizes, strides=(image, channel, pixel * sizes[3], pixel))
        return replace(plain, shape=sizes, strides=(plain.num_elements, *plain.strides))  # of channels

    def output(self, tensor: Tensor, plan: HostPlanner) -> HostTensor:
        """Return storage in blocks for a value."""
        self.held[tensor] = plan.scratch(blocked_shape(self.sizes(tensor)), DType.FLOAT)
        return self.held[tensor]

    def crossing_in_blocks(self, tensor: Tensor) -> HostTensor | None:
        """Return where an output lies in blocks that may cross so, as it is then shown; None for others."""
        if tensor not in self.crossing.handed or tensor not in self.held:
            return None
        return with_lanes_third(self.held[tensor])

    def make_plain(self, tensor: Tensor, values: Values, plan: BlockedPlanner) -> None:
        """Give a value that lies in blocks alone a row-major place as well."""
        if tensor in values.by_tensor or tensor not in self.held:
            return
        held = self.held[tensor]
        if tensor.dtype is not held.dtype:  # floats that are halves' values
            computed = plan.scratch(tensor.shape, held.dtype)
            self._emit_plain(tensor, computed, held, plan)
            halves = plan.output(tensor)
            values.floats.note_exact(computed, halves, emit_cast(plan, halves, computed))
            return
        if tensor in self.rows or tensor in self.rows.flat:
            self._emit_plain(tensor, plan.output(tensor), held, plan)
            return
        if tensor.shape[1] % vector_lanes() == 0 and tensor.shape[2:] == (1, 1):  # both layouts are one
            strides = (tensor.shape[1], 1, 1, 1)
            values.by_tensor[tensor] = HostTensor(held.buffer, held.offset, tensor.shape, strides, held.dtype)
            return
        if self._is_read_as_rows(tensor):
            images, channels, height, width = self.sizes(tensor)
            rows = plan.scratch((images, height, width, channels), held.dtype)
            plan.alias(tensor, rows.permuted(CHANNELS_SECOND))
        else:
            plan.expected_output(tensor)
        self._emit_plain(tensor, values.by_tensor[tensor], held, plan)

    def _is_read_as_rows(self, tensor: Tensor) -> bool:
        """Whether all that reads images outside the blocks is a view that puts their channels last."""
        if tensor in self._fixed or tensor.shape[1] == 1:
            return False
        outside = [op for op in self._uses.readers.get(tensor, ()) if not self.takes(op) and op not in self.elementwise]
        return bool(outside) and all(self._leads_to_rows(op) for op in outside)

    def _leads_to_rows(self, op: Op) -> bool:
        """Whether an op puts the channels of images last, or makes one dimension of planes for such ops alone."""
        if not op.outputs:
            return False  # a value goes to another process as it lies row-major
        rows, result = Rows(), op.outputs[0]
        if rows_of(op, rows) is not None:
            return True
        if (sizes := flat_of(op, rows)) is None:
            return False
        rows.flat[result] = sizes
        after = self._uses.readers.get(result, ())
        return bool(after) and all(rows_of(each, rows) is not None for each in after)

    def _emit_plain(self, tensor: Tensor, plain: HostTensor, held: HostTensor, plan: HostPlanner) -> None:
        """Emit the elements of a value in blocks in another place's order."""
        if tensor in self.rows:
            emit_rows_from_blocked(plan, plain, held)
            return
        images = self._as_images(tensor, plain)
        if images.has_channels_last:
            emit_rows_from_blocked(plan, images.permuted(CHANNELS_LAST), held)
        else:
            emit_from_blocked(plan, images, held)


def _paying(runs: Sequence[Run], border: Border, terms: Terms) -> list[Run]:
    """Return the runs of groups that save more than bringing values into the layout and back costs."""
    found = []
    for group in _groups(runs):
        saved, pruned = _saved_ns(group, border, terms), _pruned(group, border, terms)
        if pruned is not group and (less := _saved_ns(pruned, border, terms)) > max(0.0, saved):
            group, saved = pruned, less
        if saved > 0:
            found += group
    return found


def _saved_ns(group: Collection[Run], border: Border, terms: Terms) -> float:
    """Return what a group saves, bringing values into the layout and back counted."""
    return sum(run.gain_ns(terms) for run in group) - _reorder_ns(group, border)


def _pruned(group: list[Run], border: Border, terms: Terms) -> list[Run]:
    """Return a group without the runs that take longer in blocks, such as convolutions to few channels.

    What is elementwise and reads nothing that is left goes with them. Those between others may have to stay: it is for
    the caller to compare.
    """
    kept = [run for run in group if run.form is None or run.gain_ns(terms) >= 0]
    if len(kept) == len(group):
        return group
    while True:
        made = {run.result for run in kept}
        fed = [run for run in kept if run.form is not None or any(source in made for source in run.sources)]
        if len(fed) == len(kept):
            return kept
        kept = fed


def _exact(runs: Sequence[Run], border: Border, terms: Terms) -> list[Run]:
    """Return runs so chosen that no value depends on what is computed around an op.

    A program has the same values on any number of stages, in one process and in several, which see a part of it each.
    So what sums in an order of its own is in blocks where it would be by itself, between values that lie row-major;
    what gives the same values in either layout joins it where that pays.
    """
    exact = {run for run in runs if run.form is None or run.form.is_exact}
    summing = {run for run in runs if run not in exact and _pays_alone(run, border, terms)}
    taken = summing | set(_paying([run for run in runs if run in (exact | summing)], border, terms))
    return [run for run in runs if run in taken]


def _pays_alone(run: Run, border: Border, terms: Terms) -> bool:
    """Whether a run's first op saves more than bringing all that it reads and makes into the layout and back costs."""
    alone = Run(run.ops[:1], run.form)
    return alone.gain_ns(terms) > _reorder_ns([alone], border)


def _find_runs(graph: Graph, uses: Uses, fused: Fused, rows: Rows, terms: Terms) -> list[Run]:
    """Return all that can be computed in blocks."""
    together = {op: ops for ops, _ in fused.values() for op in ops}
    places = {op: place for place, op in enumerate(graph.ops)}
    found: list[Run] = []
    taken: set[Op] = set()
    for op in graph.ops:
        if op in taken:
            continue
        run = _run_from(op, uses, together, taken, rows, terms, places)
        if run is not None:
            found.append(run)
            taken.update(run.ops)
    return found


def _run_from(
    op: Op, uses: Uses, together: Mapping[Op, Sequence[Op]], taken: Collection[Op], rows: Rows, terms: Terms,
    places: Mapping[Op, int],
) -> Run | None:
    """Return the run that an op begins, if it begins one; ops that other runs have taken are none of it."""
    form = BLOCKED_FORMS.get(op.target)
    if form is None or not form.serves(op, rows) or not (form.makes_others or _hands_on_one(op, uses)):
        return Run((op,), None) if _is_alike(op, rows) and op not in together else None
    ops: tuple[Op, ...] = (op,)
    beside = (reader for result in op.outputs[1:] for reader in uses.readers.get(result, ()))
    others = [places[reader] for reader in beside if reader in places]
    while form.result(ops) is not None:
        result, readers = ops[-1].outputs[0], uses.readers.get(ops[-1].outputs[0], [])
        if len(readers) != 1 or result in uses.kept or readers[0] not in places or readers[0] in taken:
            break
        if not readers[0].outputs:
            break  # it is sent to another process
        if not form.follows(ops, readers[0], rows) or not (terms.joins_freely or readers[0].target in EXACT):
            break
        if min(others, default=len(places)) <= places[readers[0]]:
            break  # what the first op makes beside is read by the next one, or before it
        ops = (*ops, readers[0])
    other = {one for member in ops for one in together.get(member, ())}
    return Run(ops, form) if other <= set(ops) else None


def _hands_on_one(op: Op, uses: Uses) -> bool:
    """Whether the first result alone is read."""
    return not any(uses.is_read(result) for result in op.outputs[1:])


def _is_alike(op: Op, rows: Rows) -> bool:
    """Whether an op is elementwise on floats of one shape, ``[N, C, H, W]``, numbers of channels and single ones."""
    if any(tensor in rows for tensor in (*op.inputs, *op.outputs)):
        return False  # a chain may join others of that shape with their channels second
    if not can_join(op) or len(op.outputs) != 1 or len(op.outputs[0].shape) != 4:
        return False
    shape = op.outputs[0].shape
    tensors = (*op.inputs, *op.outputs)
    alike = all(
        tensor.shape == shape or tensor.num_elements == 1 or _is_of_channels(tensor, shape) for tensor in op.inputs
    )
    return alike and op.outputs[0].num_elements > 1 and all(tensor.dtype is DType.FLOAT for tensor in tensors)


def _is_of_channels(tensor: Tensor, shape: Sequence[int]) -> bool:
    """Whether a value has one number for each channel of images of a shape, or of all of them alike."""
    images, *plane = _as_images(tensor.shape)
    return len(tensor.shape) in (3, 4) and images in (1, shape[0]) and plane == [shape[1], 1, 1]


def _as_images(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape with leading dimensions of 1, four in all."""
    return (*[1] * (4 - len(shape)), *shape)


def _groups(runs: Sequence[Run]) -> list[list[Run]]:
    """Return runs that hand values to each other together."""
    makers = {run.result: number for number, run in enumerate(runs) if run.result is not None}
    parent = list(range(len(runs)))

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    for number, run in enumerate(runs):
        for source in run.sources:
            if source in makers:
                parent[root(number)] = root(makers[source])
    in_blocks = {root(number) for number, run in enumerate(runs) if run.form is not None}
    for number, run in enumerate(runs):
        for source in run.either:
            if source in makers and root(makers[source]) in in_blocks:
                parent[root(number)] = root(makers[source])
    groups: dict[int, list[Run]] = {}
    for number, run in enumerate(runs):
        groups.setdefault(root(number), []).append(run)
    return list(groups.values())


def _reorder_ns(group: Collection[Run], border: Border) -> float:
    """Return what bringing values into the layout and back takes."""
    uses, makers = border.uses, {run.result: run for run in group if run.result is not None}
    entering: dict[Tensor, Run] = {}
    for run in group:
        for source in run.sources:
            if source not in makers and (source not in entering or _turns(run)):
                entering[source] = run
    read_in_blocks = {(op, source) for run in group for source in (*run.sources, *run.either) for op in run.ops}

    def is_read_plain(tensor: Tensor) -> bool:
        is_kept = tensor in uses.kept and tensor not in border.crossing.handed
        return is_kept or any((op, tensor) not in read_in_blocks for op in uses.readers.get(tensor, ()))

    leaving = {
        result: run for result, run in makers.items()
        if (len(result.shape) == 4 or result in border.rows or result in border.rows.flat) and is_read_plain(result)
    }
    given = border.crossing.given
    moved = [(tensor, run) for tensor, run in (*entering.items(), *leaving.items()) if tensor not in given]
    # What is given in blocks would have to be brought into the other layout, were it not read in blocks alone.
    spared = [(tensor, run) for tensor, run in entering.items() if tensor in given and not is_read_plain(tensor)]
    return sum(border.reorder_ns(*each) for each in moved) - sum(border.reorder_ns(*each) for each in spared)


def _turns(run: Run) -> bool:
    """Whether the plain form of a run has values with their channels last turned."""
    return run.form is not None and not run.form.reads_rows(run.ops)
