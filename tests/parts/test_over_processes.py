"""A pipeline over several processes: bit-equal to one, judged by eager float64, and clear about what goes wrong."""

from __future__ import annotations

import dataclasses
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import torchipu
from tests.distributed.forked import OnDemand, Outcome, on_demand
from tests.parts import cases, checkpoints, faults
from tests.parts.over_processes import SCENARIOS
from tests.waiting import SOON
from torchipu.errors import OptionsError
from torchipu.host.storage import aligned


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where processes leave what they save."""
    return tmp_path_factory.mktemp("over_processes")


@pytest.fixture(scope="module")
def alone(folder: Path) -> torchipu.TrainStep:
    """Return a step of one process, whose checkpoint two processes begin with."""
    torch.manual_seed(1)
    step = checkpoints.step_of(cases.Stack())
    step.compile(*cases.samples(32))
    dcp.save(step.part_state(), checkpoint_id=folder / "shared" / "of_one", no_dist=True)
    return step


@pytest.fixture(scope="module")
def ran(folder: Path, alone: torchipu.TrainStep) -> Iterator[OnDemand]:
    """Run processes as tests ask for them: group after group, as they are told how long to wait for each other."""
    with on_demand("tests.parts.over_processes", SCENARIOS, folder) as scenarios:
        yield scenarios


def values(found: list[Outcome]) -> list[Any]:
    assert all(outcome.error is None for outcome in found), [outcome.error for outcome in found]
    return [outcome.value for outcome in found]


@pytest.mark.suffices(name=[
    "pipelined", "iterations_clipped_and_dropped", "half", "images", "inverted", "replicas", "tied_and_frozen",
    "three_dropped",
])
@pytest.mark.parametrize("name", cases.CASES)
def test_every_process_gives_what_one_process_gives_bit_by_bit(name, ran):
    whole = json.loads(json.dumps(cases.run(name)))
    for one in values(ran[name]):
        assert one == whole
    if cases.CASES[name].is_judged:
        assert whole["losses"] == pytest.approx(cases.eager_losses(name), rel=1e-4)


# ---------------------------------------------------------------------- states
def test_each_process_has_its_part_alone_and_checkpoints_suit_any_number_of_processes(folder, alone, ran):
    inputs = cases.samples(32)
    found = values(ran["shared"])
    losses = [alone(*inputs)[-1].item() for _ in range(2)]
    assert [one["losses"] for one in found] == [losses, losses]
    assert [one["states"] for one in found] == [checkpoints.states(alone)] * 2
    assert sorted(found[0]["names"] + found[1]["names"]) == sorted(alone.part_state())
    assert found[0]["bare"] == sorted(n for n, _ in alone.model.named_parameters() if n[:8] in ("blocks.2", "blocks.3")
                                      or n.startswith("head"))
    assert found[1]["bare"] == sorted(n for n, _ in alone.model.named_parameters() if n[:8] in ("blocks.0", "blocks.1"))
    assert all(one["bare_states"] == 2 * len(one["bare"]) for one in found)
    # Shared are the hyper-parameters, a line or two. Alone, states lie where the user has them.
    in_place = sum(aligned(view.nbytes) for view in alone._bound.placed_states.views)
    assert sum(one["state_bytes"] for one in found) <= alone._bound.state.numel() + in_place + 256
    assert [one["gathered_onto_1"] for one in found] == [0, len(alone.part_state())]
    again = checkpoints.step_of(cases.Stack())
    again.compile(*inputs)
    dcp.load(again.part_state(), checkpoint_id=folder / "shared" / "of_two", no_dist=True)
    assert checkpoints.states(again) == checkpoints.states(alone)
    assert torch.equal(again(*inputs)[-1], alone(*inputs)[-1])
    torch.manual_seed(1)
    once = checkpoints.step_of(cases.Stack())
    once(*inputs)
    assert [one["whole"] for one in found] == [
        {name: cases.digest(value) for name, value in once.model.state_dict().items()}
    ] * 2


def test_weights_of_others_need_no_memory_while_a_model_is_captured():
    from torchipu.capture.aot import capture_inference
    from torchipu.capture.stand_ins import standing_in

    with torch.device("meta"):
        model = nn.Linear(32768, 32768)  # 4 GiB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with standing_in(model):
        assert not model.weight.is_meta
        captured = capture_inference(model, (torch.ones(1, 32768),))
    assert model.weight.is_meta
    assert captured.parameters["weight"].shape == (32768, 32768)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512 << 10


# ---------------------------------------------------------------------- faults
DIFFERENT = "the processes of the pipeline differ in "


@pytest.mark.parametrize(("name", "kinds", "words"), [
    ("other_options", ("PeerError", "PeerError"), (f"{DIFFERENT}graph, options.max_grad_norm",) * 2),
    ("other_inputs", ("PeerError", "PeerError"), (
        "inputs: float32[16, 24], int64[16] on process 0", "inputs: float32[32, 24], int64[32] on process 1")),
    ("other_model", ("PeerError", "PeerError"), (f"{DIFFERENT}modules in training, trainable parameters",) * 2),
    ("other_call", ("PeerError", "PeerError"), (
        "call: call of TrainStep on process 0", "call: gather(onto=None) on process 1")),
    ("no_loss", ("PeerError", "CaptureError"), (
        "process 1 has failed: CaptureError: the model returns no scalar that needs a gradient", "no scalar")),
    ("bad_batch", ("ConstraintError", "ConstraintError"), ("batch of 30 is not divisible",) * 2),
    ("bare_weights", ("PeerError", "ConstraintError"), (
        "process 1 has failed: ConstraintError: blocks.2.0.weight and 11 more are on the meta device",
        "process 1 has ipus 2 to 3, which use them")),
    ("shared_buffers", ("PeerError", "OptionsError"), (
        "process 1 has failed: OptionsError: the model writes buffer 'blocks.3.1.running_mean' and 2 more",
        "with replicas=2 broadcast_buffers=True keeps the buffers of all replicas the same")),
    ("too_many_ipus", ("OptionsError", "OptionsError"), (
        "the group has 2 processes, but the model's ipus 0 to 3 at ipus_per_process=1 are for 4",) * 2),
    ("uneven_ipus", ("OptionsError", "OptionsError"), ("2 processes cannot share the model's ipus 0 to 2 evenly",) * 2),
    ("idle_process", ("PlacementError", "PlacementError"), (
        "process 0 has nothing to do: no block is on ipus 0 to 1",) * 2),
    ("bad_label", ("PeerError", "ExecutionError"), (
        "process 1 has failed: ExecutionError: aten.nll_loss_forward.default: an index is out of range",
        "an index is out of range")),
    ("bad_word", ("ExecutionError", "PeerError"), (
        "an index is out of range", "process 0 has failed: ExecutionError: aten.embedding.default")),
    ("interrupted", ("PeerError", "KeyboardInterrupt"), ("process 1 has failed: KeyboardInterrupt", "")),
])
def test_what_fails_on_one_process_is_told_on_both(name, kinds, words, ran):
    failed = values(ran["failed"])
    assert tuple(one[name]["kind"] for one in failed) == kinds
    for one, word in zip(failed, words, strict=True):
        assert word in one[name]["text"]
        assert one[name]["seconds"] < SOON
        assert one[name].get("kept", True)
    if name in ("bad_label", "bad_word"):
        torch.manual_seed(3)
        reference = getattr(faults, name)(0, alone=True)
        assert [one[name]["then"] for one in failed] == [reference, reference]


def test_process_that_dies_is_named_at_once(ran):
    other, dead = ran["killed"]
    assert dead.error == ["SIGKILL", ""]
    found = other.value
    assert found["kind"] == "PeerError"
    assert "process 1 is gone (its connection is closed), while process 0 waited for " in found["text"]
    assert found["seconds"] < SOON
    assert found["kept"]
    assert found["again"]["text"].startswith("process 1 is gone (its connection is closed), in an earlier call")


def test_silent_process_is_named_when_the_group_allows_no_more(ran):
    found = ran["silent"][0].value
    assert f"process 1 was silent for {faults.SECONDS_OF_SILENCE:g} s, while process 0 waited for " in found["text"]
    assert found["seconds"] < faults.SECONDS_OF_SILENCE + SOON
    assert found["kept"]


# ---------------------------------------------------------------------- options
class Group:
    """Answers what a process group is asked."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2


def test_share_of_ipus_needs_processes():
    with pytest.raises(OptionsError, match="ipus_per_process=2, but there is no pipeline_group"):
        torchipu.Options(ipus_per_process=2)


def test_normalisation_over_replicas_does_not_go_with_processes():
    with pytest.raises(OptionsError, match="batch normalisations over several replicas do not go"):
        torchipu.Options(pipeline_group=Group(), replicas=2, batch_norm_group_size=2)


def test_process_outside_the_group_makes_no_step():
    class Outside(Group):
        def rank(self) -> int:
            return -1

    with pytest.raises(OptionsError, match="this process is not in the group"):
        torchipu.InferenceStep(nn.Identity(), torchipu.Options(pipeline_group=Outside()))


def test_options_hold_a_group():
    options = torchipu.Options(pipeline_group=Group(), ipus_per_process=4)
    assert dataclasses.replace(options, seed=1).ipus_per_process == 4
