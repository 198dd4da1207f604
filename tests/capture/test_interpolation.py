"""Interpolation is one op each way, through every door, and gives what eager PyTorch gives in double precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

import torchipu
from torchipu.backend import COUNTS
from torchipu.capture.whole_ops import whole
from torchipu.host.executor import GraphExecutor
from torchipu.ir.graph import Graph

MODES = {
    1: ("nearest", "nearest-exact", "linear"),
    2: ("nearest", "nearest-exact", "bilinear", "bicubic"),
    3: ("nearest", "nearest-exact", "trilinear"),
}
SIZES: dict[str, dict[str, Any]] = {
    "doubled": {"scale_factor": 2}, "by a fraction": {"scale_factor": 1.7}, "smaller": {"scale_factor": 0.6},
    "to a size": {"size": (9, 11, 5)}, "by the sizes": {"scale_factor": 1.7, "recompute_scale_factor": True},
}


class Interpolating(nn.Module):
    """Interpolates its input."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, **self.how)


def how_of(mode: str, dims: int, sizes: str) -> dict[str, Any]:
    """Return the arguments of an interpolation."""
    given = dict(SIZES[sizes])
    if "size" in given:
        given["size"] = given["size"][:dims]
    return {**given, "mode": mode}


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("dims", "mode"), [(dims, mode) for dims, modes in MODES.items() for mode in modes])
def test_results_and_gradients_are_those_of_eager_pytorch(dims: int, mode: str, sizes: str) -> None:
    model = Interpolating(**how_of(mode, dims, sizes))
    x = torch.randn(2, 3, *(7, 6, 5)[:dims], generator=torch.Generator().manual_seed(dims), requires_grad=True)
    torch._dynamo.reset()  # the same forward has been captured for other arguments
    exact = x.detach().double().requires_grad_()
    wanted = model(exact)
    weights = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1))
    (wanted * weights).sum().backward()
    result = torch.compile(model, backend="ipu", fullgraph=True)(x)
    (result * weights).sum().backward()
    torch.testing.assert_close(result.double(), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("how", [
    {"mode": "nearest", "scale_factor": 2}, {"mode": "bilinear", "scale_factor": 2, "align_corners": True},
    {"mode": "bicubic", "size": (5, 9)}, {"mode": "bilinear", "size": (3, 4), "antialias": True},
])
def test_a_step_holds_the_op_and_no_gathers(how: dict[str, Any]) -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 3, 7, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.interpolate(x * self.weight, **how).square().mean()

    model = Loss()
    step = torchipu.TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.1), options=torchipu.Options(host_times=True),
    )
    step(torch.randn(2, 3, 7, 6))
    targets = {timed.op.target for timed in step.observed().steps if timed.op is not None}
    assert not any("index" in target or "arange" in target for target in targets)
    assert sum("upsample" in target for target in targets) == 2


@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "nearest-exact"])
def test_sizes_that_change_take_other_weights(mode: str, sizes: str, is_training: bool) -> None:
    torch._dynamo.reset()
    model = Interpolating(**how_of(mode, 2, sizes))
    compiled = torch.compile(model, backend="ipu", dynamic=True)
    for size in (5, 8, 13):
        x = torch.randn(1, 2, size, size + 1, requires_grad=is_training)
        y = compiled(x)
        torch.testing.assert_close(y, model(x))
        if is_training:
            assert torch.allclose(*torch.autograd.grad(y.sum(), x), *torch.autograd.grad(model(x).sum(), x), atol=1e-5)


@pytest.mark.parametrize(("dims", "how"), [
    (1, {"mode": "linear", "scale_factor": 2}), (2, {"mode": "nearest", "scale_factor": 2}),
    (2, {"mode": "bilinear", "scale_factor": 1.7}), (2, {"mode": "bicubic", "scale_factor": 2, "align_corners": True}),
    (2, {"mode": "bilinear", "scale_factor": 0.6, "antialias": True}), (3, {"mode": "trilinear", "scale_factor": 2}),
    (3, {"mode": "nearest-exact", "scale_factor": 1.5}),
])
def test_gradients_of_any_size_are_one_op_too(dims: int, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    targets: list[str] = []
    made = GraphExecutor.__init__

    def noted(executor: GraphExecutor, graph: Graph, *args: Any, **kwargs: Any) -> None:
        targets.extend(op.target for op in graph.ops)
        made(executor, graph, *args, **kwargs)

    monkeypatch.setattr(GraphExecutor, "__init__", noted)
    model = Interpolating(**how)
    compiled, before = torch.compile(model, backend="ipu", dynamic=True, fullgraph=True), COUNTS.passes
    for size in (5, 8, 13):
        x = torch.randn(2, 3, *(size, size + 1, size + 2)[:dims])
        x = x.to(memory_format=torch.channels_last) if dims == 2 and size == 8 else x
        x.requires_grad_()
        exact = x.detach().double().requires_grad_()
        result, wanted = compiled(x), model(exact)
        weights = torch.randn(wanted.shape)
        (result * weights).sum().backward()
        (wanted * weights).sum().backward()
        torch.testing.assert_close(result.double(), wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(x.grad.double(), exact.grad, rtol=1e-4, atol=1e-4)
    assert sum(target.endswith("_backward.default") for target in targets) >= 3
    assert not [target for target in targets if "index" in target or "gather" in target]
    assert COUNTS.passes - before <= 4


@pytest.mark.parametrize("dims", MODES)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_no_samples_have_no_nearest_elements_and_samples_without_elements_are_refused(mode: str, dims: int) -> None:
    torch._dynamo.reset()
    model = Interpolating(mode=mode, scale_factor=2)
    compiled = torch.compile(model, backend="ipu")
    x = torch.zeros(0, 4, *(3, 5, 2)[:dims], requires_grad=True)
    result = compiled(x)
    assert result.shape == model(x).shape
    result.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape
    with pytest.raises(Exception, match=f"Non-empty {dims + 2}D data tensor expected"):
        compiled(torch.zeros(2, 0, *(3, 5, 2)[:dims]))


def test_torchs_own_implementations_come_back() -> None:
    overloads = [torch.ops.aten.upsample_bilinear2d.vec, torch.ops.aten.upsample_nearest2d.default]
    before = [dict(overload.py_kernels) for overload in overloads]

    def stopping() -> None:
        with whole():
            assert [dict(overload.py_kernels) for overload in overloads] != before
            raise ValueError("stopped")

    with pytest.raises(ValueError, match="stopped"):
        stopping()
    assert [dict(overload.py_kernels) for overload in overloads] == before


def test_other_backends_take_interpolations_apart_as_before() -> None:
    torch._dynamo.reset()
    seen: list[str] = []

    def watching(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        seen.extend(str(node.target) for node in module.graph.nodes)
        return make_boxed_func(module.forward)

    model = Interpolating(mode="nearest", scale_factor=2)
    torchipu.InferenceStep(model)(torch.randn(1, 2, 3, 3))
    torch.compile(model, backend=aot_autograd(fw_compiler=watching))(torch.randn(1, 2, 3, 3))
    assert any("index" in target for target in seen)
