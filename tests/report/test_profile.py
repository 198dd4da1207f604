"""Profiles: figures that follow from the program, and their text and JSON."""

import json

import pytest

from tests.placed_graphs import FORWARD, lowered, one_forward, op, pipeline, tensor, training_graph
from torchipu.device.cost import estimate
from torchipu.ir.graph import Graph, Op, Placement
from torchipu.ir.types import Role
from torchipu.report import format_summary, profile_of, write_json
from torchipu.target import lookup_target

MK2 = lookup_target("mk2")


def profile(graph, schedule, micro_batches=1, **options):
    executable = lowered(graph, schedule, MK2, micro_batches=micro_batches, **options)
    return profile_of(executable, estimate(executable, MK2, schedule), MK2)


def small():
    x, w = tensor("x", 8, 16, role=Role.INPUT), tensor("w", 8, 16, role=Role.WEIGHT)
    a, total = tensor("a", 8, 16), tensor("total")
    return Graph("small", (x, w), (total,), (op("add", (x, w), a), op("sum", (a,), total)))


def test_summary_of_a_small_program():
    # The addition: 120 + 239. Four tiles reduce 32 values each: 120 + 337. One joins them: 120 + 17 + 249.
    # Streams: 600 + 218 in, 600 + 2 out. Tile 0 holds 3200 of stacks, 858 of code, 3 x 36 of control, 52 of exchange
    # code, 128 each of %x, %w and %a, 4 of the result, 4 of its own partial and 16 of partials to join.
    assert profile(small(), one_forward()).summary() == """\
machine              Graphcore Mk2 GC200, 1 IPU (modelled)
inference run        2,622 cycles, 2.0 us (1 x 8 samples)
throughput           4,057,971 samples/s
busiest tile         4,626 B of 638,976 B (0.7%), tile 0 of ipu 0
pipeline efficiency  ipu0 100.0%"""


def test_time_and_throughput_follow_from_cycles_and_clock():
    found = profile(training_graph(2, 40), pipeline(2, 10), 10, iterations=7)
    assert found.is_training
    assert found.microseconds_per_update == pytest.approx(found.cycles_per_update / 1330)
    assert found.micro_batch_size == 40
    assert found.samples_per_second == pytest.approx(400 / (found.microseconds_per_update * 1e-6))
    assert found.device_iterations == 7


def test_codelets_and_supersteps_are_counted_over_all_runs():
    found = profile(training_graph(2, 64), pipeline(2, 4), 4)
    uses = {use.name: use for use in found.codelets}
    # Forward 2, loss gradient 1, backward 2, accumulation 2, update 2 x 2.
    assert uses["test::Add"].compute_sets == 11
    assert uses["test::Add"].cycles == (7 * 4 + 4) * (11 + 6 * (29 + 3 * 3))
    assert found.supersteps_per_update == 7 * 4 + 4 + 4 * (found.num_compute_sets - 11)


def test_generic_ops_are_listed_with_their_count():
    x, y, z = tensor("x", 64, role=Role.INPUT), tensor("y", 64), tensor("z", 64)
    place = Placement("B0", 0, 0, FORWARD)
    odd = [
        Op("generic", (a,), (b,), target="aten.odd.default", operands=("self",), placement=place)
        for a, b in ((x, y), (y, z))
    ]
    found = profile(Graph("g", (x,), (z,), tuple(odd)), one_forward())
    assert [(one.target, one.count) for one in found.generic_ops] == [("aten.odd.default", 2)]
    assert "generic ops          2: aten.odd.default" in found.summary()


def test_full_text_holds_the_summary_and_a_row_for_each_ipu():
    found = profile(training_graph(3, 500), pipeline(3, 6), 6)
    text = found.text()
    assert text.startswith(found.summary())
    tables = dict(part.split("\n", 1) for part in text.split("\n\n")[1:])
    cycles = tables["cycles of an iteration by IPU"].split("\n")
    assert [row.split()[0] for row in cycles[1:]] == ["ipu0", "ipu1", "ipu2"]
    assert cycles[0].split() == ["compute", "exchange", "sync", "link", "all-reduce", "host", "idle"]
    memory = tables["memory of the fullest tile by IPU, bytes"].split("\n")
    assert memory[1].split()[2] == f"{found.memory_by_ipu[0].total_bytes:,}"
    assert len({row.index("ipu") for row in cycles[1:]}) == 1


def test_text_is_the_same_for_the_same_program():
    first, second = (profile(training_graph(2, 64), pipeline(2, 4), 4).text() for _ in range(2))
    assert first == second


def test_json_holds_every_figure_and_a_version(tmp_path):
    found = profile(training_graph(2, 64), pipeline(2, 4), 4)
    path = tmp_path / "folder" / "profile.json"
    write_json(found, path)
    read = json.loads(path.read_text())
    assert (read["format"], read["version"]) == ("torchipu.profile", 1)
    assert read["cycles_per_update"] == found.cycles_per_update
    assert read["memory_by_ipu"][1]["bytes_by_category"] == found.memory_by_ipu[1].bytes_by_category
    assert [one.name for one in path.parent.iterdir()] == ["profile.json"]
    assert format_summary(found) == str(found)
