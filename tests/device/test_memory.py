"""The memory pass: what is live when, addresses that do not overlap, and refusal of programs that do not fit."""

from dataclasses import replace

import numpy as np
import pytest

from tests.placed_graphs import lowered, one_forward, op, pipeline, sharded, tensor, training_graph
from torchipu.device.locations.uses import over_others
from torchipu.device.memory import addresses, assign_memory, tile_memory
from torchipu.device.memory.always import exchange_code_bytes
from torchipu.device.memory.liveness import Exchanged, Liveness
from torchipu.device.memory.peaks import Occupancy
from torchipu.errors import OutOfTileMemoryError
from torchipu.ir.graph import Graph
from torchipu.ir.mapping import TileMapping
from torchipu.ir.program import Execute, Gather, HostCopy, If, Repeat, Sequence
from torchipu.ir.types import Role, Source
from torchipu.ir.verify import verify_executable
from torchipu.target import lookup_target

MK2 = lookup_target("mk2")
FULL = MK2.num_tiles * 32  # 128 bytes of floats on each tile


def chain(length):
    x = tensor("x", FULL, role=Role.INPUT)
    ops, value = [], x
    for number in range(length):
        result = tensor(f"h{number}", FULL)
        ops.append(op("add", (value, value), result))
        value = result
    return Graph("chain", (x,), (value,), tuple(ops))


def test_chain_of_elementwise_ops_needs_room_for_one_value_whatever_its_length():
    (short,) = tile_memory(lowered(chain(3), one_forward(), MK2), MK2)
    (long,) = tile_memory(lowered(chain(50), one_forward(), MK2), MK2)
    assert short.bytes_by_category["temporaries"] == long.bytes_by_category["temporaries"] == 128
    assert long.bytes_by_category["streams and links"] == 128


def of_ops(*ops):
    """Return the program of ops on `x`, which is streamed in, whose last result is the graph's."""
    x = tensor("x", FULL, role=Role.INPUT)
    values, made = {"x": x}, []
    for name, kind, *operands in ops:
        values[name] = tensor(name, FULL)
        target = f"aten.{kind}.{'Tensor' if len(operands) > 1 else 'default'}"
        made.append(replace(op(kind, tuple(values[one] for one in operands), values[name]), target=target))
    return lowered(Graph("ops", (x,), (values[ops[-1][0]],), tuple(made)), one_forward(), MK2)


def places_of(executable):
    """Return the variable on whose bytes each one lies, and check that they have the same addresses."""
    placed = assign_memory(executable, MK2, allow_overflow=False)
    below = {life.variable.name: life.over.name for life in Liveness(executable).lifetimes if life.over is not None}
    for result, operand in below.items():
        assert placed.addresses[result] == placed.addresses[operand]
    return below


def test_result_takes_the_place_of_an_operand_that_its_op_is_the_last_to_read():
    assert places_of(of_ops(("a", "neg", "x"), ("b", "relu", "a"), ("c", "add", "b", "a"))) == {"c": "b"}
    assert places_of(of_ops(("a", "neg", "x"), ("b", "relu", "a"), ("c", "neg", "b"))) == {"b": "a", "c": "b"}


def test_streams_and_what_is_read_again_keep_their_places():
    executable = of_ops(("a", "neg", "x"), ("b", "relu", "a"), ("c", "relu", "a"), ("d", "add", "a", "x"))
    below = places_of(executable)
    assert "b" not in below
    assert below["d"] == "a"
    assert "x" not in below.values()


def test_softmax_lies_on_its_operand_and_reductions_do_not():
    x, y, z = tensor("x", 64, 64, role=Role.INPUT), tensor("y", 64, 64), tensor("z", 64, 64)
    softmax = replace(op("softmax", (y,), z), target="aten._softmax.default", operands=("self",), attrs={"dim": -1})
    ops = (op("neg", (x,), y), softmax)
    assert places_of(lowered(Graph("rows", (x,), (z,), ops), one_forward(), MK2)) == {"z": "y"}


