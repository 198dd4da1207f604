"""Records of control flow: the device runs `If`, `RepeatWhile` and `Repeat`, the host jumps among its steps."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torchipu._kernels.table.control import COUNT, PUT_ROW, TAKE_ROW, CountInts, RowInts
from torchipu.device.compute_sets import no_vertices
from torchipu.host.emit.copy import emit_copy, emit_fill
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.control import COND, REPEAT, WHILE, carried_of, rows_of, trips_of
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner, Mark
from torchipu.optable.spec import OpSpec, register

ROW_SHARE = 65_536  # bytes of a row that one thread moves
WITHOUT_END = 2**62  # trips that no loop makes


def _emit_cond(op: Op, plan: HostPlanner) -> None:
    """Jump over one of the bodies; both end in copies to the results."""
    flag = plan.value(op.inputs[0], DType.BOOL)
    operands = _storage(plan, op.inputs[1:])
    outputs = [plan.output(result) for result in op.outputs]
    then, otherwise = op.bodies
    is_false, end = Mark(), Mark()
    plan.go(is_false, unless=flag)
    _copy_all(plan, outputs, plan.body(then, operands))
    plan.go(end)
    plan.place(is_false)
    _copy_all(plan, outputs, plan.body(otherwise, operands))
    plan.place(end)


def _emit_while(op: Op, plan: HostPlanner) -> None:
    carried = _begin(op, plan)
    operands = [*carried, *_storage(plan, op.inputs[len(carried):])]
    test, body = op.bodies
    counter, ended = _counter(plan)
    again, end = Mark(), Mark()
    with plan.loop(counter):
        plan.place(again)
        (flag,) = plan.body(test, operands)
        plan.go(end, unless=_as_bool(plan, flag))
        _carry(plan, carried, plan.body(body, operands))
        plan.step(COUNT, [counter, ended], [], ints=CountInts(WITHOUT_END), reads_outputs=True)
        plan.go(again)
        plan.place(end)


def _emit_repeat(op: Op, plan: HostPlanner) -> None:
    carried = _begin(op, plan)
    tables = [plan.value(tensor) for tensor in rows_of(op)]
    others = _storage(plan, op.inputs[len(carried) + len(tables):])
    stacked = [plan.output(result) for result in op.outputs[len(carried):]]
    if trips_of(op) == 0:
        return
    (body,) = op.bodies
    counter, ended = _counter(plan)
    again = Mark()
    with plan.loop(counter):
        plan.place(again)
        rows = [_take_row(plan, table, counter) for table in tables]
        results = plan.body(body, [*carried, *rows, *others])
        for table, row in zip(stacked, results[len(carried):], strict=True):
            _put_row(plan, table, row, counter)
        _carry(plan, carried, results[: len(carried)])
        plan.step(COUNT, [counter, ended], [], ints=CountInts(trips_of(op)), reads_outputs=True)
        plan.go(again, unless=ended)


def _begin(op: Op, plan: HostPlanner) -> list[HostTensor]:
    """Return the storage of what is carried, with its first values in it; that of the results."""
    first = carried_of(op)
    carried = [plan.output(result) for result in op.outputs[: len(first)]]
    _copy_all(plan, carried, _storage(plan, first))
    return carried


def _storage(plan: HostPlanner, tensors: Sequence[Tensor]) -> list[HostTensor]:
    return [plan.value(tensor, contiguous=False) for tensor in tensors]


def _counter(plan: HostPlanner) -> tuple[HostTensor, HostTensor]:
    """Return the number of trips made, 0 so far, and the storage for whether all have been made."""
    counter = plan.scratch((1,), DType.LONG)
    emit_fill(plan, counter, 0)
    return counter, plan.scratch((1,), DType.BOOL)


def _as_bool(plan: HostPlanner, flag: HostTensor) -> HostTensor:
    if flag.dtype is DType.BOOL:
        return flag
    cast = plan.scratch(flag.shape, DType.BOOL)
    emit_copy(plan, cast, flag)
    return cast


def _copy_all(plan: HostPlanner, targets: Sequence[HostTensor], sources: Sequence[HostTensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        if source != target:
            emit_copy(plan, target, source)


def _carry(plan: HostPlanner, carried: Sequence[HostTensor], following: Sequence[HostTensor]) -> None:
    """Replace what is carried; a new value that shows an old one is set aside first."""
    old = {held.buffer for held in carried}
    aside = []
    for held, value in zip(carried, following, strict=True):
        if value.buffer in old and value != held:
            fresh = plan.scratch(value.shape, value.dtype)
            emit_copy(plan, fresh, value)
            value = fresh
        aside.append(value)
    _copy_all(plan, carried, aside)


def _take_row(plan: HostPlanner, table: HostTensor, counter: HostTensor) -> HostTensor:
    row = plan.scratch(table.shape[1:], table.dtype)
    row_bytes = prod(row.shape) * row.dtype.host_bytes
    plan.step(TAKE_ROW, [row], [table, counter], ints=RowInts(row_bytes), items=row_bytes, grain=ROW_SHARE)
    return row


def _put_row(plan: HostPlanner, table: HostTensor, row: HostTensor, counter: HostTensor) -> None:
    if row.dtype is not table.dtype or not row.is_contiguous:
        fresh = plan.scratch(row.shape, table.dtype)
        emit_copy(plan, fresh, row)
        row = fresh
    row_bytes = prod(row.shape) * row.dtype.host_bytes
    plan.step(
        PUT_ROW, [table], [row, counter], ints=RowInts(row_bytes), items=row_bytes, grain=ROW_SHARE,
        reads_outputs=True,
    )


register(
    OpSpec(COND, "cond", no_vertices, _emit_cond),
    OpSpec(WHILE, "while_loop", no_vertices, _emit_while),
    OpSpec(REPEAT, "repeat", no_vertices, _emit_repeat),
)
