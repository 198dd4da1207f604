"""What cannot be placed or scheduled is refused before anything runs: each fault by name, and nothing is lost."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import torchipu
from torchipu import Options, Stage
from torchipu.errors import ConstraintError, IpuError, OptionsError, PlacementError, ScheduleError

BATCH = 2


class Blocks(nn.Module):
    """Three blocks, A, B and C, with a buffer that counts where asked to; returns a loss.

    Args:
        ipus: IPU that each block asks for.
        goes_back: Block C's ops run before block B's last.
        counts: Whether a buffer is written.
    """

    def __init__(
        self, ipus: tuple[int | None, ...] = (None, None, None), *, goes_back: bool = False, counts: bool = False,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.ipus, self.goes_back, self.counts = ipus, goes_back, counts
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.counts:
            self.count.add_(1)
        for name, layer, ipu in zip("ABC", self.layers, self.ipus, strict=True):
            with torchipu.Block(name, ipu):
                x = torch.tanh(layer(x))
        if self.goes_back:
            with torchipu.Block("B"):
                x = x * 2
        with torchipu.Block("C"):
            return x.square().mean()


def inputs(size: int) -> torch.Tensor:
    return torch.linspace(-1, 1, size * 4).reshape(size, 4)


def refused(model: Blocks, kind: type[IpuError], *, size: int = 5 * BATCH, **options: Any) -> str:
    """Return the text of the error that a first call raises, having seen that it lost nothing."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    before = copy.deepcopy(model.state_dict())
    step = torchipu.TrainStep(model, optimizer, Options(**options))
    for _ in range(2):  # the second call finds things as the first one did
        with pytest.raises(kind) as caught:
            step(inputs(size))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert not optimizer.state
    assert model.training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert caught.value.remedy
    return str(caught.value)


def test_accumulation_too_small_for_the_pipeline_shows_the_grid() -> None:
    text = refused(Blocks(), ScheduleError, size=4 * BATCH, gradient_accumulation=4)
    lines = text.splitlines()
    assert lines[0] == (
        "gradient_accumulation=4 is shorter than the pipeline: 3 stages need gradient_accumulation of at least 5"
    )
    assert lines[1].split() == ["0F0"]
    (fault,) = [line for line in lines if "<--" in line]
    assert "0F has no micro-batch left, the pipeline is not full yet" in fault
    assert "raise gradient_accumulation to 5 or more, use fewer stages" in lines[-1]


def test_device_iterations_too_small_for_the_pipeline_show_the_grid() -> None:
    model = Blocks().eval()
    step = torchipu.InferenceStep(model, Options(device_iterations=2))
    with pytest.raises(ScheduleError) as caught:
        step(inputs(2 * BATCH))
    text = str(caught.value)
    assert text.startswith(
        "device_iterations=2 is shorter than the pipeline: 3 stages need device_iterations of at least 3"
    )
    assert "<--" in text


def test_block_in_two_stages_is_shown_among_the_stages() -> None:
    with pytest.raises(OptionsError) as caught:
        Options(stages=[["A", "B"], ["C", "B"]])
    text = str(caught.value)
    assert text.startswith("block 'B' is in stage 0 and in stage 1")
    assert "stage 1: C, B   <-- 'B' again" in text


@pytest.mark.parametrize("options", [{"blocks": ("A", "B", "D")}, {"stages": (("A",), ("B",), ("D",))}])
def test_unknown_block_is_named_with_those_that_are_known(options: dict[str, Any]) -> None:
    text = refused(Blocks(), PlacementError, gradient_accumulation=5, **options)
    (name,) = options
    assert text.startswith(f"block 'C' is not in options.{name}")
    assert "test_bad_placements.py" in text
    assert ("known blocks: A, B, D" if name == "blocks" else "stage 2: D") in text
    assert f"add it to options.{name} where its stage belongs" in text


def test_stages_that_run_backwards_are_shown() -> None:
    text = refused(Blocks(goes_back=True), PlacementError, gradient_accumulation=5)
    assert text.startswith("block 'B' (stage 1) reads ")
    assert "which block 'C' of the later stage 2 makes" in text.splitlines()[0]
    assert "stage 1: B  (ipu 1)   <-- reads what stage 2 makes" in text
    assert "give this region a block name of its own after 'C'" in text


def test_order_of_the_options_that_runs_against_the_data_is_shown() -> None:
    text = refused(Blocks(), PlacementError, gradient_accumulation=5, blocks=("B", "A", "C"))
    assert text.startswith("block 'B' (stage 0) reads ")
    assert "which block 'A' of the later stage 1 makes" in text.splitlines()[0]


def test_replicas_that_do_not_divide_the_batch_are_named_with_sizes_that_would_do() -> None:
    options = {"gradient_accumulation": 5, "replicas": 3}
    text = refused(Blocks(), ConstraintError, size=20, **options)
    assert text.startswith("batch of 20 is not divisible by device_iterations 1 x gradient_accumulation 5 x replicas 3")
    assert "pass 15 or 30 samples along dimension 0" in text


