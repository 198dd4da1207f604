"""Normalisations against eager float64: all forms of affine parameters, running statistics and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.ops.judge import judge

DTYPES = [torch.float32, torch.float16]
CHANNELS_FIRST = [(4, 6), (4, 6, 5), (2, 6, 4, 5), (2, 6, 3, 4, 2)]


def tensors(*shapes: tuple[int, ...], grads: str = "") -> list[torch.Tensor]:
    """Return random tensors; ``grads`` says for each whether it needs a gradient (y or n), all by default."""
    torch.manual_seed(0)
    marks = grads or "y" * len(shapes)
    return [torch.randn(shape, requires_grad=mark == "y") for shape, mark in zip(shapes, marks, strict=True)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("momentum", [0.1, 0.0])
@pytest.mark.parametrize("shape", CHANNELS_FIRST, ids=str)
def test_batch_norm_module_trains_and_keeps_its_statistics(
    shape: tuple[int, ...], momentum: float, affine: bool, dtype: torch.dtype,
) -> None:
    kind = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[CHANNELS_FIRST.index(shape)]
    module = kind(6, momentum=momentum, affine=affine)
    state = {name: value.clone() for name, value in module.state_dict().items()}

    def step(x: torch.Tensor, state: dict[str, torch.Tensor]) -> Any:
        y = torch.func.functional_call(module, state, (x,))
        return y, state["running_mean"], state["running_var"]

    module.train()
    judge(step, *tensors(shape), state, dtype=dtype)
    module.eval()
    judge(step, *tensors(shape), state, dtype=dtype)


def test_batch_norm_module_averages_over_all_batches() -> None:
    # Without momentum the module reads its counter on the host: Dynamo breaks the graph there, for every backend.
    ours, exact = nn.BatchNorm2d(6, momentum=None), nn.BatchNorm2d(6, momentum=None).double()
    torch._dynamo.reset()
    compiled = torch.compile(ours, backend="ipu")
    for batch in torch.randn(3, 4, 6, 5, 5, generator=torch.Generator().manual_seed(0)):
        torch.testing.assert_close(compiled(batch).double(), exact(batch.double()), rtol=1e-5, atol=1e-5)
    for name, value in exact.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name].to(value.dtype), value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("grads", ["yyy", "nyy", "ynn", "nny"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", CHANNELS_FIRST, ids=str)
def test_batch_norm_gives_any_subset_of_its_gradients(shape: tuple[int, ...], training: bool, grads: str) -> None:
    mean, var = torch.randn(6), torch.rand(6) + 0.5
    judge(lambda x, w, b, m, v: F.batch_norm(x, None if training else m, None if training else v, w, b, training),
          *tensors(shape, (6,), (6,), grads=grads), mean, var)


@pytest.mark.parametrize("shape", [(1, 6, 1, 2), (2, 1), (2, 1, 1, 1), (0, 6, 4, 5)], ids=str)
def test_batch_norm_of_degenerate_sizes(shape: tuple[int, ...]) -> None:
    count = shape[1]
    judge(lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, shape[0] > 0), *tensors(shape, (count,), (count,)),
          torch.zeros(count), torch.ones(count))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("grads", ["yyy", "ynn", "nyn", "nny"])
@pytest.mark.parametrize("sizes", [((4, 6), (6,)), ((2, 3, 4, 5), (4, 5)), ((3, 1), (1,)), ((7,), (7,))], ids=str)
def test_layer_norm_gives_any_subset_of_its_gradients(sizes: Any, grads: str, dtype: torch.dtype) -> None:
    shape, normalised = sizes
    judge(lambda x, w, b: F.layer_norm(x, normalised, w, b), *tensors(shape, normalised, normalised, grads=grads),
          dtype=dtype)


@pytest.mark.parametrize("function", [
    lambda x: F.layer_norm(x, (6,)), lambda x: F.layer_norm(x, (6,), bias=torch.ones(6, dtype=x.dtype)),
    lambda x: F.group_norm(x[..., None], 1),
])
def test_norms_without_parameters(function: Callable[..., Any]) -> None:
    judge(function, *tensors((4, 6)))


def test_an_empty_batch_gives_an_empty_result_and_gradients_of_zero() -> None:
    judge(lambda x, w, b: F.layer_norm(x, (6,), w, b), *tensors((0, 6), (6,), (6,)))
    judge(lambda x: F.layer_norm(x, (3, 2)), *tensors((0, 4, 3, 2)))
    judge(lambda x, w, b: F.group_norm(x, 2, w, b), *tensors((0, 6, 3), (6,), (6,)))
    judge(lambda x, w: F.rms_norm(x, (6,), w), *tensors((0, 6), (6,)))
    judge(lambda x: F.instance_norm(x), *tensors((0, 6, 3)))
    for trains in (True, False):
        statistics = torch.zeros(6), torch.ones(6)
        judge(lambda x, m, v, t=trains: F.batch_norm(x, m, v, training=t), *tensors((0, 6, 3)), *statistics)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("grads", ["yyy", "ynn", "nyn", "nny"])
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("shape", CHANNELS_FIRST[1:], ids=str)
def test_group_norm_gives_any_subset_of_its_gradients(
    shape: tuple[int, ...], groups: int, grads: str, dtype: torch.dtype,
) -> None:
    judge(lambda x, w, b: F.group_norm(x, groups, w, b), *tensors(shape, (6,), (6,), grads=grads), dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", CHANNELS_FIRST[1:], ids=str)
def test_instance_norm_and_its_running_statistics(shape: tuple[int, ...], affine: bool, dtype: torch.dtype) -> None:
    weight, bias = (torch.randn(6, requires_grad=True), torch.randn(6, requires_grad=True)) if affine else (None, None)
    judge(lambda x, w, b: F.instance_norm(x, weight=w, bias=b), *tensors(shape), weight, bias, dtype=dtype)
    judge(lambda x, w, b, m, v: F.instance_norm(x, m, v, w, b, use_input_stats=False), *tensors(shape), weight, bias,
          torch.randn(6), torch.rand(6) + 0.5, dtype=dtype)


def test_instance_norm_updates_running_statistics() -> None:
    def function(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> Any:
        mean, var = mean.clone(), var.clone()
        return F.instance_norm(x, mean, var, momentum=0.2), mean, var

    judge(function, *tensors((2, 6, 4, 5)), torch.zeros(6), torch.ones(6))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("grads", ["yy", "yn", "ny"])
@pytest.mark.parametrize("sizes", [((4, 6), (6,)), ((2, 3, 4, 5), (4, 5)), ((3, 1), (1,)), ((9, 130), (130,))], ids=str)
def test_rms_norm_gives_any_subset_of_its_gradients(sizes: Any, grads: str, dtype: torch.dtype) -> None:
    shape, normalised = sizes
    judge(lambda x, w: F.rms_norm(x, normalised, w, 1e-6), *tensors(shape, normalised, grads=grads), dtype=dtype)


def test_rms_norm_without_weight_or_eps() -> None:
    judge(lambda x: F.rms_norm(x, (6,), eps=1e-5), *tensors((4, 6)))
    judge(lambda x, w: F.rms_norm(x, (6,), w), *tensors((4, 6), (6,)), rtol=1e-4)


@pytest.mark.parametrize("dim", [0, 1, None])
def test_weight_norm_of_a_linear_layer(dim: int | None) -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(6, 4), dim=dim)
    judge(lambda x, state: torch.func.functional_call(layer, state, (x,)), *tensors((3, 6)), grads_of(layer))


def test_weight_norm_of_the_old_form() -> None:
    judge(lambda v, g: torch._weight_norm(v, g, 0), *tensors((4, 6, 3), (4, 1, 1)))
    judge(lambda v, g: torch._weight_norm(v, g, 2), *tensors((4, 6, 3), (1, 1, 3)))
    judge(lambda v, g: torch._weight_norm(v, g, 0), *tensors((5, 7), (5, 1)), dtype=torch.float16)


@pytest.mark.parametrize("training", [True, False])
def test_spectral_norm_of_a_linear_layer(training: bool) -> None:
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4)).train(training)
    judge(lambda x, state: torch.func.functional_call(layer, state, (x,)), *tensors((3, 6)), grads_of(layer))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", CHANNELS_FIRST[1:], ids=str)
def test_local_response_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    judge(lambda x: F.local_response_norm(x, 3, alpha=0.3, beta=0.7, k=1.5), *tensors(shape), dtype=dtype)


@pytest.mark.parametrize("width", [3, 8, 37])
def test_layer_norm_without_a_shift_has_no_negative_zero(width: int) -> None:
    zeros = torch.tensor([0.0, -0.0])[torch.randint(0, 2, (9, width), generator=torch.Generator().manual_seed(0))]
    for dtype in DTYPES:
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: F.layer_norm(x, x.shape[1:]), backend="ipu")
        exact = F.layer_norm(zeros.double(), zeros.shape[1:])
        assert torch.equal(compiled(zeros.to(dtype)).signbit(), exact.signbit())


def grads_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the state of a module, with gradients for its parameters."""
    parameters = dict(module.named_parameters())
    return {name: value.detach().clone().requires_grad_(name in parameters) for name, value in
            module.state_dict().items()}