def test_weights_states_and_accumulators_are_always_live():
    (memory,) = tile_memory(lowered(training_graph(1, FULL, layers=10), pipeline(1, 2), MK2, micro_batches=2), MK2)
    assert memory.bytes_by_category["weights"] == 20 * 128
    assert memory.bytes_by_category["optimiser state"] == 10 * 128


def test_off_chip_optimiser_state_is_on_the_tile_during_the_update_only():
    graph = training_graph(1, FULL, layers=10)
    on_chip, off_chip = (
        tile_memory(lowered(graph, pipeline(1, 2), MK2, micro_batches=2, off_chip_state=off), MK2)[0]
        for off in (False, True)
    )
    assert off_chip.bytes_by_category["optimiser state"] == 0
    assert off_chip.total_bytes <= on_chip.total_bytes - 10 * 128 + 128


def test_deeper_stash_takes_more_memory_on_earlier_stages():
    memory = tile_memory(lowered(training_graph(4, FULL, layers=3), pipeline(4, 8), MK2, micro_batches=8), MK2)
    # Two inner values a stage: 2 (S - 1 - i) of each are held all the time beside the one in work.
    assert [one.bytes_by_category["stashes"] for one in memory] == [6 * 2 * 128, 4 * 2 * 128, 2 * 2 * 128, 0]


def test_what_a_stash_holds_at_the_peak_lacks_the_one_in_work_where_none_is():
    executable = lowered(training_graph(4, FULL, layers=3), pipeline(4, 8), MK2, micro_batches=8)
    heavy = changed(executable, temporary_bytes=5_000)
    updates = {name: body for name, body in heavy.functions.items() if name.startswith("U")}
    memory = tile_memory(replace(executable, functions={**executable.functions, **updates}), MK2)[0]
    assert dict(memory.largest) | {"(vertex temporaries)": 5_000, "x": 7 * 128, "h0.0": 6 * 128} == dict(memory.largest)


def test_code_is_counted_once_for_each_codelet_and_control_once_for_each_distinct_set():
    (memory,) = tile_memory(lowered(chain(40), one_forward(), MK2), MK2)
    assert memory.bytes_by_category["code"] == 258
    assert memory.bytes_by_category["control"] == MK2.control_bytes_per_compute_set
    assert memory.bytes_by_category["vertex state"] == MK2.state_bytes_per_compute_set
    assert memory.bytes_by_category["stacks"] == 6 * 512 + 128


def changed(executable, **fields):
    """Return a program all of whose vertices have other fields."""

    def walk(program):
        match program:
            case Sequence(body=body):
                return Sequence(tuple(walk(part) for part in body))
            case Execute(compute_set=compute_set):
                groups = tuple(replace(group, **fields) for group in compute_set.groups)
                return Execute(replace(compute_set, groups=groups))
        return program

    return replace(executable, functions={name: walk(body) for name, body in executable.functions.items()})


def test_a_branch_holds_what_it_uses_while_it_runs():
    executable = of_ops(("a", "neg", "x"), ("b", "relu", "a"), ("c", "add", "b", "a"), ("d", "neg", "c"))
    condition = next(variable for variable in executable.variables if variable.name == "x")
    asked = op("neg", (tensor("x"),), tensor("asked"))
    for inside in (lambda body: (body, Sequence(())), lambda body: (Sequence(()), body)):
        functions = {name: If(condition, *inside(body), asked) for name, body in executable.functions.items()}
        lives = Liveness(replace(executable, functions=functions)).lifetimes
        plain = Liveness(executable).lifetimes
        assert [life.variable for life in lives] == [life.variable for life in plain]
        assert [(life.begin, life.end, life.always) for life in lives if life.variable is not condition] == [
            (life.begin, life.end, life.always) for life in plain if life.variable is not condition
        ]


