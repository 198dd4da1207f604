"""``torchipu.estimate``: the figures of a compiled program, without one that runs, and without weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import torchipu
from tests.estimation.small import Tower, tokens
from torchipu import Options, OptionsError, PlacementError
from torchipu.errors import CaptureError
from torchipu.report.figures import rate_words


def on_meta(model=Tower, **arguments):
    with torch.device("meta"):
        return model(**arguments)


def test_an_estimate_has_the_figures_of_the_program_that_would_run():
    torch.manual_seed(0)
    model, x = Tower(), tokens(8)
    options = Options(target="bow", gradient_accumulation=4)
    optimizer = torch.optim.AdamW(model.parameters())
    found = torchipu.estimate(model, (x[:2], x[:2]), options, optimizer=optimizer)
    assert not optimizer.state, "nothing is left behind"
    step = torchipu.TrainStep(model, optimizer, options)
    step.compile(x, x)
    profile = step.profile
    assert (found.cycles, found.samples_per_second) == (profile.cycles_per_update, profile.samples_per_second)
    assert [m.total_bytes for m in found.memory_by_ipu] == [m.total_bytes for m in profile.memory_by_ipu]
    assert found.fits


@pytest.mark.parametrize("training", [False, True])
def test_weights_and_inputs_need_no_values(training):
    arguments = (tokens(), tokens()) if training else (tokens(),)
    options = Options(target="bow")
    usual = torchipu.estimate(Tower(), arguments, options, training=training)
    given = on_meta(), tuple(one.to("meta") for one in arguments)
    assert torchipu.estimate(*given, options, training=training).cycles == usual.cycles
    with FakeTensorMode():
        fake, inputs = Tower(), tuple(torch.zeros(one.shape, dtype=one.dtype) for one in arguments)
    found = torchipu.estimate(fake, inputs, options, training=training)
    assert found.cycles == usual.cycles
    assert all(parameter.is_meta for parameter in given[0].parameters()), "the model is left as it is"


def test_a_model_that_no_host_holds_is_estimated():
    # 2 ** 33 parameters: 32 GiB of weights.
    model = on_meta(lambda: nn.Linear(2**16, 2**17, bias=False)).eval()
    found = torchipu.estimate(model, torch.zeros(1, 2**16), Options(target="bow-pod64"))
    assert not found.fits
    assert found.overflow_bytes > 0
    assert "fits                 no: the fullest tile lacks" in found.text()


def test_what_fills_a_tile_is_told_and_layers_that_are_recomputed_together_by_name():
    layers = [
        torchipu.BeginBlock(
            nn.Sequential(nn.Linear(64, 2048), nn.GELU(), nn.Linear(2048, 64)), f"layer{number}", ipu_id=number // 6,
        ) for number in range(7)
    ]
    names = tuple(f"layer{number}" for number in range(6))
    whole, single = (
        torchipu.estimate(nn.Sequential(*layers, Mean()), torch.zeros(2048, 64), Options(
            target="bow,num_tiles=160", gradient_accumulation=3, recompute=recompute,
        ), training=True) for recompute in ("stage", names)
    )
    assert "filled by            temporaries" in whole.text()
    assert "what a stage computes again is there at once" in whole.text()
    assert single.fits
    assert "filled by" not in single.text()
    assert single.cycles < 1.02 * whole.cycles


class Mean(nn.Module):
    """A loss."""

    def forward(self, x):
        return x.square().mean()


def test_states_off_chip_are_counted_by_ipu():
    model = on_meta()
    optimizer = torch.optim.Adam(model.parameters())
    given = model, (tokens(), tokens())
    here = torchipu.estimate(*given, Options(), optimizer=optimizer)
    away = torchipu.estimate(*given, Options(offload_optimiser_state=True), optimizer=optimizer)
    states = 2 * 4 * sum(parameter.numel() for parameter in model.parameters())
    assert here.off_chip_bytes == (0,)
    assert states * 0.8 <= away.off_chip_bytes[0] <= states * 1.1


def test_the_report_says_what_holds_up_and_what_to_trust():
    text = torchipu.estimate(on_meta(), (tokens(), tokens()), Options(target="bow")).text()
    for label in ("throughput", "fullest tiles", "fits", "bottleneck", "trust in rate", "trust in memory"):
        assert f"\n{label} " in text


# ---------------------------------------------------------------------- bad input
@pytest.mark.parametrize(("options", "error", "words"), [
    (lambda: Options(target="bow-pod17"), OptionsError, "unknown target 'bow-pod17'; did you mean 'bow-pod16'?"),
    (lambda: Options(target="pod4", replicas=8), PlacementError, "8 replicas of the model need 8 IPUs at least, but "
     "pod4 has 4"),
    (lambda: Options(available_memory={0: 0.0}), OptionsError, "above 0 and at most 1"),
    (lambda: Options(available_memory={0: 1.5}), OptionsError, "above 0 and at most 1"),
])
def test_options_that_make_no_sense_are_refused(options, error, words):
    with pytest.raises(error, match=words.replace("?", r"\?")):
        torchipu.estimate(on_meta(), (tokens(), tokens()), options())


def test_a_model_whose_sizes_depend_on_data_is_told_with_its_line():
    class Chosen(nn.Module):
        def forward(self, x):
            return x[x > 0].sum()

    with pytest.raises(CaptureError, match=r"the shape of aten\.nonzero\.default depends on data") as refusal:
        torchipu.estimate(Chosen().eval(), torch.zeros(4))
    assert "x[x > 0]" in str(refusal.value)


def test_cycles_that_depend_on_data_are_marked():
    class Chosen(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x @ x, lambda x: x + 1, (x,))

    found = torchipu.estimate(Chosen().eval(), torch.zeros(64, 64))
    assert "depends on data      cond: " in found.text()
    assert "branches and loops whose cycles depend on data" in found.trust.extrapolations


def test_what_cannot_be_trained_is_told():
    with pytest.raises(OptionsError, match="ReLU has no parameter that can be trained"):
        torchipu.estimate(nn.ReLU(), torch.zeros(4))


def test_a_graph_of_fx_is_a_model_too():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    traced = torch.fx.symbolic_trace(model)
    example = torch.zeros(2, 4)
    assert torchipu.estimate(traced, example).cycles == torchipu.estimate(model, example).cycles
    assert torch.equal(torchipu.InferenceStep(traced)(example), model(example))


def test_a_forward_without_results_is_told():
    class Silent(nn.Module):
        def forward(self, x):
            x + 1

    with pytest.raises(CaptureError, match="forward of Silent returns no tensor that it has computed"):
        torchipu.estimate(Silent().eval(), torch.zeros(4))


# ---------------------------------------------------------------------- Streaming Memory
def test_more_off_chip_than_a_machine_has_does_not_fit():
    model = on_meta()
    optimizer = torch.optim.Adam(model.parameters())
    example, options = (tokens(), tokens()), {"offload_optimiser_state": True}
    one = torchipu.estimate(model, example, Options(**options), optimizer=optimizer)
    held = sum(one.off_chip_bytes)
    assert one.fits
    for replicas, lacking in ((2, 0), (3, held), (5, 2 * held)):
        options["target"] = f"bow-pod16,machine_streaming_bytes={2 * held}"
        found = torchipu.estimate(model, example, Options(**options, replicas=replicas), optimizer=optimizer)
        assert found.off_chip_overflow_bytes == lacking, "four replicas share a machine"
        assert found.fits == (lacking == 0)
    assert f"no: a machine lacks {2 * held / 2**20:,.0f} MiB of Streaming Memory" in found.text()


def test_a_step_with_more_off_chip_than_a_machine_has_is_refused():
    model = Tower()
    options = Options(target="bow,machine_streaming_bytes=1024", offload_optimiser_state=True)
    step = torchipu.TrainStep(model, torch.optim.Adam(model.parameters()), options)
    words = r"keep [\d,]+ B off chip, but a machine of hypothetical: bow .* has 1,024 B of Streaming Memory"
    with pytest.raises(PlacementError, match=words):
        step(tokens(), tokens())


# ---------------------------------------------------------------------- options of the wrong kind
@pytest.mark.parametrize("call", [
    torchipu.estimate, torchipu.best_split, lambda *given: torchipu.sweep(*given[:2], {"replicas": (1,)}, given[2]),
])
def test_options_in_a_dict_are_refused(call):
    with pytest.raises(OptionsError, match=r"options must be torchipu\.Options, got dict"):
        call(on_meta(), (tokens(), tokens()), {"target": "bow"})


@pytest.mark.parametrize(("rate", "words"), [(0.0, "0"), (1.1918, "1.19"), (42.0, "42"), (123456.7, "123,457")])
def test_slow_rates_have_three_digits(rate, words):
    assert rate_words(rate) == words
