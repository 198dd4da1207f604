"""Halves beside floats: which type results have, values by float64, and training of float weights on half data."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchipu import poptorch
from torchipu.host.emit.vectors import has_bfloat_products


class Call(nn.Module):
    """A call on its inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, W, B = normal(4, 6), normal(5, 6, seed=1), normal(5, seed=2)
IMAGE, KERNEL = normal(2, 4, 7, 7), normal(6, 4, 3, 3, seed=1)
BATCH, OTHER = normal(3, 4, 6), normal(3, 6, 5, seed=1)

# Activations come first; the others are weights.
FOLLOWING: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "linear": (F.linear, (X, W, B)),
    "bilinear": (F.bilinear, (X, X, normal(3, 6, 6))),
    "matmul": (lambda x, w: x @ w.t(), (X, W)),
    "torch.matmul": (lambda x, w: torch.matmul(x, w.t()), (X, W)),
    "mm": (lambda x, w: x.mm(w.t()), (X, W)),
    "bmm": (torch.bmm, (BATCH, OTHER)),
    "mv": (torch.mv, (X, normal(6))),
    "Tensor.mv": (lambda x, v: x.mv(v), (X, normal(6))),
    "dot": (torch.dot, (normal(6), normal(6, seed=1))),
    "addmm": (lambda x, w, b: torch.addmm(b, x, w.t()), (X, W, B)),
    "baddbmm": (lambda x, w, b: torch.baddbmm(b, x, w), (BATCH, OTHER, normal(3, 4, 5))),
    "Tensor.baddbmm": (lambda x, w, b: b.baddbmm(x, w), (BATCH, OTHER, normal(3, 4, 5))),
    "einsum": (lambda x, w: torch.einsum("nk,mk->nm", x, w), (X, W)),
    "conv1d": (F.conv1d, (normal(2, 4, 9), normal(3, 4, 3))),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b), (IMAGE, KERNEL, normal(6))),
    "conv3d": (F.conv3d, (normal(1, 2, 4, 4, 4), normal(3, 2, 2, 2, 2))),
    "transposed conv2d": (F.conv_transpose2d, (IMAGE, normal(4, 3, 2, 2))),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (6,), w, b), (X, normal(6), normal(6, seed=1))),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (IMAGE, normal(4), normal(4, seed=1))),
    "batch norm": (
        lambda x, w, b: F.batch_norm(x, b * 0, b * 0 + 1, w, b, training=True), (IMAGE, normal(4), normal(4, seed=1)),
    ),
    "prelu": (F.prelu, (IMAGE, normal(4))),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v), (BATCH, normal(3, 5, 6), normal(3, 5, 6, seed=2)),
    ),
}


@pytest.mark.parametrize("leader", [torch.float16, torch.float32])
@pytest.mark.parametrize("name", FOLLOWING)
def test_products_convolutions_and_norms_follow_the_type_of_the_activations(name: str, leader: torch.dtype) -> None:
    function, (first, *others) = FOLLOWING[name]
    follower = torch.float32 if leader is torch.float16 else torch.float16
    inputs = [first.to(leader), *(other.to(follower) for other in others)]
    found = poptorch.inferenceModel(Call(function))(*inputs)
    assert found.dtype is leader
    exact = function(*(value.half().double() if value is not first else value.to(leader).double()
                       for value in (first, *others)))
    # A half has eleven bits, so has what an operand becomes; sums are of up to 36 products.
    torch.testing.assert_close(found.double(), exact, rtol=4e-3, atol=2e-2)


ELEMENTWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": lambda x, y: x / (y.abs() + 1),
    "maximum": torch.maximum, "pow": lambda x, y: x.abs() ** y, "where": lambda x, y: torch.where(x > 0, x, y),
    "lerp": lambda x, y: x + 0.25 * (y - x), "addcmul": lambda x, y: y + x * x, "cat": lambda x, y: torch.cat([x, y]),
    "stack": lambda x, y: torch.stack([x, y]), "mse": lambda x, y: F.mse_loss(x, y),
}


@pytest.mark.parametrize("order", [(torch.float16, torch.float32), (torch.float32, torch.float16)])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_calls_take_the_wider_type(name: str, order: tuple[torch.dtype, torch.dtype]) -> None:
    function, inputs = ELEMENTWISE[name], (X.to(order[0]), normal(4, 6, seed=5).to(order[1]))
    found = poptorch.inferenceModel(Call(function))(*inputs)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found.double(), function(*(x.double() for x in inputs)), rtol=1e-3, atol=1e-4)


def test_a_number_and_a_cast_do_not_change_the_input() -> None:
    x = X.half()
    half, single, kept = poptorch.inferenceModel(Call(lambda x: (x * 2.5 + 1, x.float(), x)))(x)
    assert (half.dtype, single.dtype, kept.dtype) == (torch.float16, torch.float32, torch.float16)
    assert torch.equal(single, x.float())


