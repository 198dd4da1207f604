"""Tensor locations: without effect on values, and visible in memory, transfers and cycles."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import torchipu
from torchipu import Options, TensorLocation
from torchipu.device.cost.exchange import all_reduce_cycles, streaming_cycles
from torchipu.errors import OptionsError
from torchipu.ir.program import AllReduce, Execute, HostCopy, Program, leaves_of
from torchipu.ir.types import Role
from torchipu.optim import LAMB, LARS
from torchipu.target import lookup_target

WIDTH, BATCH, ACCUMULATION = 128, 4, 4
OFF_CHIP = TensorLocation(on_chip=False)
MK2 = lookup_target("mk2")


class Layers(nn.Module):
    """Two blocks of two layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            with torchipu.Block(f"B{number // 2}", ipu_id=number // 2):
                x = torch.tanh(layer(x))
        with torchipu.Block("B1", ipu_id=1):
            return x.square().mean()


def trained(replicas: int = 1, **options: Any) -> tuple[torch.Tensor, list[torch.Tensor], torchipu.TrainStep]:
    """Train two updates with Adam; return losses, weights and the step."""
    model = Layers()
    given = {"execution": "sharded", "gradient_accumulation": ACCUMULATION // replicas, **options}
    step = torchipu.TrainStep(
        model, torch.optim.Adam(model.parameters()),
        Options(device_iterations=2, output_mode="all", replicas=replicas, verify=True, **given),
    )
    generator = torch.Generator().manual_seed(1)
    losses = step(torch.randn(2 * ACCUMULATION * BATCH, WIDTH, generator=generator))
    return losses, [parameter.detach() for parameter in model.parameters()], step


@pytest.fixture(scope="module")
def plain() -> tuple[torch.Tensor, list[torch.Tensor], torchipu.TrainStep]:
    return trained()


def transfers(step: torchipu.TrainStep, function: str) -> list[tuple[str, bool]]:
    """Return the names of what a function moves from and to Streaming Memory, and which way."""
    program = step.compiled.executable.functions[function]
    return [
        (one.stream.removeprefix("remote."), one.to_device) for one in leaves_of(program)
        if isinstance(one, HostCopy) and one.stream.startswith("remote.")
    ]


def always_bytes(step: torchipu.TrainStep) -> int:
    return max(memory.occupied_bytes for memory in step.profile.memory_by_ipu)


@pytest.mark.parametrize("options", [
    {"weight_location": OFF_CHIP}, {"accumulator_location": OFF_CHIP}, {"activation_location": OFF_CHIP},
    {"optimiser_state_location": OFF_CHIP}, {"offload_optimiser_state": True}, {"io_tiles": 64},
    {"optimiser_state_location": TensorLocation(on_chip=False, replicated_sharding=True), "replicas": 4},
    {"accumulator_location": TensorLocation(replicated_sharding=True, min_elements_sharding=1), "replicas": 2},
    {"io_tiles": 32, "overlap_inputs": "accumulation_loop", "overlap_outputs": "device_iteration_loop"},
    dict.fromkeys(("weight_location", "activation_location", "accumulator_location"), OFF_CHIP),
], ids=str)
def test_values_are_the_same_wherever_tensors_lie(options: dict[str, Any], plain: tuple[Any, ...]) -> None:
    losses, weights, _ = trained(**options)
    wanted = trained(options["replicas"]) if "replicas" in options else plain
    assert torch.equal(losses, wanted[0])
    assert all(map(torch.equal, weights, wanted[1]))


def test_weights_off_chip_come_in_for_each_leg_and_go_out_when_they_were_updated(plain: tuple[Any, ...]) -> None:
    _, _, step = trained(weight_location=OFF_CHIP)
    weights = [f"layers.{number}.{kind}" for number in (0, 1) for kind in ("weight", "bias")]
    assert sorted(transfers(step, "0F")) == sorted((name, True) for name in weights)
    # The backward needs the weight of the second layer only, for the gradient of its input.
    assert transfers(step, "0B") == [("layers.1.weight", True)]
    assert sorted(transfers(step, "U0")) == sorted((name, way) for name in weights for way in (True, False))
    assert not any(transfers(plain[2], name) for name in ("0F", "0B", "U0"))
    extra = step.compiled.cost.functions["0B"].cycles - plain[2].compiled.cost.functions["0B"].cycles
    assert extra == streaming_cycles(MK2, 4 * WIDTH * WIDTH) + MK2.ipu_sync_cycles


def test_accumulators_off_chip_come_and_go_with_every_micro_batch() -> None:
    _, _, step = trained(accumulator_location=OFF_CHIP)
    names = [f"acc.layers.{number}.{kind}" for number in (0, 1) for kind in ("weight", "bias")]
    assert sorted(transfers(step, "0B")) == sorted((name, way) for name in names for way in (True, False))


def test_activations_off_chip_go_out_in_the_forward_and_come_back_in_the_backward() -> None:
    options = {"execution": "pipelined", "recompute": "none"}
    _, _, step = trained(activation_location=OFF_CHIP, **options)
    _, _, on_chip = trained(**options)
    stored, loaded = transfers(step, "0F"), transfers(step, "0B")
    assert stored
    assert {name for name, _ in stored} == {name for name, _ in loaded}
    assert all(not way for _, way in stored)
    assert all(way for _, way in loaded)
    depths = [v.depth for v in on_chip.compiled.executable.variables if v.role is Role.ACTIVATION and v.ipu == 0]
    assert max(depths) == 3
    off = [v for v in step.compiled.executable.variables if v.off_chip and v.ipu == 0]
    assert {v.name for v in off} == {name for name, _ in stored}
    assert all(v.depth == 1 for v in off)


class Forked(nn.Module):
    """Three blocks: the second keeps what it is sent for its backward, and sends on what it keeps."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            with torchipu.Block(f"B{number}", ipu_id=number):
                x = torch.tanh(layer(x))
        with torchipu.Block("B2", ipu_id=2):
            return x.square().mean()


def forked(**options: Any) -> tuple[torch.Tensor, torchipu.TrainStep]:
    model = Forked()
    step = torchipu.TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.1),
        Options(gradient_accumulation=8, recompute="none", verify=True, **options),
    )
    return step(torch.randn(8 * BATCH, WIDTH, generator=torch.Generator().manual_seed(1))), step


def test_activations_that_cross_links_wait_off_chip_for_the_backward_too() -> None:
    loss, step = forked(activation_location=OFF_CHIP)
    plain_loss, plain_step = forked()
    assert torch.equal(loss, plain_loss)
    # What IPU 1 was sent goes out after its forward; what it makes stays for the copy to IPU 2, and goes out as well.
    out = {name for name, way in transfers(step, "1F") if not way}
    assert {name.endswith(".ipu1.stash") for name in out} == {True, False}
    assert {name for name, way in transfers(step, "1B") if way} == out
    assert not any(transfers(step, name) for name in step.compiled.executable.functions if name.endswith(".send"))
    crossing = {one.dst for one in leaves_of(step.compiled.executable.functions["0F.send"])}
    assert all(variable.depth == 1 and not variable.off_chip for variable in crossing)
    assert max(variable.depth for variable in plain_step.compiled.executable.variables if variable.ipu == 1) == 3
    assert step.profile.memory_by_ipu[1].occupied_bytes < plain_step.profile.memory_by_ipu[1].occupied_bytes
    assert step.compiled.cost.cycles > plain_step.compiled.cost.cycles


@pytest.mark.parametrize("name", ["weight", "accumulator", "optimiser_state"])
def test_what_is_off_chip_takes_less_tile_memory(name: str, plain: tuple[Any, ...]) -> None:
    _, _, step = trained(**{f"{name}_location": OFF_CHIP})
    assert always_bytes(step) < always_bytes(plain[2])
    assert step.compiled.cost.cycles > plain[2].compiled.cost.cycles


def test_small_tensors_stay_on_chip() -> None:
    _, _, step = trained(weight_location=TensorLocation(on_chip=False, min_elements_off_chip=WIDTH + 1))
    off = {variable.name for variable in step.compiled.executable.variables if variable.off_chip}
    assert off == {f"layers.{number}.weight" for number in range(4)}


def test_phased_execution_keeps_everything_off_chip_between_phases_unless_told_otherwise() -> None:
    stages = [torchipu.Stage(("B0",), ipu=0), torchipu.Stage(("B1",), ipu=0)]
    _, _, step = trained(execution="serial_phased", stages=stages)
    _, _, live = trained(execution="serial_phased", stages=stages, **{
        f"{kind}_location": TensorLocation() for kind in ("weight", "activation", "accumulator", "optimiser_state")
    })
    for role in (Role.WEIGHT, Role.ACCUMULATOR, Role.OPTIMISER_STATE):
        assert all(v.off_chip for v in step.compiled.executable.variables if v.role is role and v.num_elements > 1)
    assert not any(variable.off_chip for variable in live.compiled.executable.variables)
    assert always_bytes(step) < always_bytes(live)
    assert step.compiled.cost.cycles > live.compiled.cost.cycles


def test_liveness_says_what_stays_on_the_chip_between_phases() -> None:
    stages = [torchipu.Stage((f"B{number}",), ipu=0) for number in range(2)]
    stashes, cycles, losses = {}, {}, []
    for liveness in ("always_live", "off_chip_after_forward", "off_chip_after_each_phase"):
        found, _, step = trained(execution="serial_phased", stages=stages, liveness=liveness)
        variables = step.compiled.executable.variables
        stashes[liveness] = {v.name for v in variables if v.off_chip and v.role is Role.ACTIVATION}
        cycles[liveness] = step.compiled.cost.cycles
        losses.append(found)
    assert stashes["always_live"] == set()
    # A gradient that goes from the backward of a phase to that of the one before is no longer needed after that.
    assert set() < stashes["off_chip_after_forward"] < stashes["off_chip_after_each_phase"]
    assert cycles["always_live"] < cycles["off_chip_after_forward"] < cycles["off_chip_after_each_phase"]
    assert all(torch.equal(found, losses[0]) for found in losses)


def test_without_overlap_activations_wait_for_their_transfers() -> None:
    stages = [torchipu.Stage((f"B{number}",), ipu=0) for number in range(2)]
    place = TensorLocation(on_chip=False, io_tiles_to_load=True, io_tiles_to_store=True)
    cycles = [
        trained(
            execution="serial_phased", stages=stages, liveness=liveness, io_tiles=32, activation_location=place,
        )[2].compiled.cost.cycles
        for liveness in ("off_chip_after_forward", "off_chip_after_forward_no_overlap")
    ]
    assert cycles[0] < cycles[1]


# --------------------------------------------------------------------------- shares of replicas
def collectives(step: torchipu.TrainStep, function: str) -> list[AllReduce]:
    return [one for one in leaves_of(step.compiled.executable.functions[function]) if isinstance(one, AllReduce)]


def test_each_replica_keeps_and_updates_a_share_of_the_optimiser_state() -> None:
    shared = TensorLocation(replicated_sharding=True)
    _, _, step = trained(4, optimiser_state_location=shared)
    _, _, whole = trained(4)
    states = {v.name: v for v in step.compiled.executable.variables if v.role is Role.OPTIMISER_STATE}
    sizes = {v.num_elements for v in states.values()}
    assert sizes == {WIDTH * WIDTH // 4, WIDTH, 1}, "matrices in shares, biases and counts whole"
    reduced = {one.kind: {v.num_elements for v in one.variables} for one in collectives(step, "R0")}
    assert reduced == {"reduce_scatter": {WIDTH * WIDTH}, "all_reduce": {WIDTH}}
    (gathered,) = collectives(step, "U0")
    assert gathered.kind == "all_gather"
    assert {v.name for v in gathered.variables} == {"layers.0.weight", "layers.1.weight"}
    assert gathered.replicas == 4
    half = all_reduce_cycles(MK2, 2 * 4 * WIDTH * WIDTH, 4)
    assert step.compiled.cost.functions["U0"].cycles_by_category["all-reduce"] == -(-half // 2)

    def compute(one: torchipu.TrainStep) -> int:
        steps: list[Program] = list(leaves_of(one.compiled.executable.functions["U0"]))
        return sum(step.compute_set.groups[0].cycles for step in steps if isinstance(step, Execute))

    assert compute(step) < compute(whole)


LAYERWISE = {
    "lamb": lambda p: LAMB(p, lr=0.01), "lars": lambda p: LARS(p, lr=1.0, weight_decay=1e-3),
    "clipped": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("name", LAYERWISE)
@pytest.mark.parametrize("shared", [
    {"optimiser_state_location": TensorLocation(replicated_sharding=True)},
    {"optimiser_state_location": TensorLocation(on_chip=False, replicated_sharding=True),
     "accumulator_location": TensorLocation(replicated_sharding=True),
     "weight_location": TensorLocation(replicated_sharding=True)},
], ids=["states", "all"])
def test_norms_of_tensors_in_shares_are_those_of_the_whole(name: str, shared: dict[str, TensorLocation]) -> None:
    model = Layers()
    exact = copy.deepcopy(model).double()
    max_norm = 1e-3 if name == "clipped" else None
    step = torchipu.TrainStep(
        model, LAYERWISE[name](model.parameters()),
        Options(
            execution="sharded", gradient_accumulation=2, replicas=4, max_grad_norm=max_norm, verify=True, **shared,
        ),
    )
    reference = LAYERWISE[name](exact.parameters())
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        x = torch.randn(8 * BATCH, WIDTH, generator=generator)
        step(x)
        reference.zero_grad()
        exact(x.double()).backward()
        if max_norm is not None:
            assert torch.nn.utils.clip_grad_norm_(exact.parameters(), max_norm) > max_norm
        reference.step()
    for mine, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=2e-4, atol=2e-6)
    if max_norm is None:  # on the device each replica has the squares of a share: their sums are two floats a tensor
        summed = [one for one in collectives(step, "U0") if one.kind == "all_reduce"]
        assert [v.num_elements for one in summed for v in one.variables] == [2, 2]
        assert all(one.replicas == 4 for one in summed)


def test_shares_that_lie_off_chip_are_streamed_as_shares() -> None:
    def streamed(**location: bool) -> int:
        _, _, step = trained(4, optimiser_state_location=TensorLocation(**location))
        functions = step.compiled.executable.functions
        return sum(
            one.variable.device_bytes for one in leaves_of(functions["U0"])
            if isinstance(one, HostCopy) and one.stream.startswith("remote.")
        )

    share, whole = streamed(on_chip=False, replicated_sharding=True), streamed(on_chip=False)
    matrices = 2 * 2 * 2 * 4 * WIDTH * WIDTH  # two layers, two moments, both ways
    assert whole - share == matrices * 3 // 4


@pytest.mark.parametrize("on_chip", [True, False])
def test_weights_in_shares_are_gathered_before_they_are_used_and_updated_as_shares(on_chip: bool) -> None:
    shared = TensorLocation(on_chip=on_chip, replicated_sharding=True)
    losses, weights, step = trained(4, weight_location=shared, optimiser_state_location=shared)
    wanted = trained(4)
    assert torch.equal(losses, wanted[0])
    assert all(map(torch.equal, weights, wanted[1]))
    held = {v.name: v for v in step.compiled.executable.variables if v.role is Role.WEIGHT}
    names = [f"layers.{number}.weight" for number in range(4)]
    assert all(held[name].num_elements == WIDTH * WIDTH // 4 and held[name].off_chip is not on_chip for name in names)
    gathered = {name: [v.name for one in collectives(step, name) for v in one.variables] for name in ("0F", "0B", "U0")}
    # The backward needs the weight of the second layer only; the update changes shares, and gathers nothing after.
    assert gathered == {
        "0F": ["layers.0.weight.whole.0F", "layers.1.weight.whole.0F"], "0B": ["layers.1.weight.whole.0B"], "U0": [],
    }
    assert {one.kind for name in ("0F", "0B") for one in collectives(step, name)} == {"all_gather"}
    reduced = {one.kind: {v.num_elements for v in one.variables} for one in collectives(step, "R0")}
    assert reduced == {"reduce_scatter": {WIDTH * WIDTH}, "all_reduce": {WIDTH}}
    half = -(-all_reduce_cycles(MK2, 4 * WIDTH * WIDTH, 4) // 2)
    cost = step.compiled.cost.functions
    assert [cost[name].cycles_by_category["all-reduce"] for name in ("0F", "0B")] == [2 * half, half]
    if not on_chip:
        assert ("layers.1.weight", True) in transfers(step, "0B")
        assert not any(way is False for name, way in transfers(step, "0F"))


def test_weights_in_shares_take_less_tile_memory() -> None:
    def category(**options: Any) -> int:
        _, _, step = trained(4, **options)
        return max(memory.bytes_by_category["weights"] for memory in step.profile.memory_by_ipu)

    # A tile takes whole vectors, and the biases are not shared out: more than a quarter is left.
    assert category(weight_location=TensorLocation(replicated_sharding=True)) < 0.6 * category()


def test_small_tensors_are_not_shared_out() -> None:
    location = TensorLocation(replicated_sharding=True, min_elements_sharding=WIDTH * WIDTH + 1)
    _, _, step = trained(4, optimiser_state_location=location)
    assert {one.kind for one in collectives(step, "R0")} == {"all_reduce"}
    assert not collectives(step, "U0")


# --------------------------------------------------------------------------- IO tiles and overlap
def test_io_tiles_do_not_compute(plain: tuple[Any, ...]) -> None:
    _, _, step = trained(io_tiles=192)
    tiles = {tile for variable in step.compiled.executable.variables for tile in variable.mapping.tiles}
    assert max(tiles) < MK2.num_tiles - 192
    assert always_bytes(step) >= always_bytes(plain[2])


def test_loads_through_io_tiles_run_beside_the_computation() -> None:
    waiting, beside = (
        trained(io_tiles=32, weight_location=TensorLocation(on_chip=False, io_tiles_to_load=flag))[2].compiled.cost
        for flag in (False, True)
    )
    first, second = waiting.functions["0F"], beside.functions["0F"]
    loads = 2 * streaming_cycles(MK2, 4 * WIDTH * WIDTH) + 2 * streaming_cycles(MK2, 4 * WIDTH)
    assert second.overlapped == {"device_iteration_loop": loads}
    assert second.cycles == max(loads, first.cycles - loads)
    assert beside.cycles < waiting.cycles


def test_streams_overlap_from_the_second_micro_batch_of_an_update_on_or_from_the_first() -> None:
    cycles = {}
    for mode in ("none", "accumulation_loop", "device_iteration_loop"):
        cost = trained(io_tiles=32, overlap_inputs=mode)[2].compiled.cost
        cycles[mode] = cost.cycles
        for ipu, spent in enumerate(cost.cycles_by_category_by_ipu):
            assert sum(spent.values()) == cost.cycles, ipu
        assert bool(cost.timeline.transfers_by_ipu[0]) == (mode != "none")
    hidden = cycles["none"] - cycles["device_iteration_loop"]
    assert hidden > 0
    assert (cycles["accumulation_loop"] - cycles["device_iteration_loop"]) * ACCUMULATION == hidden


def test_the_chart_has_a_line_for_transfers_that_overlap() -> None:
    _, _, step = trained(io_tiles=32, weight_location=TensorLocation(on_chip=False, io_tiles_to_load=True))
    lines = step.profile.timeline.splitlines()
    assert [line[:4] for line in lines] == ["ipu0", "io0 ", "ipu1", "io1 "]
    assert "~" in lines[1]


# --------------------------------------------------------------------------- bad options
@pytest.mark.parametrize(("options", "words"), [
    ({"io_tiles": 31}, "io_tiles=31 is no even number from 32 to 192"),
    ({"overlap_inputs": "accumulation_loop"}, "overlap_inputs needs IO tiles, but io_tiles is 0"),
    ({"weight_location": TensorLocation(io_tiles_to_load=True)}, "weight_location needs IO tiles, but io_tiles is 0"),
    ({"weight_location": "off_chip"}, "option 'weight_location' expects a torchipu.TensorLocation or None"),
    ({"weight_location": TensorLocation(on_chip=3)}, "option 'weight_location' expects a torchipu.TensorLocation"),
    ({"liveness": "sometimes"}, "option 'liveness' expects 'always_live', 'off_chip_after_forward'"),
    ({"sync_pattern": "ladder"}, "option 'sync_pattern' expects 'full', 'single_pipeline' or 'replica_and_ladder'"),
], ids=lambda value: next(iter(value)) if isinstance(value, dict) else "")
def test_options_that_cannot_be_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionsError, match=words):
        Options(**options)


def test_a_location_may_be_given_as_a_mapping() -> None:
    options = Options.from_mapping({"weight_location": {"on_chip": False}})
    assert options.weight_location == OFF_CHIP