def test_what_a_branch_asks_for_is_held_until_then():
    executable = of_ops(("a", "neg", "x"), ("b", "relu", "a"), ("c", "neg", "b"))
    a = next(variable for variable in executable.variables if variable.name == "a")
    branch = If(a, Sequence(()), Sequence(()), op("neg", (tensor("x"),), tensor("asked")))
    functions = {name: Sequence((body, branch)) for name, body in executable.functions.items()}
    trace = Liveness(replace(executable, functions=functions)).trace
    assert Liveness(executable).trace.last[a] < trace.last[a] == trace.time


def test_what_is_there_before_a_loop_is_held_through_all_of_its_trips():
    executable = of_ops(("a", "neg", "x"), ("b", "relu", "a"), ("c", "neg", "b"), ("d", "relu", "c"))
    functions = {name: Sequence((body, Repeat(2, body))) for name, body in executable.functions.items()}
    lives = Liveness(replace(executable, functions=functions))
    (a,) = (life for life in lives.lifetimes if life.variable.name == "a")
    assert lives.trace.last[a.variable] < a.end == lives.trace.time


def test_what_vertices_gather_is_held_and_its_exchange_has_code():
    executable = of_ops(("a", "neg", "x"), ("b", "relu", "a"))
    a, b = (next(one for one in executable.variables if one.name == name) for name in "ab")
    gathers = Sequence((Gather((a,), 512, 8, 3), Gather((b,), 512, 8, 3), Gather((b,), 256, 8, 3)))
    functions = {name: Sequence((body, gathers)) for name, body in executable.functions.items()}
    trace = Liveness(replace(executable, functions=functions)).trace
    assert {Exchanged(0, 512, 8, 3): (a,), Exchanged(0, 256, 8, 3): (b,)}.items() <= trace.exchanges.items()
    assert trace.last[a] + 2 == trace.last[b] == trace.time


def test_equal_sets_of_ops_that_are_not_the_same_are_controlled_once():
    executable = lowered(chain(40), one_forward(), MK2)
    ones = [changed(executable, work={"elements": count}) for count in (32, 64)]
    assert all(
        tile_memory(one, MK2)[0].bytes_by_category["control"] == MK2.control_bytes_per_compute_set for one in ones
    )


def test_without_outlining_each_set_and_each_exchange_has_its_own_code():
    executable = lowered(chain(4), one_forward(), MK2)
    x = executable.variables[0]
    gathers = Sequence((Gather((x,), 512, 8, 3), Gather((x,), 512, 8, 3)))
    functions = {name: Sequence((body, gathers)) for name, body in executable.functions.items()}
    outlined = replace(executable, functions=functions)
    shared, own = (
        tile_memory(replace(outlined, outlined=is_outlined), MK2)[0].bytes_by_category for is_outlined in (True, False)
    )
    assert own["control"] == 4 * shared["control"] == 4 * MK2.control_bytes_per_compute_set
    assert own["vertex state"] == 4 * shared["vertex state"] == 4 * MK2.state_bytes_per_compute_set
    assert own["exchange code"] == 2 * shared["exchange code"] > 0
    assert own["code"] == shared["code"]


def test_partials_of_the_matrix_unit_leave_a_gap_below_interleaved_memory():
    executable = changed(
        lowered(chain(3), one_forward(), MK2), writes_interleaved=True, temporary_bytes=1000, partial_bytes=600,
    )
    (memory,) = tile_memory(executable, MK2)
    assert memory.total_bytes == MK2.code_region_bytes + 600
    assert sum(memory.bytes_by_category.values()) == memory.total_bytes
    assert memory.bytes_by_category["gap"] > 200_000
    assert 4_000 < memory.occupied_bytes < 6_000  # stacks, code and values


def test_what_does_not_fit_below_interleaved_memory_closes_the_gap():
    room = 10_000
    small = replace(MK2, code_region_bytes=room)
    plain = lowered(chain(3), one_forward(), MK2)
    (without,) = tile_memory(changed(plain, temporary_bytes=room), small)
    (memory,) = tile_memory(
        changed(plain, writes_interleaved=True, temporary_bytes=room + 600, partial_bytes=600), small,
    )
    assert memory.bytes_by_category["gap"] == 0
    assert memory.total_bytes == without.total_bytes + 600


