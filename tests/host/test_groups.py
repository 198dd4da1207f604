"""Which elementwise ops become one chain, and when a chain closes."""

from __future__ import annotations

from tests.placed_graphs import op, tensor
from torchipu.host.groups import FEW_ELEMENTS, MAX_OPERANDS, MAX_OPS_PAST_OPEN_CHAIN, grouped
from torchipu.ir.graph import Op, Tensor

SIZE = FEW_ELEMENTS + 1


def made(name: str, *operands: Tensor) -> Op:
    return op("add", operands, tensor(name, SIZE))


def groups(ops: list[Op], apart: tuple[str, ...] = ()) -> list[str]:
    """Return the names of what each group makes, all ops but some joining chains."""
    found = grouped(ops, lambda one: one.outputs[0].name not in apart)
    return [" ".join(one.outputs[0].name for one in group) for group in found]


def test_an_op_that_reads_of_several_chains_makes_them_one() -> None:
    parts = [made(name, tensor(f"{name}.input", SIZE)) for name in "abc"]
    whole = made("whole", *(part.outputs[0] for part in parts))
    assert groups([*parts, whole]) == ["a b c whole"]


def test_a_chain_stays_open_for_a_few_other_ops_and_closes_then() -> None:
    first = made("first", tensor("x", SIZE))
    others = [made(f"other{number}", tensor(f"y{number}", SIZE)) for number in range(MAX_OPS_PAST_OPEN_CHAIN + 1)]
    apart = tuple(other.outputs[0].name for other in others)
    last = made("last", first.outputs[0])
    assert groups([first, *others[1:], last], apart) == [*apart[1:], "first last"]
    assert groups([first, *others, last], apart) == [*apart, "first", "last"]


def test_views_that_pass_by_do_not_close_a_chain() -> None:
    first = made("first", tensor("x", SIZE))
    names = [f"view{number}" for number in range(MAX_OPS_PAST_OPEN_CHAIN + 1)]
    views = [op("view", (tensor(f"of {name}", SIZE),), tensor(name, SIZE)) for name in names]
    last = made("last", first.outputs[0])
    assert groups([first, *views, last], tuple(names)) == [*names, "first last"]


def test_chains_that_read_views_of_one_value_are_one() -> None:
    whole = tensor("whole", 2, SIZE)
    views = [op("view", (whole,), tensor(f"view{number}", SIZE)) for number in range(2)]
    of_view = op("view", (views[1].outputs[0],), tensor("view of view", SIZE))
    parts = [made("a", views[0].outputs[0]), made("b", of_view.outputs[0]), made("c", tensor("other", SIZE))]
    apart = tuple(view.outputs[0].name for view in (*views, of_view))
    assert groups([*views, of_view, *parts], apart) == [*apart, "a b", "c"]


def test_a_chain_that_another_op_reads_comes_before_it() -> None:
    first = made("first", tensor("x", SIZE))
    reads, last = made("reads", first.outputs[0]), made("last", first.outputs[0])
    assert groups([first, reads, last], ("reads",)) == ["first", "reads", "last"]


def test_a_chain_has_as_many_operands_as_fit() -> None:
    ops = [made("first", tensor("x", SIZE))]
    while len(ops) < MAX_OPERANDS - 1:  # the first has two operands, each other one makes one more
        ops.append(made(f"next{len(ops)}", ops[-1].outputs[0]))
    assert len(groups(ops)) == 1
    assert groups([*ops, made("last", ops[-1].outputs[0])])[-1] == "last"
