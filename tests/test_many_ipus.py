"""Pipelines of any depth, with replicas and recomputation: the values of the model on one IPU, bit for bit."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchipu
from torchipu.capture.captured import Captured
from torchipu.ir.types import Leg
from torchipu.optable.marks import MARK

DEPTH, WIDTH, MICRO, UPDATES = 8, 5, 2, 2


class Deep(nn.Module):
    """One block a layer; returns the mean squared error."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            with torchipu.Block(f"B{number}"):
                x = torch.tanh(layer(x))
        with torchipu.Block(f"B{DEPTH - 1}"):
            return nn.functional.mse_loss(x, y)


CAPTURED: dict[str, Captured] = {}


class Step(torchipu.TrainStep):
    """Captures the model once: the graph of a micro-batch is the same in all tests here."""

    def _capture(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Captured:
        if "model" not in CAPTURED:
            CAPTURED["model"] = super()._capture(arguments, keywords)
        return CAPTURED["model"]


def data(updates: int, micro_batches: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(micro_batches)
    size = updates * micro_batches * MICRO
    return torch.randn(size, WIDTH, generator=generator), torch.rand(size, WIDTH, generator=generator)


def train(micro_batches: int, **options: object) -> tuple[torch.Tensor, list[torch.Tensor], torchipu.TrainStep]:
    """Train on ``micro_batches`` an update; return losses, weights and the step."""
    model = Deep()
    step = Step(
        model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        torchipu.Options(device_iterations=UPDATES, output_mode="all", **options),  # type: ignore[arg-type]
    )
    losses = step(*data(UPDATES, micro_batches))
    return losses.reshape(-1), [parameter.detach().clone() for parameter in model.parameters()], step


def stages_of(count: int, ipus: int | None = None) -> list[torchipu.Stage]:
    """Cut the blocks into stages of about equal length, which go round so many IPUs."""
    names = [f"B{number}" for number in range(DEPTH)]
    ends = [DEPTH * stage // count for stage in range(count + 1)]
    parts = [tuple(names[begin:end]) for begin, end in pairwise(ends)]
    return [torchipu.Stage(part, number % (ipus or count)) for number, part in enumerate(parts)]


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[int, int, int]:
    """``(stages, gradient accumulation, replicas)``."""
    stages = draw(st.integers(1, DEPTH))
    return stages, draw(st.integers(2 * stages - 1, 64)), draw(st.integers(1, 8))


@settings(max_examples=12, deadline=None)  # some have a thousand micro-batches
@given(
    pipelines(), st.sampled_from(["none", "stage"]),
    st.sampled_from(["pipelined", "pipelined", "1f1b", "interleaved", "sharded"]),
)
@example((8, 15, 1), "stage", "pipelined")
@example((8, 64, 8), "stage", "pipelined")
@example((1, 1, 8), "none", "pipelined")
@example((8, 15, 2), "none", "1f1b")
@example((8, 15, 2), "stage", "interleaved")
def test_every_pipeline_trains_as_one_ipu_does(
    sizes: tuple[int, int, int], recompute: str, execution: str,
) -> None:
    stages, accumulation, replicas = sizes
    runs = accumulation * replicas
    # Interleaved, an IPU has two stages or three, far from each other.
    ipus = max(min(stages, 2), stages // 2) if execution == "interleaved" else stages
    losses, weights, step = train(
        runs, stages=stages_of(stages, ipus), gradient_accumulation=accumulation, replicas=replicas,
        recompute=recompute, execution=execution,
    )
    wanted, weights_wanted, _ = train(
        runs, stages=stages_of(1), gradient_accumulation=accumulation, replicas=replicas,
    )
    assert torch.equal(losses, wanted)
    assert all(map(torch.equal, weights, weights_wanted))
    compiled = step.compiled
    assert (compiled.executable.num_ipus, len(compiled.schedule.steps[0])) == (ipus, ipus)
    if execution == "pipelined":
        assert compiled.cost.pipeline_fill == accumulation / (accumulation + 2 * stages - 2)
    clones = [op for op in compiled.graph.ops if MARK in op.attrs]
    assert bool(clones) == (recompute == "stage" and stages > 1)
    assert all(op.leg is Leg.BACKWARD for op in clones)


def test_the_pipeline_trains_as_eager_pytorch_does() -> None:
    losses, weights, _ = train(16, stages=stages_of(4), gradient_accumulation=8, replicas=2)
    model = Deep().double()
    optimizer, wanted = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    x, y = (value.double().split(MICRO) for value in data(UPDATES, 16))
    for update in range(UPDATES):
        optimizer.zero_grad()
        for run in range(16 * update, 16 * (update + 1)):
            loss = model(x[run], y[run])
            (loss / 16).backward()
            wanted.append(loss.detach())
        optimizer.step()
    torch.testing.assert_close(losses.double(), torch.stack(wanted), rtol=1e-5, atol=1e-7)
    expected = [parameter.detach() for parameter in model.parameters()]
    torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-6, check_dtype=False)


def test_a_recomputing_pipeline_stashes_less() -> None:
    stash = {}
    for recompute in ("none", "auto"):
        _, _, step = train(
            16, stages=stages_of(4), gradient_accumulation=16, recompute=recompute, allow_out_of_memory=True,
        )
        variables = step.compiled.executable.variables
        stash[recompute] = sum(variable.depth * variable.device_bytes for variable in variables if variable.depth > 1)
        assert max(variable.depth for variable in variables) == 2 * (4 - 1) + 1
        kinds = step.compiled.cost.timeline.cycles_by_kind(0)
        assert (kinds["recompute"] > 0) == (recompute == "auto")
    assert stash["auto"] < stash["none"]


class Checkpointed(Deep):
    """Its stages are regions of torch's own checkpoint, of four layers each, where asked to."""

    def __init__(self, *, is_checkpointed: bool) -> None:
        super().__init__()
        self.is_checkpointed = is_checkpointed

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for stage in range(2):
            with torchipu.Block(f"B{stage}"):
                run = nn.Sequential(*(part for layer in self.layers[4 * stage : 4 * stage + 4]
                                      for part in (layer, nn.Tanh())))
                x = checkpoint(run, x, use_reentrant=False) if self.is_checkpointed else run(x)
        with torchipu.Block("B1"):
            return nn.functional.mse_loss(x, y)


def test_torchs_checkpoint_holds_in_a_pipeline_too() -> None:
    losses, stash = [], []
    for is_checkpointed in (False, True):
        model = Checkpointed(is_checkpointed=is_checkpointed)
        step = torchipu.TrainStep(
            model, torch.optim.SGD(model.parameters(), lr=0.1),
            torchipu.Options(gradient_accumulation=4, recompute="none", output_mode="all"),
        )
        losses.append(step(*data(1, 4)))
        compiled = step.compiled
        clones = {op.placement.stage for op in compiled.graph.ops if MARK in op.attrs and op.placement is not None}
        assert clones == ({0, 1} if is_checkpointed else set())
        for ipu in range(2):
            assert (compiled.cost.timeline.cycles_by_kind(ipu)["recompute"] > 0) == is_checkpointed
        kept = [variable for variable in compiled.executable.variables if variable.depth > 1]
        stash.append(sum(variable.depth * variable.device_bytes for variable in kept))
    assert torch.equal(*losses)
    assert stash[1] < stash[0]


@pytest.mark.parametrize("execution", ["serial_phased", "parallel_phased", "interleaved"])
def test_other_schedules_give_the_same_values(execution: str) -> None:
    stages = [torchipu.Stage((f"B{number}",), ipu=number % 2) for number in range(DEPTH)]
    losses, weights, step = train(4, stages=stages, gradient_accumulation=4, execution=execution)
    wanted, weights_wanted, _ = train(4, stages=stages_of(1), gradient_accumulation=4)
    assert torch.equal(losses, wanted)
    assert all(map(torch.equal, weights, weights_wanted))
    assert step.compiled.executable.num_ipus == 2