@pytest.mark.parametrize(("ordinary", "interleaved", "filled"), [
    ([10, 7], [0, 0], [10, 7]), ([10, 7], [0, 1], [10, 101]),
    ([150, 7], [3, 0], [153, 7]), ([150, 7], [0, 2], [150, 102]),
])
def test_only_tiles_that_hold_interleaved_memory_are_filled_up_to_it(ordinary, interleaved, filled):
    here = Occupancy(0, 1, None, np.array(ordinary), np.array(interleaved), region=100)
    assert here.filled.tolist() == filled
    assert here.occupied.tolist() == [one + other for one, other in zip(ordinary, interleaved, strict=True)]
    assert here.most_filled >= max(filled)


def test_nothing_is_said_to_be_filled_further_than_it_is_where_no_tile_holds_interleaved_memory():
    assert Occupancy(0, 1, None, np.array([10, 7]), np.array([0, 0]), region=100).most_filled == 10


def test_temporary_memory_of_vertices_is_named_among_the_largest_of_their_tile():
    plain = lowered(chain(3), one_forward(), MK2)
    assert "(vertex temporaries)" not in dict(tile_memory(plain, MK2)[0].largest)
    (memory,) = tile_memory(changed(plain, temporary_bytes=1000), MK2)
    assert memory.largest[0] == ("(vertex temporaries)", 1000)
    assert set(memory.largest[1:]) <= {("x", 128), ("h0", 128), ("h1", 128), ("h2", 128)}


def test_a_program_that_computes_nothing_is_as_full_as_its_streams():
    executable = lowered(chain(3), one_forward(), MK2)
    (memory,) = tile_memory(replace(executable, functions=dict.fromkeys(executable.functions, Sequence(()))), MK2)
    assert (memory.at, memory.bytes_by_category["temporaries"]) == ("", 0)
    assert memory.total_bytes == sum(memory.bytes_by_category.values())


def test_the_peak_is_where_it_is_reached_first():
    short, long = (lowered(chain(length), one_forward(), MK2) for length in (3, 50))
    assert [tile_memory(one, MK2)[0].at for one in (short, long)] == ["add.h0.0"] * 2
    apart = [changed(one, writes_interleaved=True) for one in (short, long)]
    assert [tile_memory(one, MK2)[0].at for one in apart] == ["add.h1.0"] * 2, "operand and result, for the first time"


def test_what_the_matrix_unit_writes_counts_for_the_same_in_either_memory():
    plain = lowered(training_graph(2, FULL, layers=3), pipeline(2, 4), MK2, micro_batches=4)
    ordinary, interleaved = (
        tile_memory(one, MK2)[0].bytes_by_category for one in (plain, changed(plain, writes_interleaved=True))
    )
    assert interleaved["stashes"] == ordinary["stashes"] > 0
    assert interleaved["temporaries"] <= ordinary["temporaries"]


def test_results_of_the_matrix_unit_lie_in_interleaved_memory():
    executable = changed(lowered(chain(3), one_forward(), MK2), writes_interleaved=True)
    (memory,) = tile_memory(executable, MK2)
    assert memory.total_bytes == MK2.code_region_bytes + 2 * 128
    addresses = assign_memory(executable, MK2, allow_overflow=False).addresses
    assert addresses["x"][1] < MK2.code_region_bytes
    assert min(addresses[name][0] for name in ("h0", "h1", "h2")) == MK2.code_region_bytes


def test_states_that_the_matrix_unit_adds_to_keep_their_places():
    executable = lowered(training_graph(1, FULL, layers=2), pipeline(1, 2), MK2, micro_batches=2)
    written = Liveness(changed(executable, writes_interleaved=True)).trace.interleaved
    assert written
    assert not [variable.name for variable in written if variable.role.is_state]


def test_exchange_code_grows_with_bursts_and_fragments_up_to_a_limit():
    assert exchange_code_bytes(256, 1) == 4 + 12
    assert exchange_code_bytes(2560, 10) == 40 + 120
    assert exchange_code_bytes(10**6, 10**6) == 7_000


