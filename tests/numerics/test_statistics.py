"""Magnitudes of every result, counted in the program, and the loss scale that follows from them."""

from __future__ import annotations

import gc

import numpy as np
import poptorch
import pytest
import torch

import torchipu
from torchipu.errors import OptionsError
from torchipu.runtime.statistics import TensorStatistics, suggest_loss_scale


class Square(torch.nn.Module):
    def forward(self, x):
        return x * x


def counted(x, **options):
    step = torchipu.InferenceStep(Square(), torchipu.Options(statistics=True, **options))
    step(x)
    return next(one for one in step.statistics if one.kind == "mul")


def values(dtype):
    generator = torch.Generator().manual_seed(1)
    x = torch.exp2(torch.randint(-60, 40, (5000,), generator=generator) / 4) * torch.rand(5000, generator=generator)
    return torch.cat([x, torch.tensor([0.0, 0.0, torch.inf, torch.nan, -3.0])]).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_counts_equal_those_of_numpy(dtype):
    x = values(dtype)
    found, result = counted(x), (x * x).double().numpy()
    finite = np.abs(result[np.isfinite(result)])
    nonzero = result[result != 0]
    assert found.elements == 5005
    assert found.zeros == int((result == 0).sum())
    assert found.nans == 1
    assert found.infinities == int(np.isinf(result).sum())
    assert found.abs_max == finite.max()
    for scale in (1.0, 2.0**10, 2.0**-6):
        with np.errstate(all="ignore"):
            scaled = np.abs(nonzero) * scale
        below = scaled < 2.0**-25
        assert found.underflow(scale) == pytest.approx(below.mean(), abs=1e-12)
        assert found.subnormal(scale) == pytest.approx(((scaled < 2.0**-14) & ~below).mean(), abs=1e-12)
        assert found.overflow(scale) == pytest.approx((~(scaled < 2.0**16)).mean(), abs=1e-12)


def test_counts_are_of_all_micro_batches_of_the_last_call():
    x = torch.randn(12, 7)
    step = torchipu.InferenceStep(Square(), torchipu.Options(statistics=True, device_iterations=4))
    for _ in range(2):
        step(x)
        assert step.statistics[0].elements == 84


