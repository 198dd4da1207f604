"""Systems: their numbers against what vendors say, what they hold, and the time of sums over their replicas."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import torchipu
from tests.target.small import data, trained
from torchipu.compiler import compile_graph
from torchipu.device.cost.exchange import (
    all_reduce_cycles,
    collective_cycles,
    hierarchy_cycles,
    link_cycles,
    ring_cycles,
)
from torchipu.errors import PlacementError
from torchipu.options import Options
from torchipu.report.recorder import recording
from torchipu.target import TARGETS, lookup_target

SYSTEMS = [name for name, target in TARGETS.items() if target.is_system]
CABLE = 512e9 / 8 * 0.85  # bytes/s from a machine to the next: 512 Gb/s, at the efficiency of a link


# ---------------------------------------------------------------------- numbers
# Vendor data sheets: machines of four IPUs, of which IPU-Links join those of a POD64; PFLOP/s of halves.
@pytest.mark.parametrize(("name", "chip", "machines", "linked_machines", "petaflops"), [
    ("pod4", "mk2", 1, 1, 1.0), ("pod16", "mk2", 4, 4, 4.0), ("pod64", "mk2", 16, 16, 16.0),
    ("pod128", "mk2", 32, 16, 32.0), ("pod256", "mk2", 64, 16, 64.0),
    ("bow-2000", "bow", 1, 1, 1.4), ("bow-pod16", "bow", 4, 4, 5.6), ("bow-pod64", "bow", 16, 16, 22.4),
    ("bow-pod128", "bow", 32, 16, 44.8), ("bow-pod256", "bow", 64, 16, 89.6),
])
def test_a_system_has_the_ipus_and_the_peak_of_its_data_sheet(name, chip, machines, linked_machines, petaflops):
    system = lookup_target(name)
    assert (system.num_ipus, system.ipus_per_machine) == (4 * machines, 4)
    assert system.linked_ipus == 4 * linked_machines
    peak = 2 * system.clock_hz * system.num_tiles * system.amp_macs_half_half * system.num_ipus / 1e15
    assert peak == pytest.approx(petaflops, rel=0.01)
    as_a_chip = replace(
        system, name=chip, title=TARGETS[chip].title, num_ipus=64, linked_ipus=64, is_system=False,
    )
    assert as_a_chip == TARGETS[chip], "a system differs from its chip in how many there are"


def test_a_system_of_256_is_there():
    assert max(TARGETS[name].num_ipus for name in SYSTEMS) == 256


@pytest.mark.parametrize("name", SYSTEMS)
def test_links_from_a_machine_to_the_next_carry_512_gigabits_a_second(name):
    assert lookup_target(name).machine_link_bytes_per_s == pytest.approx(CABLE, rel=0.08)  # links are of 128 Gibit/s


def test_chips_are_what_they_were():
    assert {name: (TARGETS[name].num_ipus, TARGETS[name].linked_ipus) for name in ("mk1", "mk2", "bow", "c600")} == {
        "mk1": (64, 64), "mk2": (64, 64), "bow": (64, 64), "c600": (8, 8),
    }


# ---------------------------------------------------------------------- what they hold
def test_replicas_that_a_system_holds_run_and_the_report_names_it():
    summary = trained("pod16", replicas=16).profile.summary()
    assert summary.startswith("machine              Graphcore IPU-POD16 of Mk2 GC200, 16 replicas of 1 IPU (modelled)")


@pytest.mark.parametrize(("target", "replicas", "remedy"), [
    ("pod16", 17, "set replicas to 16 or less, or target to 'pod64'"),
    ("bow-2000", 65, "set replicas to 4 or less, or target to 'bow-pod128'"),
    ("mk2", 65, "set replicas to 64 or less, or target to 'pod128'"),
    ("bow-pod256", 257, "set replicas to 256 or less"),
    ("pod4,num_tiles=736", 5, "set replicas to 4 or less"),
])
def test_replicas_that_a_system_cannot_hold_are_refused(target, replicas, remedy):
    has = lookup_target(target).num_ipus
    with pytest.raises(PlacementError) as caught:
        trained(target, replicas=replicas)
    assert str(caught.value) == (
        f"{replicas} replicas of the model need {replicas} IPUs at least, but {target} has {has}\n  do      {remedy}"
    )


def test_replicas_of_several_processes_share_the_ipus_of_a_system():
    with recording() as programs:
        trained("pod16", replicas=4)
    graph = programs[0].graph
    bare = replace(graph, ops=tuple(replace(op, placement=None) for op in graph.ops))
    options = Options(replicas=4)
    compile_graph(bare, options, lookup_target("pod16"), instances=4)
    with pytest.raises(PlacementError, match=r"20 replicas of the model \(5 processes with 4 each\) need 20 IPUs at "
                                             r"least, but pod16 has 16\n +do +set replicas to 3 or less, or target to "
                                             r"'pod64'"):
        compile_graph(bare, options, lookup_target("pod16"), instances=5)
    compile_graph(bare, options, lookup_target("mk2"), instances=32)  # each process has a machine of its own


def test_a_pipeline_that_a_system_cannot_hold_names_a_larger_one():
    class Parts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for ipu, layer in zip((0, 5), self.layers, strict=True):
                with torchipu.Block(f"B{ipu}", ipu_id=ipu):
                    x = layer(x)
            return x

    step = torchipu.InferenceStep(Parts(), options=Options(target="bow-2000"))
    with pytest.raises(PlacementError, match=r"block 'B5' asks for ipu 5, but bow-2000 has ipus 0 to 3\n(.*\n)*"
                                             r" +do +use an ipu_id that is there, or set target to 'bow-pod16'"):
        step(data()[0][:, :4])


# ---------------------------------------------------------------------- sums over replicas
@pytest.mark.parametrize("name", [*SYSTEMS, "mk1", "mk2", "bow", "c600"])
@pytest.mark.parametrize("ipus_per_replica", [1, 2, 4, 8])
@pytest.mark.parametrize("num_bytes", [4, 10_000, 1_000_000, 300_000_000])
def test_more_replicas_never_add_up_sooner(name, ipus_per_replica, num_bytes):
    target = lookup_target(name)
    times = [all_reduce_cycles(target, num_bytes, n, ipus_per_replica) for n in range(1, 260)]
    assert times == sorted(times)
    assert times[0] == 0 < times[1]


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("replicas", [2, 4, 16, 64])
def test_more_bytes_never_add_up_sooner(name, replicas):
    target = lookup_target(name)
    times = [all_reduce_cycles(target, 10**power, replicas) for power in range(9)]
    assert times == sorted(times)


def test_a_hierarchy_adds_up_few_bytes_sooner_and_a_ring_many():
    pod = lookup_target("pod64")
    assert hierarchy_cycles(pod, 1000, 64) < ring_cycles(pod, 1000, 64)
    assert hierarchy_cycles(pod, 10**8, 64) > ring_cycles(pod, 10**8, 64)
    for num_bytes in (1000, 10**8):
        both = (hierarchy_cycles(pod, num_bytes, 64), ring_cycles(pod, num_bytes, 64))
        assert all_reduce_cycles(pod, num_bytes, 64) == min(both)


def test_a_hierarchy_has_fewer_steps_and_shares_the_links_between_machines():
    pod, num_bytes = lookup_target("pod16"), 10**6
    # Within a machine 3 / 4 of the bytes go out twice over two links; then twice 3 / 4 of a quarter, over a quarter of
    # the four links to the next machine.
    seconds = num_bytes * 1.5 / (2 * 128 * 2**30 / 8 * 0.85) + num_bytes / 4 * 1.5 / (128 * 2**30 / 8 * 0.85)
    expected = seconds * pod.clock_hz + (6 + 6) * pod.ipu_sync_cycles
    assert hierarchy_cycles(pod, num_bytes, 16) == pytest.approx(expected, abs=2)
    ring = num_bytes * 2 * 15 / 16 / (2 * 128 * 2**30 / 8 * 0.85) * pod.clock_hz + 30 * pod.ipu_sync_cycles
    assert ring_cycles(pod, num_bytes, 16) == pytest.approx(ring, abs=2)


def test_within_a_machine_there_is_but_one_way():
    pod = lookup_target("pod64")
    assert hierarchy_cycles(pod, 10**6, 4) == ring_cycles(pod, 10**6, 4) == all_reduce_cycles(TARGETS["mk2"], 10**6, 4)


def test_replicas_of_a_machine_each_share_the_links_between_machines():
    pod, chip, num_bytes = lookup_target("pod64"), TARGETS["mk2"], 10**8
    for_each, steps = ring_cycles(pod, num_bytes, 16, 4), 30 * pod.ipu_sync_cycles
    # Four rings over four links, of which each had two without the others.
    assert for_each - steps == pytest.approx(2 * (ring_cycles(chip, num_bytes, 16, 4) - steps), rel=1e-6)


def test_pods_add_up_through_gateways():
    pod, num_bytes = lookup_target("pod256"), 100 << 20
    within, over_all = (all_reduce_cycles(pod, num_bytes, n) for n in (64, 256))
    # Each of the 64 replicas of a pod has a part of the sums, of which 3 / 4 go out twice at 6.25 GB/s.
    seconds = num_bytes / 64 * 2 * 3 / 4 / 6.25e9
    assert over_all - within == pytest.approx(seconds * pod.clock_hz + 6 * pod.ipu_sync_cycles, abs=2)
    broadcast = collective_cycles(pod, "broadcast", num_bytes, 256) - 255 * pod.ipu_sync_cycles
    assert broadcast == pytest.approx(num_bytes / 6.25e9 * pod.clock_hz, abs=2)
    assert collective_cycles(pod, "broadcast", 100, 64) == link_cycles(pod, 100) + 63 * pod.ipu_sync_cycles


@pytest.mark.parametrize("replicas", [2, 16, 64, 256])
def test_a_chip_keeps_its_one_ring(replicas):
    chip, num_bytes = TARGETS["mk2"], 10**6
    linked, pods = min(replicas, 64), -(-replicas // 64)
    expected = ring_cycles(chip, num_bytes, linked)
    if pods > 1:
        seconds = num_bytes / 64 * 2 * (pods - 1) / pods / 6.25e9
        expected += seconds * chip.clock_hz + 2 * (pods - 1) * chip.ipu_sync_cycles
    assert all_reduce_cycles(chip, num_bytes, replicas) == pytest.approx(expected, abs=1)
