"""The order of ops: those that free memory stand behind what they need, and none before it."""

from dataclasses import replace

from tests.placed_graphs import BACKWARD, FORWARD, lowered, one_forward, op, tensor
from torchipu.device.memory import tile_memory
from torchipu.device.order import ordered_for_memory
from torchipu.ir.graph import Graph
from torchipu.ir.types import Role
from torchipu.optable.collective import NAMESPACE
from torchipu.target import lookup_target

MK2 = lookup_target("mk2")
FULL = MK2.num_tiles * 32


def graph_of(*lines, leg=FORWARD, sizes=None, states=()):
    """Return a graph of ops `(result, kind, *operands)`; an operand that nothing makes is an input."""
    values, ops, inputs = {}, [], []
    for name, kind, *operands in lines:
        for one in operands:
            if one not in values:
                role = Role.ACCUMULATOR if one in states else Role.INPUT
                values[one] = tensor(one, FULL, role=role)
                inputs.append(values[one])
        values[name] = tensor(name, (sizes or {}).get(name, FULL))
        made = op(kind, tuple(values[one] for one in operands), values[name], leg=leg)
        ops.append(replace(made, target="ipu.accumulate.default") if kind == "accumulate" else made)
    updates = tuple((values[one], values[f"next_{one}"]) for one in states)
    return Graph("ordered", tuple(inputs), (values[lines[-1][0]],), tuple(ops), updates)


def names_of(graph):
    return [one.outputs[0].name for one in ordered_for_memory(graph).ops]


def test_sums_stand_behind_what_they_add_up():
    graph = graph_of(
        ("a", "f", "x"), ("b", "f", "x"), ("small", "f", "a"), ("c", "f", "b"), ("end", "f", "c", "small"),
        sizes={"small": 1},
    )
    assert names_of(graph) == ["a", "small", "b", "c", "end"]


def test_gradients_are_accumulated_as_they_are_made():
    graph = graph_of(
        ("g1", "f", "x"), ("g2", "f", "x"), ("next_acc1", "accumulate", "acc1", "g1"),
        ("next_acc2", "accumulate", "acc2", "g2"), ("end", "f", "x"), states=("acc1", "acc2"), leg=BACKWARD,
    )
    assert names_of(graph) == ["g1", "next_acc1", "g2", "next_acc2", "end"]


def test_an_accumulator_is_not_overwritten_before_it_is_read():
    graph = graph_of(
        ("g", "f", "x"), ("h", "f", "x"), ("read", "f", "acc", "h"), ("next_acc", "accumulate", "acc", "g"),
        ("end", "f", "read"), states=("acc",), leg=BACKWARD,
    )
    names = names_of(graph)
    assert names.index("next_acc") > names.index("read")


def test_what_frees_nothing_keeps_its_place():
    graph = graph_of(("a", "f", "x"), ("b", "f", "x"), ("c", "f", "a"), ("end", "f", "b", "c"))
    assert ordered_for_memory(graph) is graph


def test_what_frees_memory_where_it_stands_is_left_there():
    graph = graph_of(("a", "f", "x"), ("small", "f", "a"), ("end", "f", "small"), sizes={"small": 1, "end": 1})
    assert ordered_for_memory(graph) is graph


def test_ops_that_stand_behind_the_same_one_keep_their_order():
    graph = graph_of(
        ("a", "f", "x"), ("b", "f", "x"), ("other", "f", "x"), ("first", "f", "a", "b"), ("second", "f", "b"),
        ("end", "f", "other", "first", "second"), sizes={"first": 1, "second": 1},
    )
    assert names_of(graph) == ["a", "b", "first", "second", "other", "end"]


def test_an_op_of_another_function_does_not_stand_behind_what_it_reads():
    lines = (
        ("a", "f", "x"), ("b", "f", "x"), ("small", "f", "a"), ("end", "f", "b", "small"),
    )
    graph = graph_of(*lines, sizes={"small": 1, "end": 1})
    assert names_of(graph) == ["a", "small", "b", "end"]
    for stage, leg in ((1, FORWARD), (0, BACKWARD)):
        apart = tuple(
            op(one.kind, one.inputs, one.outputs[0], stage, leg) if one.outputs[0].name in ("small", "end") else one
            for one in graph.ops
        )
        assert names_of(replace(graph, ops=apart)) == ["a", "b", "small", "end"]


def test_an_operand_that_is_read_again_later_is_not_freed():
    graph = graph_of(
        ("a", "f", "x"), ("b", "f", "x"), ("small", "f", "a"), ("end", "f", "a", "b", "small"),
        sizes={"small": 1, "end": 1},
    )
    assert ordered_for_memory(graph) is graph


def test_what_does_more_than_give_results_is_left_where_it_stands():
    graph = graph_of(
        ("a", "f", "x"), ("b", "f", "x"), ("small", "f", "a"), ("end", "f", "b", "small"), sizes={"small": 1, "end": 1},
    )
    assert names_of(graph) == ["a", "small", "b", "end"]
    sent = tuple(
        replace(one, target=f"{NAMESPACE}.all_reduce.default") if one.outputs[0].name == "small" else one
        for one in graph.ops
    )
    assert names_of(replace(graph, ops=sent)) == ["a", "b", "small", "end"]


def test_less_memory_is_taken():
    lines = [(f"a{number}", "f", "x") for number in range(6)]
    lines += [(f"s{number}", "f", f"a{number}") for number in range(6)]
    lines += [("end", "f", *(f"s{number}" for number in range(2)))]
    graph = graph_of(*lines, sizes={f"s{number}": 1 for number in range(6)} | {"end": 1})
    held = [
        tile_memory(lowered(one, one_forward(), MK2), MK2)[0].bytes_by_category["temporaries"]
        for one in (graph, ordered_for_memory(graph))
    ]
    assert held[1] < held[0] / 3
