"""The four models train as in eager PyTorch, through both doors, without generic ops, with the same bits everywhere."""

import dataclasses

import pytest
import torch

from tests.models.cases import CASES, eager_losses, largest_difference, make_optimiser, train, train_step
from torchipu import Options, TrainStep
from torchipu.report.captured import captured
from torchipu.report.recorder import recording
from workloads import WithLoss

TOLERANCE = 1e-4
OPTIMISERS = ("sgd", "adamw")


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """Keep recompilations of one test from counting against the next."""
    torch._dynamo.reset()


def compile_model(model, **options):
    return torch.compile(model, backend="ipu", fullgraph=True, options={"allow_out_of_memory": True, **options})


@pytest.mark.parametrize("kind", OPTIMISERS)
@pytest.mark.parametrize("name", CASES)
def test_losses_of_one_program_steps_equal_eager(name, kind):
    case = CASES[name]
    with recording() as programs:
        step = train_step(case, kind, case.new())
        losses = [step(x, y)[1].item() for x, y in case.batches()]
    assert largest_difference(losses, eager_losses(name, kind)) < TOLERANCE
    assert [captured(program.graph).generic for program in programs] == [{}]


@pytest.mark.parametrize("kind", OPTIMISERS)
@pytest.mark.parametrize("name", CASES)
def test_losses_through_torch_compile_equal_eager(name, kind):
    with recording() as programs:
        losses = train(CASES[name], kind, compile_model)
    assert largest_difference(losses, eager_losses(name, kind)) < TOLERANCE
    assert [captured(program.graph).generic for program in programs] == [{}, {}]


@pytest.mark.thorough  # at these rates the losses of float32 say little; those above are held to eager's
@pytest.mark.parametrize(("kind", "rate"), [("sgd", 1e-3), ("adamw", 1e-4)])
def test_drift_of_a_deep_network_from_float64_is_of_the_size_of_eagers(kind, rate):
    """At the rates of practice float32 is chaotic in this network: two right results differ by per cents."""
    case = dataclasses.replace(CASES["resnet18"], rates={kind: rate})
    exact = tuple(train(case, kind, lambda model: model, torch.float64))
    ours, eagers = (
        largest_difference(train(case, kind, compiler), exact) for compiler in (compile_model, lambda model: model)
    )
    assert TOLERANCE < eagers < 1
    assert ours < 5 * eagers  # over rates and seeds, ours was seen at 0.5 to 2.4 times eager's


def bits_of_pipelined_training(name, **options):
    """Return losses, weights and buffers after three updates over four micro-batches each on four IPUs."""
    case = CASES[name]
    model = case.in_blocks()
    step = train_step(case, "adamw", model, gradient_accumulation=8, output_mode="all", **options)
    losses = torch.stack([step(x, y)[1] for x, y in case.batches(3, size=16)])
    ipus = {op.placement.ipu for op in step.compiled.graph.ops}
    assert ipus == {0, 1, 2, 3}
    return losses, model.state_dict()


@pytest.mark.suffices(name=["demo-cnn", "transformer"])
@pytest.mark.parametrize("name", CASES)
def test_bits_depend_neither_on_threads_nor_on_the_schedule(name):
    first = bits_of_pipelined_training(name, host_threads=1)
    others = [{"host_threads": 2}, {"host_threads": 4}, {"host_threads": 2, "execution": "sharded"}]
    for options in others:
        losses, weights = bits_of_pipelined_training(name, **options)
        assert torch.equal(losses, first[0]), options
        assert all(torch.equal(weights[key], value) for key, value in first[1].items()), options


@pytest.mark.suffices(name=["demo-cnn", "transformer"])
@pytest.mark.parametrize("name", CASES)
def test_bits_through_torch_compile_do_not_depend_on_threads(name):
    losses = [train(CASES[name], "adamw", lambda m, n=n: compile_model(m, host_threads=n), steps=2) for n in (1, 2, 4)]
    assert losses[0] == losses[1] == losses[2]


def test_pipelined_and_sharded_differ_in_schedule():
    case = CASES["demo-cnn"]
    cycles = []
    for execution in ("pipelined", "sharded"):
        step = train_step(case, "sgd", case.in_blocks(), gradient_accumulation=8, execution=execution)
        step.compile(*case.batches(1, size=16)[0])
        cycles.append(step.profile.cycles_per_update)
    assert cycles[0] < cycles[1]


@pytest.mark.parametrize("name", CASES)
def test_inference_equals_eager(name):
    case = CASES[name]
    model = case.new().eval()
    x, _ = case.batches(1)[0]
    with torch.no_grad(), recording() as programs:
        found, expected = compile_model(model)(x), model(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert [captured(program.graph).generic for program in programs] == [{}]


def test_accumulated_micro_batches_train_as_one_batch():
    """Without batch normalisation the mean over micro-batches is the mean over the batch."""
    case = CASES["mlp"]
    models = [case.new(), case.new()]
    for model, accumulation in zip(models, (1, 4), strict=True):
        options = Options(gradient_accumulation=accumulation)
        step = TrainStep(WithLoss(model), make_optimiser("sgd", case, model), options)
        for x, y in case.batches(3, size=16):
            step(x, y)
    torch.testing.assert_close(models[1].state_dict(), models[0].state_dict(), rtol=1e-5, atol=1e-6)