def test_odd_phase_on_an_even_ipu_shows_the_grid() -> None:
    stages = (Stage(("A",), 0), Stage(("B",), 2), Stage(("C",), 2))
    text = refused(
        Blocks(), ScheduleError, gradient_accumulation=5, execution="parallel_phased", stages=stages,
    )
    assert text.startswith(
        "phase 1 is on ipu 2, but in parallel phased execution an odd phase needs an odd IPU"
    )
    (fault,) = [line for line in text.splitlines() if "<--" in line]
    assert "phase 1 on ipu 2" in fault


@pytest.mark.parametrize(("model", "options", "words", "remedy"), [
    (Blocks((0, 64, 65)), {}, "block 'B' asks for ipu 64, but mk2 has ipus 0 to 63", "use an ipu_id that is there"),
    (Blocks(), {"num_ipus": 2}, "block 'C' would follow on ipu 2, but num_ipus=2 has ipus 0 to 1",
     "give ipu_id to the blocks that share an IPU, or raise num_ipus"),
    (Blocks(), {"replicas": 32}, "block 'C' would follow on ipu 2, but a replica of 32 on the 64 IPUs of mk2 has ipus "
     "0 to 1", "use fewer replicas"),
    (Blocks(), {"replicas": 65}, "65 replicas of the model need 65 IPUs at least, but mk2 has 64",
     "set replicas to 64 or less"),
], ids=["id", "num_ipus", "replicas-of-three", "replicas"])
def test_more_ipus_than_there_are_are_named(model: Blocks, options: dict[str, Any], words: str, remedy: str) -> None:
    size = 5 * BATCH * int(options.get("replicas", 1))
    text = refused(model, PlacementError, size=size, gradient_accumulation=5, **options)
    assert text.splitlines()[0] == words
    assert remedy in text


def test_written_buffer_that_replicas_are_to_share_is_named() -> None:
    text = refused(
        Blocks(counts=True), OptionsError, size=20, gradient_accumulation=5, replicas=2,
    )
    assert text.startswith("the model writes buffer 'count', but with replicas=2 broadcast_buffers=True keeps the ")
    assert "set broadcast_buffers=False: each replica then has its own" in text


# --------------------------------------------------------------------------- through torch.compile
PHASES_OF_ONE_HALF = (Stage(("A",), 0), Stage(("B",), 2), Stage(("C",), 2))


@pytest.mark.parametrize(("model", "options", "words"), [
    (Blocks(), {"gradient_accumulation": 4}, ("gradient_accumulation=4 needs a whole step as one program",)),
    (Blocks(), {"device_iterations": 2}, ("device_iterations=2 needs a whole step as one program",)),
    (Blocks(), {"replicas": 2}, ("replicas=2 needs a whole step as one program", "use torchipu.TrainStep")),
    (Blocks(), {"stages": [["A", "B"], ["C", "B"]]}, ("'B' is in stage 0 and in stage 1", "stage 1: C, B   <-- 'B'")),
    (Blocks(), {"blocks": ("A", "B", "D")}, ("block 'C' is not in options.blocks", "known blocks: A, B, D")),
    (Blocks(goes_back=True), {}, ("block 'B' (stage 1) reads ", "stage 1: B  (ipu 1)   <-- reads what stage 2 makes")),
    (Blocks(), {"execution": "parallel_phased", "stages": PHASES_OF_ONE_HALF},
     ("phase 1 is on ipu 2, but in parallel phased execution an odd phase needs an odd IPU", "<-- phase 1 on ipu 2")),
    (Blocks((0, 64, 65)), {}, ("block 'B' asks for ipu 64, but mk2 has ipus 0 to 63", "use an ipu_id that is there")),
], ids=["accumulation", "iterations", "replicas", "twice", "unknown", "backwards", "parity", "ipus"])
def test_torch_compile_says_what_is_wrong_and_loses_nothing(
    model: Blocks, options: dict[str, Any], words: tuple[str, ...],
) -> None:
    torch._dynamo.reset()
    before = copy.deepcopy(model.state_dict())
    compiled = torch.compile(model, backend="ipu", options=options)
    for _ in range(2):
        with pytest.raises(Exception, match="Error: ") as caught:  # Dynamo puts ours into one of its own
            compiled(inputs(4))
        assert all(part in str(caught.value) for part in words)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    loss = model(inputs(4))  # as it is, in eager
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_refused_call_between_two_good_ones_changes_nothing() -> None:
    def train(*, disturbed: bool) -> tuple[list[float], Blocks]:
        model = Blocks()
        step = torchipu.TrainStep(
            model, torch.optim.Adam(model.parameters(), lr=0.1), Options(gradient_accumulation=5, replicas=2),
        )
        losses = [step(inputs(20)).sum().item()]
        if disturbed:
            with pytest.raises(ConstraintError):
                step(inputs(15))
        return [*losses, step(inputs(20)).sum().item()], model

    (losses, model), (wanted, twin) = train(disturbed=True), train(disturbed=False)
    assert losses == wanted
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
