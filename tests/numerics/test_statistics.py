"""Magnitudes of every result, counted in the program, and the loss scale that follows from them."""

from __future__ import annotations

import gc
import json
import re

import numpy as np
import poptorch
import pytest
import torch

import torchipu
from torchipu.errors import OptionsError
from torchipu.host.statistics import TensorStatistics, suggest_loss_scale


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


def half_step(**options):
    torch.manual_seed(0)
    model = Small().half()
    return torchipu.TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.0), torchipu.Options(statistics=True, **options),
    )


def test_the_report_of_training_says_which_loss_scale_to_take_and_why():
    torch.manual_seed(0)
    x = (torch.randn(32, 64) * 1e-2).half()
    step = half_step()
    assert "loss scale" not in step_text(step, x, run=False)
    text = step_text(step, x)
    advice = text[text.index("loss scale:") :].splitlines()
    scale = suggest_loss_scale(step.statistics)
    assert advice[0] == f"loss scale: 1 was used; {scale:g} is suggested"
    largest = max((one for one in step.statistics if one.leg == "backward"), key=lambda one: one.abs_max)
    assert advice[1].startswith(f"largest gradient: {largest.abs_max:.3g} in %{largest.name} ({largest.kind}, ")
    assert "test_statistics.py" in advice[1]
    assert 65504 / 8 <= largest.abs_max * scale <= 65504 / 4
    now, then = (float(part) for part in re.findall(r"([0-9.]+)%", advice[2]))
    assert then < now / 4
    at_it = half_step(loss_scaling=scale)
    assert f"loss scale: {scale:g} was used and suits" in step_text(at_it, x)


def step_text(step, x, *, run=True):
    step(x) if run else step.compile(x)
    return step.profile.text()


def test_a_scale_at_which_gradients_overflow_is_halved_and_the_op_is_named():
    step = half_step(loss_scaling=2.0**30)
    text = step_text(step, torch.ones(4, 64).half())
    assert re.search(
        r"loss scale: 1.07374e\+09 was used and is too large: %\S+ \(\w+, .*test_statistics.py.*\) overflowed; \S+ is "
        "suggested", text,
    )
    assert torchipu.suggest_loss_scale(step.statistics, current=2.0**30) <= 2.0**15
    one = TensorStatistics("g", "mm", "backward", "half", "", (*[0] * 120, 5, *[0] * 134, 1), 2.0**-7, 0)
    assert suggest_loss_scale([one], current=48.0) == 32.0  # what is finite would allow more


def test_halves_count_before_floats_and_nothing_but_zeros_asks_for_the_most():
    def of(dtype, exponent, leg="backward"):
        exponents = [0] * 256
        exponents[exponent + 127] = 7
        return TensorStatistics(f"{dtype}{exponent}", "mm", leg, dtype, "", tuple(exponents), 2.0**exponent, 0)

    assert suggest_loss_scale([of("half", 2), of("float", 12), of("half", 13, "forward")]) == 2.0**11
    assert suggest_loss_scale([of("float", 12)]) == 2.0
    advice = torchipu.advise_loss_scale([of("half", -20), of("half", 0)], current=4.0)
    assert (advice.suggested, advice.lost, advice.lost_then) == (2.0**15, 0.5, 0.0)
    zeros = TensorStatistics("g", "mm", "backward", "half", "", (4, *[0] * 255), 0.0, 0)
    assert "32768 is suggested, the most that a half holds: all gradients are zero" in str(
        torchipu.advise_loss_scale([zeros])
    )


@pytest.mark.parametrize("automatic", [False, True])
def test_a_poptorch_program_writes_them_into_the_folder_of_its_report(tmp_path, automatic):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Small()

        def forward(self, x):
            with poptorch.Block("only", ipu_id=0):
                return poptorch.identity_loss(self.inner(x), reduction="none")

    options = poptorch.Options().enableProfiling(tmp_path)
    options._Popart.set("torchipu.statistics", True)
    options.Training.setAutomaticLossScaling(automatic)
    model = Model().half()
    optimiser = poptorch.optim.SGD(model.parameters(), lr=0.0, loss_scaling=16.0)
    training = poptorch.trainingModel(model, options, optimizer=optimiser)
    x = (torch.randn(32, 64) * 1e-2).half()
    training.compile(x)
    assert not (tmp_path / "training" / "numerics.json").exists()
    for used in (16.0, 32.0 if automatic else 16.0):
        training(x)
        report = json.loads((tmp_path / "training" / "numerics.json").read_text())
        assert report["loss_scale"] == used
    assert (report["format"], report["version"]) == ("torchipu.numerics", 1)
    found = {(one["leg"], one["kind"], one["name"]): one for one in report["tensors"]}
    counted = torchipu.statistics()[-len(found) :]
    for one in counted:
        shown = found[one.leg, one.kind, one.name]
        assert shown["abs_max"] == one.abs_max
        assert shown["underflow"] == one.underflow()
        assert shown["overflow"] == one.overflow()
        assert shown["source"] == one.source
        assert shown["block"].startswith("only (ipu 0, stage 0, ")
    assert report["suggested_loss_scale"] == suggest_loss_scale(counted, current=used)
    text = (tmp_path / "training" / "numerics.txt").read_text()
    assert f"loss scale: {used:g} was used; {report['suggested_loss_scale']:g} is suggested" in text
    assert text.startswith("tensor")
    assert sorted(path.name for path in (tmp_path / "training").iterdir()) == [
        ".report.lock", "debug.cbor", "numerics.json", "numerics.txt", "profile.pop", "report.html", "summary.json",
        "trace.json.gz",
    ]


def test_an_inference_program_writes_them_without_advice(tmp_path):
    options = poptorch.Options().enableProfiling(tmp_path)
    options._Popart.set("torchipu.statistics", True)
    poptorch.inferenceModel(Square(), options)(torch.tensor([2.0]))
    report = json.loads((tmp_path / "inference" / "numerics.json").read_text())
    assert "loss_scale" not in report
    assert report["tensors"][0]["abs_max"] == 4.0
    assert "loss scale" not in (tmp_path / "inference" / "numerics.txt").read_text()


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
    gc.collect()  # programs of other tests
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
