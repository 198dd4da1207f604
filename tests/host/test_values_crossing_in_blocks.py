"""What a forward saves for its backward lies in blocks where it was computed so, as norms between convolutions do."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator

import poptorch
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchipu
from tests.host.planned import planned_kernels
from torchipu.host.emit.vectors import vector_lanes
from torchipu.ops.blocked import batch_norm
from torchipu.optable.blocked import BLOCKED_FORMS

SIZE = (4, 3, 41, 37)


class Inverted(nn.Module):
    """Channels that are spread, convolved one by one and gathered again, with gates of channels, and a sum."""

    def __init__(self, channels: int, spread: int, *, is_gated: bool) -> None:
        super().__init__()
        self.spread = nn.Conv2d(channels, spread, 1, bias=False)
        self.deep = nn.Conv2d(spread, spread, 3, padding=1, groups=spread, bias=False)
        self.gather = nn.Conv2d(spread, channels, 1, bias=False)
        self.gate = nn.Conv2d(spread, spread, 1) if is_gated else None
        self.norms = nn.ModuleList(nn.BatchNorm2d(each) for each in (spread, spread, channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.hardswish(self.norms[0](self.spread(x)))
        y = F.relu(self.norms[1](self.deep(y)))
        if self.gate is not None:
            y = y * F.hardsigmoid(self.gate(y.mean((2, 3), keepdim=True)))
        return x + self.norms[2](self.gather(y))


def mobile() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 20, 3, 2, 1, bias=False), nn.BatchNorm2d(20), nn.SiLU(), Inverted(20, 72, is_gated=True),
        nn.Conv2d(20, 48, 3, 1, 1), nn.BatchNorm2d(48, affine=False), nn.ReLU(),
    )


def plain() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64, track_running_stats=False), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 32, 1),
    )


MODELS = {"mobile": mobile, "plain": plain}
OPTIONS = {"allow_out_of_memory": True, "host_threads": 2}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(4)
    yield
    torch._dynamo.reset()


def results_of(model: nn.Module, run: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Return a result, the gradients of the input and of every parameter, and buffers after the step."""
    x = x.clone().requires_grad_()
    y = run(x)
    (y * torch.linspace(-1, 1, y.shape[-1], dtype=y.dtype)).square().mean().backward()
    assert x.grad is not None
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [y.detach(), x.grad, *grads, *(buffer for buffer in model.buffers() if buffer.is_floating_point())]