@pytest.mark.parametrize(("received", "bursts"), [(64, 1), (600, 2), (100_000, 2)])
def test_a_tile_sends_what_it_holds_at_most_however_much_another_receives(received, bursts):
    executable = lowered(chain(4), one_forward(), MK2)
    held = executable.variables[0]
    wide = replace(held, mapping=TileMapping(((0, 0, 128),)))  # 512 bytes
    functions = {name: Sequence((Gather((wide,), 512, received, 3),)) for name in executable.functions}
    (memory,) = tile_memory(replace(executable, functions=functions, variables=(wide,)), MK2)
    assert memory.bytes_by_category["exchange code"] == 4 * bursts + 12 * 3


@pytest.mark.parametrize("schedule", [pipeline(2, 4), sharded(2, 4)])
@pytest.mark.parametrize("elements", [64, 5_000, FULL + 2])
def test_variables_live_together_on_a_tile_do_not_overlap(schedule, elements):
    executable = lowered(training_graph(2, elements, layers=6), schedule, MK2, micro_batches=4)
    placed = assign_memory(executable, MK2, allow_overflow=False)
    verify_executable(placed, num_tiles=MK2.num_tiles)
    lives = Liveness(executable).lifetimes
    addresses = placed.addresses
    tiles = {life.variable.name: set(life.variable.mapping.tiles) for life in lives}
    checked = 0
    for index, one in enumerate(lives):
        for other in lives[index + 1 :]:
            together = (
                one.always or other.always or one.variable.depth > 1 or other.variable.depth > 1
                or (one.begin <= other.end and other.begin <= one.end)
            )
            shared = tiles[one.variable.name] & tiles[other.variable.name]
            if one.variable.ipu == other.variable.ipu and together and shared:
                (begin, end), (low, high) = addresses[one.variable.name], addresses[other.variable.name]
                assert end <= low or high <= begin, (one.variable.name, other.variable.name)
                checked += 1
    assert checked > 100


def test_values_on_neighbouring_tiles_need_no_addresses_of_their_own():
    executable = of_ops(("a", "relu", "x"), ("b", "neg", "x"), ("c", "add", "a", "b"))
    tiles = {"a": 0, "b": 1}
    changes = {
        one: replace(one, mapping=TileMapping(((tiles[one.name], 0, one.num_elements),)))
        for one in executable.variables if one.name in tiles
    }
    apart = replace(
        executable, variables=tuple(changes.get(one, one) for one in executable.variables),
        functions={name: over_others(body, changes) for name, body in executable.functions.items()},
    )
    addresses = assign_memory(apart, MK2, allow_overflow=False).addresses
    assert addresses["a"] == addresses["b"]


def test_addresses_leave_room_for_code_and_stay_near_the_peak():
    executable = lowered(training_graph(1, FULL, layers=30), pipeline(1, 2), MK2, micro_batches=2)
    placed = assign_memory(executable, MK2, allow_overflow=False)
    (memory,) = tile_memory(executable, MK2)
    assert min(begin for begin, _ in placed.addresses.values()) >= MK2.stack_bytes + 258
    assert max(end for _, end in placed.addresses.values()) <= 1.05 * memory.total_bytes
    assert set(placed.addresses) == {one.name for one in executable.variables}


def test_program_that_does_not_fit_is_refused_with_the_largest_variables_and_remedies():
    small = replace(MK2, tile_memory_bytes=5_000)
    executable = lowered(training_graph(2, FULL, layers=5), pipeline(2, 4), small, micro_batches=4)
    with pytest.raises(OutOfTileMemoryError) as caught:
        assign_memory(executable, small, allow_overflow=False)
    error = caught.value
    fullest = max(tile_memory(executable, small), key=lambda memory: memory.total_bytes)
    assert (error.ipu, error.tile, error.available_bytes) == (fullest.ipu, fullest.tile, 5_000)
    assert error.needed_bytes == fullest.total_bytes > 5_000
    text = str(error)
    assert text.startswith(f"tile {error.tile} of ipu {error.ipu} needs {error.needed_bytes} B")
    assert "a tile of Graphcore Mk2 GC200 has 5000 B" in text.split("\n")[0]
    assert sum(line.strip().startswith("%") for line in text.split("\n")) == 5
    remedies = ("more IPUs", "recomputation", "off-chip optimiser state", "micro-batch")
    assert all(remedy in error.remedy for remedy in remedies)


