"""torch's types of 8 bits hold, move and cast values as eager and published tables have them."""

from __future__ import annotations

import copy

import gfloat
import numpy as np
import poptorch
import pytest
import torch
from gfloat.formats import format_info_ocp_e4m3, format_info_ocp_e5m2
from torch import nn

import torchipu
from tests.releases import CASTS_BEYOND
from torchipu.errors import ConstraintError, UnsupportedOpError
from torchipu.fp8.torch_types import TYPES
from torchipu.report.recorder import recording

PUBLISHED = {"e4m3fn": format_info_ocp_e4m3, "e5m2": format_info_ocp_e5m2}
E4M3 = torch.float8_e4m3fn


def compiled(function, *inputs, **options):
    torch._dynamo.reset()
    chosen = {"target": "c600", **options}
    return torch.compile(function, backend="ipu", dynamic=False, fullgraph=True, options=chosen)(*inputs)


def same_bytes(ours, eagers):
    assert ours.dtype == eagers.dtype
    assert torch.equal(ours.view(torch.uint8), eagers.view(torch.uint8))


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int32])
def test_every_byte_has_its_value(name, dtype):
    codes = torch.arange(256, dtype=torch.uint8).view(TYPES[name])
    if not dtype.is_floating_point:
        codes = codes[codes.float().isfinite() & (codes.float().abs() < 1e4)]
    torch.testing.assert_close(compiled(lambda c: c.to(dtype), codes), codes.to(dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", PUBLISHED)
def test_values_are_those_of_the_published_format(name):
    codes = torch.arange(256, dtype=torch.uint8)
    found = compiled(lambda c: c.view(TYPES[name]).float(), codes)
    wanted = [gfloat.decode_float(PUBLISHED[name], code).fval for code in range(256)]
    np.testing.assert_array_equal(found.numpy(), np.array(wanted, np.float32))


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=CASTS_BEYOND) if TYPES[name] is torch.float8_e4m3fn else name for name in TYPES
])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_casts_round_as_eager_does_on_every_edge(name, dtype):
    values = torch.arange(256, dtype=torch.uint8).view(TYPES[name]).float()
    finite = values[values.isfinite()].sort().values
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(4000, generator=generator) * torch.exp2(torch.randint(-20, 18, (4000,), generator=generator))
    edges = [values, (finite[1:] + finite[:-1]) / 2, torch.nextafter(finite, torch.tensor(torch.inf)), finite * 1.07]
    given = torch.cat([*edges, random, torch.tensor([torch.inf, -torch.inf, 0.0, -0.0, 1e38, -1e38])]).to(dtype)
    given = given[~given.isnan()]
    same_bytes(compiled(lambda v: v.to(TYPES[name]), given), given.to(TYPES[name]))
    assert compiled(lambda v: v.to(TYPES[name]), torch.tensor([torch.nan])).float().isnan().all()


def test_what_moves_values_moves_their_bytes():
    x = torch.randn(4, 6).to(E4M3)

    def moved(x):
        parts = x.t().reshape(3, 8).split(4, 1)
        return torch.cat([parts[1], parts[0].flip(0)], 1)[:, 1:], x.clone().unsqueeze(0).expand(2, 4, 6)[..., ::2]

    for ours, eagers in zip(compiled(moved, x), moved(x), strict=True):
        same_bytes(ours.contiguous(), eagers.contiguous())


def test_made_and_written_values():
    def made(x):
        zeros = torch.zeros(2, 3, dtype=E4M3)
        full = torch.full((3,), 0.3, dtype=torch.float8_e5m2)
        kept = torch.empty(2, 3, dtype=E4M3).copy_(x)
        return zeros, full, kept, x.to(E4M3).to(torch.float8_e5m2)

    x = torch.randn(2, 3)
    for ours, eagers in zip(compiled(made, x), made(x), strict=True):
        same_bytes(ours, eagers)


