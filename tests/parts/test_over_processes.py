"""A pipeline over several processes: bit-equal to one, judged by eager float64, and clear about what goes wrong."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import torchipu
from tests.parts import cases, checkpoints, faults
from tests.waiting import SOON
from torchipu.errors import OptionsError

SECONDS = 300


def launched(module: str, size: int, *arguments: Sequence[str]) -> list[int]:
    """Run a module on several processes, each with its rank first; return their exit codes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen([sys.executable, "-m", module, str(rank), *arguments[rank]], env=environment)
        for rank in range(size)
    ]
    try:
        return [process.wait(SECONDS) for process in running]
    finally:
        for process in running:
            process.kill()


def found_by(module: str, size: int, folder: Path, names: Sequence[str], *more: str) -> list[dict[str, Any]]:
    store = folder / "store"
    results = [folder / f"{rank}.json" for rank in range(size)]
    codes = launched(module, size, *([*more, str(store), str(result), *names] for result in results))
    assert codes[0] == 0
    return [json.loads(result.read_text()) if result.exists() else {} for result in results]


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    return found_by("tests.parts.worker", 2, tmp_path_factory.mktemp("two"), list(cases.OF_TWO), "2")


@pytest.fixture(scope="module")
def of_three(tmp_path_factory):
    return found_by("tests.parts.worker", 3, tmp_path_factory.mktemp("three"), list(cases.OF_THREE), "3")


@pytest.mark.parametrize("name", cases.CASES)
def test_every_process_gives_what_one_process_gives_bit_by_bit(name, request):
    found = request.getfixturevalue("of_two" if name in cases.OF_TWO else "of_three")
    alone = json.loads(json.dumps(cases.run(name)))
    for one in found:
        assert one[name] == alone
    if cases.CASES[name].is_judged:
        assert alone["losses"] == pytest.approx(cases.eager_losses(name), rel=1e-4)


# ---------------------------------------------------------------------- states
def test_each_process_has_its_part_alone_and_checkpoints_suit_any_number_of_processes(tmp_path):
    inputs = cases.samples(32)
    torch.manual_seed(1)
    alone = checkpoints.step_of(cases.Stack())
    alone.compile(*inputs)
    dcp.save(alone.part_state(), checkpoint_id=tmp_path / "of_one", no_dist=True)
    codes = launched("tests.parts.checkpoints", 2, *[[str(tmp_path / "store"), str(tmp_path)]] * 2)
    assert codes == [0, 0]
    found = [json.loads((tmp_path / f"found{rank}.json").read_text()) for rank in range(2)]
    losses = [alone(*inputs)[-1].item() for _ in range(2)]
    assert [one["losses"] for one in found] == [losses, losses]
    assert [one["states"] for one in found] == [checkpoints.states(alone)] * 2
    assert sorted(found[0]["names"] + found[1]["names"]) == sorted(alone.part_state())
    assert found[0]["bare"] == sorted(n for n, _ in alone.model.named_parameters() if n[:8] in ("blocks.2", "blocks.3")
                                      or n.startswith("head"))
    assert found[1]["bare"] == sorted(n for n, _ in alone.model.named_parameters() if n[:8] in ("blocks.0", "blocks.1"))
    assert all(one["bare_states"] == 2 * len(one["bare"]) for one in found)
    # Shared are the hyper-parameters, a line or two.
    assert sum(one["state_bytes"] for one in found) <= alone._bound.state.numel() + 256
    assert [one["gathered_onto_1"] for one in found] == [0, len(alone.part_state())]
    again = checkpoints.step_of(cases.Stack())
    again.compile(*inputs)
    dcp.load(again.part_state(), checkpoint_id=tmp_path / "of_two", no_dist=True)
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
HARMLESS = (
    "other_options", "other_inputs", "other_model", "other_call", "no_loss", "bad_batch", "bare_weights",
    "too_many_ipus", "uneven_ipus", "idle_process", "bad_label", "bad_word", "interrupted", "killed",
)


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    return found_by("tests.parts.faults", 2, tmp_path_factory.mktemp("faults"), HARMLESS)


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
def test_what_fails_on_one_process_is_told_on_both(name, kinds, words, failed):
    assert tuple(one[name]["kind"] for one in failed) == kinds
    for one, word in zip(failed, words, strict=True):
        assert word in one[name]["text"]
        assert one[name]["seconds"] < SOON
        assert one[name].get("kept", True)
    if name in ("bad_label", "bad_word"):
        torch.manual_seed(3)
        reference = getattr(faults, name)(0, alone=True)
        assert [one[name]["then"] for one in failed] == [reference, reference]


def test_process_that_dies_is_named_at_once(failed):
    assert "killed" not in failed[1]
    found = failed[0]["killed"]
    assert found["kind"] == "PeerError"
    assert "process 1 is gone (its connection is closed), while process 0 waited for " in found["text"]
    assert found["seconds"] < SOON
    assert found["kept"]
    assert found["again"]["text"].startswith("process 1 is gone (its connection is closed), in an earlier call")


def test_silent_process_is_named_when_the_group_allows_no_more(tmp_path):
    found = found_by("tests.parts.faults", 2, tmp_path, ["silent"])[0]["silent"]
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