def test_variables_that_fill_a_tile_come_with_the_line_that_makes_them():
    graph = chain(3)
    ops = tuple(
        replace(one, source=Source("model.py", number, f"line {number}")) for number, one in enumerate(graph.ops, 1)
    )
    small = replace(MK2, tile_memory_bytes=3_400)
    with pytest.raises(OutOfTileMemoryError) as caught:
        assign_memory(lowered(replace(graph, ops=ops), one_forward(), small), small, allow_overflow=False)
    named = {line.split()[0]: line for line in caught.value.detail.split("\n") if line.startswith("%")}
    assert named["%x"].endswith("B  model.py:1  line 1")
    assert named["%h0"].endswith("B  model.py:1  line 1")


def test_program_that_does_not_fit_is_placed_when_overflow_is_allowed():
    small = replace(MK2, tile_memory_bytes=5_000)
    executable = lowered(training_graph(2, FULL, layers=5), pipeline(2, 4), small, micro_batches=4)
    placed = assign_memory(executable, small, allow_overflow=True)
    assert max(end for _, end in placed.addresses.values()) > 5_000


def test_code_that_overflows_its_region_is_refused_though_the_tile_has_room():
    small = replace(MK2, code_region_bytes=257)
    executable = lowered(chain(2), one_forward(), small)
    with pytest.raises(OutOfTileMemoryError, match=r"tile 0 of ipu 0 needs 258 B of code.*region of 257 B") as caught:
        assign_memory(executable, small, allow_overflow=False)
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (258, 257)
    assert "more IPUs" in str(caught.value)
    assert assign_memory(executable, small, allow_overflow=True).addresses
    assign_memory(executable, replace(small, code_region_bytes=258), allow_overflow=False)


def streaming_beside(executable):
    """Return a program whose streams go through IO tiles."""
    return replace(executable, functions={
        name: Sequence(tuple(
            replace(part, overlap="accumulation_loop") if isinstance(part, HostCopy) else part for part in function.body
        )) for name, function in executable.functions.items()
    })


def test_io_tiles_hold_what_is_loaded_beside_what_is_computed():
    executable = lowered(chain(3), one_forward(), MK2)
    (memory,) = tile_memory(streaming_beside(executable), MK2, io_tiles=4)
    assert memory.tile == MK2.num_tiles
    assert memory.bytes_by_category["streams and links"] == 2 * 2 * FULL * 4 // 4  # input and result
    assert [name for name, _ in memory.largest] == ["x", "h2"]
    (waiting,) = tile_memory(executable, MK2, io_tiles=4)
    assert waiting.tile < MK2.num_tiles


def test_io_tiles_that_are_too_few_are_refused():
    executable = streaming_beside(lowered(chain(3), one_forward(), MK2))
    small = replace(MK2, tile_memory_bytes=50_000, code_region_bytes=20_000)
    assert assign_memory(executable, small, allow_overflow=False, io_tiles=32).addresses
    with pytest.raises(OutOfTileMemoryError, match="transfers of its IO tiles") as caught:
        assign_memory(executable, small, allow_overflow=False, io_tiles=8)
    assert caught.value.tile == small.num_tiles
    assert "%x" in caught.value.detail


@pytest.mark.parametrize(("needed", "expected"), [(8, 16), (16, 40), (24, 72)])
def test_the_lowest_gap_may_be_filled_to_the_last_byte(needed, expected):
    low, high = np.array([56, 0, 24]), np.array([72, 16, 40])
    assert addresses._lowest_gap(low, high, 0, needed) == expected