class Regressor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.head = nn.Conv1d(3, 8, 3), nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        hidden = torch.relu(self.conv(x)).mean(2)
        out = self.head(self.norm(hidden))
        return out, poptorch.identity_loss((out.float() - y) ** 2, "mean")


def test_float_weights_on_half_data_train_as_float64_does_and_reach_the_labels() -> None:
    model, exact = Regressor(), Regressor().double()
    x = normal(16, 3, 9, seed=3).half()
    y = torch.stack([x.float().mean((1, 2)), x.float().amax((1, 2)) / 3], 1)
    options = poptorch.Options().deviceIterations(25).outputMode(poptorch.OutputMode.All)
    training = poptorch.trainingModel(model, options, optimizer=torch.optim.Adam(model.parameters(), lr=0.01))
    reference, losses, wanted = torch.optim.Adam(exact.parameters(), lr=0.01), [], []
    for _ in range(20):
        out, loss = training(x.repeat(25, 1, 1), y.repeat(25, 1))
        losses += loss.tolist()
    for _ in range(500):
        reference.zero_grad()
        value = exact(x.double(), y.double())[1]
        value.backward()
        reference.step()
        wanted.append(value.item())
    assert out.dtype is torch.float16
    assert {p.dtype for p in training.parameters()} == {torch.float32}
    assert losses[-1] < 1e-2
    # Activations are halves, of eleven bits: an error of a few units of that in what is left of the loss.
    assert abs(losses[0] - wanted[0]) < 5e-3 * wanted[0]
    assert abs(losses[-1] - wanted[-1]) < 2e-3


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop", "LAMB"])
@pytest.mark.parametrize("accumulator", [torch.float16, torch.float32])
@pytest.mark.parametrize("weights", [torch.float16, torch.float32])
def test_every_optimiser_takes_half_and_float_accumulators(
    kind: str, accumulator: torch.dtype, weights: torch.dtype,
) -> None:
    class Squares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.linear = nn.Linear(32, 8)

        def forward(self, x: Tensor) -> Tensor:
            return poptorch.identity_loss(self.linear(x).float() ** 2, "mean")

    model, exact = Squares().to(weights), Squares()
    exact.load_state_dict(copy.deepcopy(model.state_dict()))
    exact = exact.double()
    given = {"lr": 0.01, "loss_scaling": 64.0, "accum_type": accumulator}
    given |= {"momentum": 0.9, "lr": 0.05} if kind == "SGD" else {}
    given |= {"eps": 1e-3} if kind != "SGD" else {}  # else the first updates divide by next to nothing
    optimizer = getattr(poptorch.optim, kind)(model.parameters(), **given)
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    training = poptorch.trainingModel(model, options, optimizer=optimizer)
    plain = {name: value for name, value in given.items() if name not in ("loss_scaling", "accum_type")}
    reference_of = {"LAMB": poptorch.optim.LAMB}.get(kind) or getattr(torch.optim, kind)
    reference = reference_of(exact.parameters(), **plain)
    for step in range(6):
        x = normal(16, 32, seed=step).to(weights)
        training(x)
        reference.zero_grad()
        exact(x.double()).backward()
        reference.step()
    core = training._session().options
    assert core.accumulator_type == ("half" if accumulator is torch.float16 else "float")
    assert core.mean_reduction == ("running" if accumulator is torch.float16 else "post")
    held = {t.dtype.text for t in training._session()._built.states if t.name.startswith("acc.")}
    assert held == {"half" if accumulator is torch.float16 else "float"}
    # Six updates, each off by half a unit of a weight of up to a quarter, or by a gradient's eleven bits.
    tolerance = 3e-3 if weights is torch.float16 else 1e-3 if accumulator is torch.float16 else 2e-5
    for mine, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().double(), theirs.detach(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("of_model", [True, False])
def test_types_that_the_device_lacks_are_computed_as_float32_and_warned_of_once(
    of_model: bool, dtype: torch.dtype, is_training: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torchipu.capture.fx_types._WARNED", set())  # a process is warned once
    model = Regressor().to(dtype if of_model else torch.float32)
    exact, eager_model = copy.deepcopy(model).double(), copy.deepcopy(model)
    x, y = normal(16, 3, 9).to(dtype), normal(16, 2)
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)) if is_training \
        else poptorch.inferenceModel(model)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        out, _ = executor(x, y)
        executor(x, y)
    words = f"{dtype} does not exist on the IPU; it is computed as float"
    # Inputs that a float32 model is given become float32 before it sees them, as in PopTorch.
    assert len([one for one in seen if words in str(one.message)]) == int(of_model)
    assert out.dtype is torch.float32
    wanted, _ = exact(x.double(), y.double())
    if of_model and dtype is torch.bfloat16 and has_bfloat_products():
        # Products are of bfloat16 then, as torch means them: no further off than its own.
        eager, _ = eager_model(x, y.to(dtype))
        assert (out - wanted).abs().max() <= (eager - wanted).abs().max()
        return
    torch.testing.assert_close(out.double(), wanted.detach(), rtol=1e-4, atol=1e-5)  # no bit of bfloat16 is lost