class Small(torch.nn.Module):
    """A half model whose gradients are too small for halves."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x):
        return self.linear(x).square().mean()


def test_the_suggested_loss_scale_saves_gradients_from_underflow():
    torch.manual_seed(0)
    x = (torch.randn(32, 64) * 1e-2).half()

    def gradients(scale):
        torch.manual_seed(0)
        model = Small().half()
        step = torchipu.TrainStep(
            model, torch.optim.SGD(model.parameters(), lr=0.0),
            torchipu.Options(statistics=True, loss_scaling=scale),
        )
        step(x)
        return step

    first = gradients(1.0)
    weight = [one for one in first.statistics if one.leg == "backward"]
    lost = sum(one.zeros + one.elements * one.subnormal() for one in weight)
    scale = suggest_loss_scale(first.statistics)
    assert scale > 64
    assert np.log2(scale) % 1 == 0
    second = gradients(scale)
    backward = [one for one in second.statistics if one.leg == "backward"]
    assert sum(one.zeros + one.elements * one.subnormal() for one in backward) < lost / 4
    assert all(one.infinities == 0 and one.abs_max <= 65504 / 2 for one in backward)
    assert suggest_loss_scale(second.statistics, current=scale) == scale


def test_the_text_report_shows_them_with_their_lines():
    step = torchipu.InferenceStep(Square(), torchipu.Options(statistics=True))
    step(torch.tensor([1e-9, 3.0, 500.0]))
    text = step.profile.text()
    table = text[text.index("magnitudes in the last call") :].splitlines()
    assert table[1].split() == [
        "tensor", "op", "leg", "type", "elements", "abs", "max", "zero", "underflow", "subnormal", "overflow", "source",
    ]
    assert table[2].split()[1:9] == ["mul", "forward", "float", "3", "2.5e+05", "0.0%", "33.3%", "0.0%"]
    assert "test_statistics.py" in table[2]
    assert "return x * x" in table[2]
    assert "magnitudes" not in _without_statistics().profile.text()


def _without_statistics():
    step = torchipu.InferenceStep(Square())
    step(torch.ones(3))
    return step


def test_a_program_that_does_not_count_says_how_to_let_it():
    step = _without_statistics()
    with pytest.raises(OptionsError, match=r"(?s)does not count magnitudes.*Options\(statistics=True\)"):
        _ = step.statistics


def test_an_empty_list_suggests_the_largest_scale():
    assert suggest_loss_scale(()) == 2.0**15
    zeros = TensorStatistics("g", "mm", "backward", "half", "", (4, *[0] * 255), 0.0, 0)
    assert suggest_loss_scale([zeros]) == 2.0**15
    assert zeros.underflow() == 0.0


def compiled(function, *inputs):
    torch._dynamo.reset()
    return torch.compile(function, backend="ipu", dynamic=False, options={"statistics": True})(*inputs)


def test_programs_of_torch_compile_count_forwards_and_backwards():
    weight = torch.full((3,), 2.0, dtype=torch.half, requires_grad=True)
    loss = compiled(lambda x, w: (x * w).sum(), torch.tensor([1e-7, 1.0, 300.0]).half(), weight)
    loss.backward()
    found = {(one.leg, one.kind): one for one in torchipu.statistics()[-4:]}
    assert found["forward", "mul"].abs_max == 600.0
    assert found["forward", "mul"].subnormal() == pytest.approx(1 / 3)
    assert found["backward", "mul"].abs_max == 300.0
    assert "test_statistics.py" in found["forward", "mul"].source


def test_a_program_that_is_gone_or_has_not_run_is_left_out():
    before = len(torchipu.statistics())
    step = torchipu.InferenceStep(Square(), torchipu.Options(statistics=True))
    step.compile(torch.ones(3))
    assert len(torchipu.statistics()) == before
    step(torch.ones(3))
    assert torchipu.statistics()[before:] == step.statistics
    del step
    gc.collect()
    assert len(torchipu.statistics()) == before


def test_a_poptorch_program_counts_every_micro_batch():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((2,), 3.0))

        def forward(self, x):
            return poptorch.identity_loss(x * self.weight, reduction="sum")

    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    options._Popart.set("torchipu.statistics", True)
    model = Model()
    training = poptorch.trainingModel(model, options, optimizer=torch.optim.SGD(model.parameters(), lr=0.0))
    before = len(torchipu.statistics())
    training(torch.arange(8.0).view(4, 2))
    found = torchipu.statistics()[before:]
    product = next(one for one in found if one.kind == "mul" and one.leg == "forward")
    assert product.elements == 8
    assert product.abs_max == 21.0
    assert suggest_loss_scale(found) == 2.0**9  # the accumulated gradient is 16, and 65504 / (4 * 16) is 1023


@pytest.mark.parametrize(("is_set", "wanted"), [(True, torch.nan), (False, 65504.0), (None, torch.inf)])
def test_poptorch_says_what_becomes_of_an_overflow(is_set, wanted):
    options = poptorch.Options()
    if is_set is not None:
        options._Popart.set("enableNanoo", is_set)
    found = poptorch.inferenceModel(Square(), options)(torch.tensor([300.0]).half())
    torch.testing.assert_close(found, torch.tensor([wanted]).half(), equal_nan=True)


def test_an_explanation_shows_them_though_the_program_is_gone():
    text = torchipu.explain(Square(), torch.tensor([1e-9, 3.0, 500.0]), options={"statistics": True}).text()
    table = text[text.index("Magnitudes in the last runs") :].splitlines()
    assert table[2].split()[1:9] == ["mul", "forward", "float", "3", "2.5e+05", "0.0%", "33.3%", "0.0%"]
    assert "Magnitudes" not in torchipu.explain(Square(), torch.ones(3)).text()