def judged(model: nn.Module, x: torch.Tensor) -> None:
    """Compare with eager PyTorch in float64; errors may be some times those of eager float32."""
    eager, exact, ours = (copy.deepcopy(model) for _ in range(3))
    exact.double()
    found = results_of(ours, torch.compile(ours, backend="ipu", options=OPTIONS), x)
    for mine, theirs, wanted in zip(
        found, results_of(eager, eager, x), results_of(exact, exact, x.double()), strict=True,
    ):
        error, least = (mine - wanted).norm(), (theirs - wanted).norm()
        assert error <= 6 * least + 2e-6 * wanted.norm()


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_float64(name: str, trains: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, model = planned_kernels(monkeypatch), MODELS[name]()
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None:
            norm.running_mean.normal_(0, 0.3)
            norm.running_var.uniform_(0.5, 2.0)
            norm.train(trains)
    judged(model, torch.randn(SIZE))
    assert "batch_grad_apply_blocked" in kernels
    assert ("batch_moments_blocked" in kernels) is (trains or name == "plain")


def test_little_is_brought_into_blocks_or_back(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, model = planned_kernels(monkeypatch), plain()
    results_of(model, torch.compile(model, backend="ipu", options=OPTIONS), torch.randn(SIZE))
    # The image and the results' gradient; the result and the image's gradient.
    assert kernels.count("to_blocked") <= 2, kernels
    assert kernels.count("from_blocked") <= 2, kernels


def saved_by(model: nn.Module, x: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return what results there are where hooks put away what is saved, and that."""
    saved = []

    def pack(value: torch.Tensor) -> torch.Tensor:
        saved.append(value)
        return value.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        return results_of(model, torch.compile(model, backend="ipu", options=OPTIONS), x), saved


def test_hooks_of_what_is_saved_have_it_in_blocks() -> None:
    model, x = plain(), torch.randn(SIZE)
    wanted = results_of(one := copy.deepcopy(model), torch.compile(one, backend="ipu", options=OPTIONS), x)
    torch._dynamo.reset()
    found, saved = saved_by(model, x)
    lanes = vector_lanes()
    assert (4, -(-64 // lanes), lanes, 21, 19) in [tuple(value.shape) for value in saved]
    for mine, other in zip(found, wanted, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize(("name", "has_run", "wrapped"), [
    ("mobile", False, "ipu"), ("plain", True, "eager"), ("plain", False, "aot_eager"),
])
def test_compiled_autograd_reads_what_lies_in_blocks(name: str, has_run: bool, wrapped: str) -> None:
    """Whether it is on during the forward or the backward alone, and whatever compiles what it makes."""
    model, x = MODELS[name](), torch.randn(SIZE)
    exact = copy.deepcopy(model).double()
    for _ in range(1 + has_run):
        exact.zero_grad()
        exact(x.double()).square().mean().backward()
    compiled = torch.compile(model, backend="ipu", options=OPTIONS)
    if has_run:
        compiled(x).square().mean().backward()
        model.zero_grad()
    forward = compiled(x).square().mean()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend=wrapped)):
        forward.backward()
    for mine, wanted in zip(model.parameters(), exact.parameters(), strict=True):
        assert mine.grad is not None
        assert wanted.grad is not None
        torch.testing.assert_close(mine.grad.double(), wanted.grad, rtol=1e-3, atol=1e-5)


def test_a_compiled_backward_alone_reads_what_lies_in_blocks() -> None:
    """With torch's switch for it, in a function that is compiled."""
    model, x = plain(), torch.randn(SIZE)
    exact = copy.deepcopy(model).double()
    exact(x.double()).square().mean().backward()

    def step(x: torch.Tensor) -> None:
        compiled(x).square().mean().backward()

    compiled = torch.compile(model, backend="ipu", options=OPTIONS)
    with torch._dynamo.config.patch(compiled_autograd=True), warnings.catch_warnings():
        warnings.filterwarnings("error", "torchipu: torch runs")  # of no frame of Python or torch
        torch.compile(step, backend="ipu", options=OPTIONS)(x)
    for mine, wanted in zip(model.parameters(), exact.parameters(), strict=True):
        assert mine.grad is not None
        assert wanted.grad is not None
        torch.testing.assert_close(mine.grad.double(), wanted.grad, rtol=1e-3, atol=1e-5)


def test_a_graph_that_is_kept_gives_its_gradients_twice() -> None:
    model, x = mobile(), torch.randn(SIZE)
    y = torch.compile(model, backend="ipu", options=OPTIONS)(x).square().mean()
    first = torch.autograd.grad(y, list(model.parameters()), retain_graph=True)
    for one, two in zip(first, torch.autograd.grad(y, list(model.parameters())), strict=True):
        assert torch.equal(one, two)


def test_what_is_saved_is_not_what_the_caller_has() -> None:
    """A result that is saved, too, lies as torch expects it, and writing into it is refused by torch as in eager."""
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU())
    compiled = torch.compile(model, backend="ipu", options=OPTIONS)
    y = compiled(torch.randn(SIZE))
    assert y.shape == (4, 64, 37, 33)
    assert y.is_contiguous()
    y.square().sum().backward()
    assert model[0].weight.grad is not None


def stepped(model: nn.Module, dtype: torch.dtype, *, is_stochastic: bool = False) -> list[torch.Tensor]:
    """Return what losses and weights three steps of a whole program give."""
    torch.manual_seed(5)

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = copy.deepcopy(model).to(dtype)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x).float().square().mean()

    whole = WithLoss()
    options = torchipu.Options(allow_out_of_memory=True, seed=7, stochastic_rounding=is_stochastic)
    step = torchipu.TrainStep(whole, torch.optim.SGD(whole.parameters(), lr=0.1), options=options)
    losses = [step(torch.randn(SIZE).to(dtype)) for _ in range(3)]
    return [*losses, *whole.state_dict().values()]


@pytest.mark.parametrize(("dtype", "is_stochastic"), [(torch.float, False), (torch.half, False), (torch.half, True)])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_has_the_bits_of_norms_that_lie_row_major(
    name: str, dtype: torch.dtype, is_stochastic: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, kernels = MODELS[name](), planned_kernels(monkeypatch)
    found = stepped(model, dtype, is_stochastic=is_stochastic)
    assert any("batch_" in name and name.endswith("_blocked") for name in kernels)
    with pytest.MonkeyPatch.context() as patch:
        for target in (*batch_norm.NORMS, batch_norm.GRADIENT):
            patch.delitem(BLOCKED_FORMS, target)
        kernels.clear()
        wanted = stepped(model, dtype, is_stochastic=is_stochastic)
        assert not any("batch_" in name and name.endswith("_blocked") for name in kernels)
    for mine, other in zip(found, wanted, strict=True):
        assert torch.equal(mine, other)


class Classifier(nn.Module):
    """Images and labels: three classes' scores, and the loss."""

    def __init__(self, body: nn.Sequential, channels: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(channels, 3)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.head(self.body(images).mean((2, 3)))
        return scores, poptorch.identity_loss(F.cross_entropy(scores, labels), "mean")


def trained(model: nn.Module) -> list[torch.Tensor]:
    """Return the scores of two steps of three micro-batches, and the weights behind them."""
    torch.manual_seed(1)
    options = poptorch.Options()
    options.Training.gradientAccumulation(3)
    optimiser = poptorch.optim.SGD(model.parameters(), lr=0.1, use_combined_accum=False)
    training = poptorch.trainingModel(model, options, optimizer=optimiser)
    scores = [training(torch.randn(6, *SIZE[1:]), torch.randint(0, 3, (6,)))[0] for _ in range(2)]
    training.copyWeightsToHost()
    training.destroy()
    return [*scores, *(parameter.detach() for parameter in model.parameters())]


@pytest.mark.parametrize(("name", "channels", "firsts"), [("plain", 32, (1, 3, 4, 6, 7)), ("mobile", 48, (1, 3, 4))])
def test_images_have_the_same_bits_in_one_stage_and_in_two(name: str, channels: int, firsts: tuple[int, ...]) -> None:
    model = Classifier(MODELS[name](), channels)
    whole = trained(copy.deepcopy(model))
    for first in firsts:
        staged = copy.deepcopy(model)
        staged.body[first] = poptorch.BeginBlock(staged.body[first], ipu_id=1)
        for one, other in zip(whole, trained(staged), strict=True):
            assert torch.equal(one, other)