@pytest.mark.parametrize("out", [torch.float16, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("by_row", [False, True])
def test_scaled_products_are_those_of_eager(out, by_row):
    a, b = (torch.randn(32, 48) * 3).to(E4M3), (torch.randn(16, 48) * 3).to(E4M3)
    shapes = ((32, 1), (1, 16)) if by_row else ((), ())
    scales = [torch.rand(shape) + 0.5 for shape in shapes]

    def product(a, b, *scales):
        return torch._scaled_mm(a, b.t(), *scales, out_dtype=out)

    exact = (a.double() @ b.double().t() * scales[0] * scales[1])
    found = compiled(product, a, b, *scales)
    assert found.dtype is out
    tolerance = {torch.float16: 1e-3, torch.float32: 1e-5, torch.bfloat16: 1e-2}[out]
    torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=tolerance)


class Narrow(nn.Module):
    """A layer whose weights lie in 8 bits with a scale for each output."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 448
        self.register_buffer("weight", (linear.weight.detach() / scale).to(E4M3))
        self.register_buffer("scale", scale)
        self.bias = nn.Parameter(linear.bias.detach().clone())

    def forward(self, x):
        return nn.functional.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype), self.bias)


def narrow_model():
    torch.manual_seed(0)
    return nn.Sequential(Narrow(nn.Linear(12, 16)), nn.ReLU(), Narrow(nn.Linear(16, 4)))


def test_weights_of_8_bits_serve_inference_through_every_door():
    model, x = narrow_model(), torch.randn(5, 12)
    expected = model(x)
    torch.testing.assert_close(compiled(model, x), expected, rtol=1e-5, atol=1e-5)
    step = torchipu.InferenceStep(model, torchipu.Options(target="c600"))
    torch.testing.assert_close(step(x), expected, rtol=1e-5, atol=1e-5)


def test_a_step_trains_beside_weights_of_8_bits_that_stay():
    model, x = narrow_model(), torch.randn(5, 12)
    eager = copy.deepcopy(model)

    class Loss(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x).square().mean()

    step = torchipu.TrainStep(Loss(model), torch.optim.SGD(model.parameters(), 0.5), torchipu.Options(target="c600"))
    optimiser, loss = torch.optim.SGD(eager.parameters(), 0.5), Loss(eager)
    for _ in range(3):
        optimiser.zero_grad()
        expected = loss(x)
        expected.backward()
        optimiser.step()
        torch.testing.assert_close(step(x), expected.detach(), rtol=1e-4, atol=1e-5)
    same_bytes(model[0].weight, eager[0].weight)


def test_they_take_a_byte_of_tile_memory():
    weight = torch.randn(64, 64)

    def size(dtype):
        with recording() as programs:
            compiled(lambda x, w: x @ w.to(x.dtype), torch.randn(2, 64), weight.to(dtype))
        held = next(tensor for tensor in programs[0].graph.inputs if tensor.shape == (64, 64))
        return held.dtype.device_bytes

    assert (size(E4M3), size(torch.float16)) == (1, 2)


@pytest.mark.parametrize("target", ["mk1", "mk2", "bow"])
def test_machines_without_them_refuse_them_by_name(target):
    with pytest.raises(Exception, match="has no floats of 8 bits") as caught:
        compiled(lambda x: x.to(E4M3).float(), torch.randn(4), target=target)
    refused = getattr(caught.value, "inner_exception", caught.value)
    assert isinstance(refused, ConstraintError)
    assert "torch.float8_e4m3fn" in str(refused)
    assert "target='c600'" in str(refused)
    assert "test_float8_types.py" in str(refused)


@pytest.mark.parametrize("function", [
    lambda x: x + x, lambda x: x.sum(), lambda x: x.relu(), lambda x: x.clamp(0, 1),
])
def test_arithmetic_is_refused_with_what_to_do(function):
    with pytest.raises(Exception, match=r"there is no arithmetic on torch\.float8_e4m3fn") as caught:
        compiled(function, torch.randn(4).to(E4M3))
    refused = getattr(caught.value, "inner_exception", caught.value)
    assert isinstance(refused, UnsupportedOpError)
    assert "cast to float16" in str(refused)


def test_a_program_of_poptorch_takes_them(monkeypatch):
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "1")
    monkeypatch.setenv("POPTORCH_IPU_MODEL_VERSION", "ipu21")
    model, x = narrow_model(), torch.randn(5, 12)
    torch.testing.assert_close(poptorch.inferenceModel(model)(x), model(x), rtol=1e-5, atol=1e-5)
