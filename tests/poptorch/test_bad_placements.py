"""PopTorch programs that cannot be placed or scheduled: each fault by name, and nothing is lost."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torchipu import poptorch

BATCH = 2


class Blocks(nn.Module):
    """Three blocks, A, B and C, with a buffer that counts where asked to; returns a loss."""

    def __init__(
        self, ipus: tuple[int | None, ...] = (0, 1, 2), *, goes_back: bool = False, counts: bool = False,
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
            with poptorch.Block(name, ipu_id=ipu):
                x = torch.tanh(layer(x))
        if self.goes_back:
            with poptorch.Block("B", ipu_id=1):
                x = x * 2
        with poptorch.Block("C", ipu_id=self.ipus[2]):
            return poptorch.identity_loss(x.square(), "mean")


class Numbers(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Sixty samples that say which they are."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index))


def options(accumulation: int = 5, strategy: Any = None, replicas: int = 1, iterations: int = 1) -> poptorch.Options:
    found = poptorch.Options().autoRoundNumIPUs(True).deviceIterations(iterations).replicationFactor(replicas)
    found.Training.gradientAccumulation(accumulation)
    return found if strategy is None else found.setExecutionStrategy(strategy)


def phased(*ipus: int) -> poptorch.ParallelPhasedExecution:
    strategy = poptorch.ParallelPhasedExecution("A", "B", "C")
    for phase, ipu in enumerate(ipus):
        strategy.phase(phase).ipus(ipu)
    return strategy


def refused(
    model: Blocks, settings: poptorch.Options, kind: type[Exception] = poptorch.Error, *, size: int | None = None,
) -> str:
    """Return the text of the error that a first call raises, having seen that it lost nothing."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    before = copy.deepcopy(model.state_dict())
    # The loader takes as much as the program would: what it yields is whole after each refusal.
    loader = None if size else iter(poptorch.DataLoader(settings, Numbers(), batch_size=BATCH))
    step = poptorch.trainingModel(model, settings, optimizer)
    text = ""
    for place in range(1 if loader is None else 2):  # the second call finds things as the first one did
        given = torch.ones(size, 4) if loader is None else next(loader)
        with pytest.raises(kind) as caught:
            step(given)
        text = str(caught.value)
        assert loader is None or given[0, 0] == place * len(given)
    assert not step.isCompiled()
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert not optimizer.state
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    return text


def line_with_arrow(text: str) -> str:
    (line,) = [line for line in text.splitlines() if "<--" in line]
    return line


@pytest.mark.parametrize("model", [Blocks(), Blocks(goes_back=True)], ids=["plain", "returning"])
def test_accumulation_too_small_for_the_pipeline_shows_the_grid(model: Blocks) -> None:
    # A return to a block on another IPU is no fault in PopTorch but a stage of its own: five of them need more.
    stages, least = (5, 9) if model.goes_back else (3, 5)
    text = refused(model, options(4))
    assert "gradientAccumulation must be greater than or equal to the number of pipeline stages" in text
    assert f"({least})" in text
    assert f"a model with {stages} pipeline stages in PopTorch will have an additional {least - stages} stages" in text
    assert text.splitlines()[1].split() == ["0F0"]
    assert "0F has no micro-batch left, the pipeline is not full yet" in line_with_arrow(text)


def test_device_iterations_too_small_for_the_pipeline_show_the_grid() -> None:
    step = poptorch.inferenceModel(Blocks().eval(), options(1, iterations=2))
    with pytest.raises(poptorch.Error) as caught:
        step(torch.ones(2 * BATCH, 4))
    text = str(caught.value)
    assert "deviceIterations must be greater than or equal to the number of pipeline stages (3)" in text
    assert text.splitlines()[1:] == [
        "  0F0", "  0F1   1F0", "        1F1   2F0   <-- 0F has no micro-batch left, the pipeline is not full yet",
        "              2F1",
    ]


@pytest.mark.parametrize("make", [poptorch.PipelinedExecution, poptorch.ShardedExecution])
def test_block_in_two_stages_is_shown_among_the_stages(make: Callable[..., Any]) -> None:
    with pytest.raises(AssertionError) as caught:
        make(poptorch.Stage("A", "B"), poptorch.Stage("C", "B").ipu(3))
    assert str(caught.value).splitlines() == [
        "B associated with more than one stage", "  Stage 0: A, B", "  Stage 1: C, B on IPU 3   <-- B again",
    ]


@pytest.mark.parametrize("strategy", [
    poptorch.PipelinedExecution("A", "B", "D"), poptorch.SerialPhasedExecution("A", "B", "D"),
])
def test_unknown_block_is_named_with_those_that_are_known(strategy: Any) -> None:
    text = refused(Blocks(), options(strategy=strategy), AssertionError)
    assert text == "Unknown Block 'C' list of expected Blocks: ['A', 'B', 'D']"


def test_replicas_that_do_not_divide_the_batch_are_named() -> None:
    text = refused(Blocks(), options(replicas=3), AssertionError, size=20)
    assert text.startswith("Invalid batch dimension: In the input x, the batch dimension (20) must be a multiple of")
    assert "replicationFactor (3)" in text
    assert "= 15 because" in text


def test_odd_phase_on_an_even_ipu_is_shown_among_the_phases() -> None:
    text = refused(Blocks((None, None, None)), options(strategy=phased(0, 2, 2)))
    assert "Phase 1 uses IPU 2, but in poptorch.ParallelPhasedExecution an odd phase must use odd IPUs" in text
    assert text.splitlines()[1:] == [
        "  Phase 0: A on IPU 0", "  Phase 1: B on IPU 2   <-- IPU 2", "  Phase 2: C on IPU 2",
    ]


@pytest.mark.parametrize(("model", "replicas", "words"), [
    (Blocks((0, 1, 64)), 1, ("(65)", "The model needs 65 in each of 1 replica: Block 'C' is on IPU 64.")),
    (Blocks(), 32, ("(96)", "The model needs 3 in each of 32 replicas: Block 'C' is on IPU 2.")),
], ids=["block", "replicas"])
def test_more_ipus_than_there_are_are_named(model: Blocks, replicas: int, words: tuple[str, str]) -> None:
    size = 5 * BATCH * replicas
    text = refused(model, options(replicas=replicas), size=size)
    assert f"Too many IPUs requested {words[0]}. Experiments that need more than 64 IPUs require" in text
    assert text.endswith(words[1])


def test_written_buffer_that_replicas_are_to_share_is_named() -> None:
    text = refused(Blocks(counts=True), options(replicas=2))
    assert "using poptorch.Options.broadcastBuffers(False). Here the model writes buffer 'count'" in text
    assert "you can disable buffer broadcasting using poptorch.Options.broadcastBuffers(False)" in text


def test_what_was_refused_trains_once_it_is_mended() -> None:
    model = Blocks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    short = poptorch.trainingModel(model, options(4), optimizer)
    with pytest.raises(poptorch.Error, match="gradientAccumulation"):
        short(torch.ones(8, 4))
    short.destroy()
    twin = Blocks()
    loss = poptorch.trainingModel(model, options(5), optimizer)(torch.ones(10, 4))
    wanted = poptorch.trainingModel(twin, options(5), torch.optim.SGD(twin.parameters(), lr=0.1))(torch.ones(10, 4))
    assert torch.equal(loss, wanted)
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
