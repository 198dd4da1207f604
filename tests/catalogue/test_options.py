"""Options and placement: blocks that never run, IPUs that do not exist, values out of range."""

from __future__ import annotations

import poptorch
import pytest
import torch

from tests.catalogue.unharmed import unharmed
from torchipu import Options, OptionsError, TrainStep


class Blocks(torch.nn.Module):
    """Two linear layers in blocks A and B; the first one outside of all blocks where asked to."""

    def __init__(self, is_first_outside=False):
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        self.is_first_outside = is_first_outside

    def forward(self, x):
        if self.is_first_outside:
            x = self.first(x)
        else:
            with poptorch.Block("A"):
                x = self.first(x)
        with poptorch.Block("B"):
            return self.second(x)


def pipelined(*stages):
    options = poptorch.Options()
    options.setExecutionStrategy(poptorch.PipelinedExecution(*stages))
    options.deviceIterations(4)
    return options


@pytest.mark.case(46)
def test_a_block_that_never_runs(told, caplog):
    model, given = Blocks(), torch.randn(4, 3)
    options = pipelined(poptorch.Stage("A"), poptorch.Stage("B", "C"))
    got = poptorch.inferenceModel(model, options)(given)
    torch.testing.assert_close(got, model(given).detach())
    (warning,) = [record.getMessage() for record in caplog.records if "never begins" in record.getMessage()]
    told(warning, "lists blocks that the model never begins: 'C'", "'A', 'B'")


@pytest.mark.case(49)
def test_ops_outside_of_all_blocks():
    model, given = Blocks(is_first_outside=True), torch.randn(4, 3)
    run = poptorch.inferenceModel(model, pipelined(poptorch.Stage("A"), poptorch.Stage("B")))
    torch.testing.assert_close(run(given), model(given).detach())


@pytest.mark.case(50)
def test_a_module_in_two_blocks(told):
    model = Blocks()
    poptorch.BeginBlock(model.first, "A")
    with unharmed(model), pytest.raises(poptorch.Error) as caught:
        poptorch.BeginBlock(model.first, "B")
    told(caught.value, "module has already been assigned to a block", "removeBlocks")
    poptorch.removeBlocks(model)
    poptorch.BeginBlock(model.first, "B")


@pytest.mark.case(52)
def test_ipus_that_are_no_power_of_two(told):
    model, given = torch.nn.Linear(3, 3), torch.randn(3, 3)
    with unharmed(model), pytest.raises(poptorch.Error) as caught:
        poptorch.inferenceModel(model, poptorch.Options().replicationFactor(3))(given)
    told(caught.value, "specifies the use of 3 IPUs", "a minimum of 4", "autoRoundNumIPUs(True)")
    rounded = poptorch.Options().replicationFactor(3)
    rounded.autoRoundNumIPUs(True)
    torch.testing.assert_close(poptorch.inferenceModel(model, rounded)(given), model(given).detach())


@pytest.mark.case(55)
def test_a_stage_without_an_ipu(told):
    model = Blocks()
    run = poptorch.inferenceModel(model, pipelined(poptorch.AutoStage.SameAsIpu))
    with unharmed(model), pytest.raises(AssertionError) as caught:
        run(torch.ones(4, 3))
    told(caught.value, "AutoStage.SameAsIpu was selected but no IPU was specified for block A")


@pytest.mark.case(57)
def test_an_unknown_option_of_the_core(told):
    run = torch.compile(torch.nn.Tanh(), backend="ipu", options={"gradient_acumulation": 2})
    with pytest.raises(Exception, match="gradient_acumulation") as caught:
        run(torch.ones(2))
    told(caught.value, "did you mean 'gradient_accumulation'?")


@pytest.mark.case(60)
@pytest.mark.parametrize(("text", "words"), [
    ('{"autoReport.all": ', "is not valid JSON and is ignored: Expecting value: line 1 column 20"),
    ('["autoReport.all"]', "is no JSON object and is ignored"),
])
def test_engine_options_that_are_no_json(told, caplog, monkeypatch, text, words):
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", text)
    assert poptorch.inferenceModel(torch.nn.ReLU())(-torch.ones(2)).tolist() == [0, 0]
    warnings = [record.getMessage() for record in caplog.records if "POPLAR_ENGINE_OPTIONS" in record.getMessage()]
    assert warnings
    told(warnings[0], words)


@pytest.mark.case(58)
def test_options_of_a_step_that_are_none(told):
    model = torch.nn.Linear(3, 3)
    with unharmed(model), pytest.raises(OptionsError) as caught:
        TrainStep(model, torch.optim.SGD(model.parameters(), 0.1), {"gradient_accumulation": 2})
    told(caught.value, "options must be torchipu.Options, got dict", "Options.from_mapping")


@pytest.mark.case(58)
@pytest.mark.parametrize(("name", "value"), [
    ("gradient_accumulation", 0), ("loss_scaling", float("nan")), ("io_tiles", -1), ("available_memory", 1.5),
])
def test_values_out_of_range(told, name, value):
    model = torch.nn.Linear(3, 3)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    with unharmed(model, optimiser), pytest.raises(OptionsError) as caught:
        TrainStep(model, optimiser, Options(**{name: value}))
    told(caught.value, name, str(value))
