"""Programs that are used wrongly: the words of the error, and training that goes on as if nothing had been."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from tests.poptorch.models import Classifier, batch, eager_training, options, sgd, twin_of
from torchipu import poptorch


class Program(NamedTuple):
    """What a user holds after an update."""

    step: Any
    x: torch.Tensor
    labels: torch.Tensor
    loss: torch.Tensor


Fault = Callable[[Program], Any]
REMADE = "the inputs passed at runtime don't match the inputs used to compile the model"

FAULTS: list[tuple[Fault, str]] = [
    (lambda p: p.step(p.x[:2], p.labels[:2]), rf"Shape mismatch for x: expected .*\[4, 6\].* but got.*{REMADE}"),
    (lambda p: p.step(p.x[:0], p.labels[:0]), rf"Shape mismatch for x: .*\[0, 6\].*{REMADE}"),
    (lambda p: p.step(p.x.reshape(-1, 3, 2), p.labels), rf"Shape mismatch for x: .*\[4, 3, 2\].*{REMADE}"),
    (lambda p: p.step(p.x.half(), p.labels), rf"Data type mismatch for x: expected torch.float32 but got .*{REMADE}"),
    (lambda p: p.step(p.x, p.labels.float()), rf"Data type mismatch for labels: expected torch.int64.*{REMADE}"),
    (lambda p: p.step(p.x), rf"Type mismatch for labels: .*NoneType.*{REMADE}"),
    (lambda p: p.step(p.x, p.labels, 3), r"Too many arguments provided: expected \['x', 'labels'\] \(2\) but got 3"),
    (lambda p: p.step(p.x, p.labels, other=p.x), "other is not a valid parameter. Allowed values: x, labels"),
    (lambda p: p.loss.backward(), r"backward\(\) cannot be called explicitly on outputs of a PopTorch model"),
    (lambda p: p.step.setOptimizer(3), "Unsupported optimizer type int"),
    (lambda p: p.step.setOptimizer(torch.optim.Adam(p.step.model.parameters())), "optimiser is of another kind"),
    (lambda p: p.step.attachToDevice(), "Device is already attached"),
    (lambda p: p.step.options.deviceIterations(3), "Can't modify frozen Options"),
    (lambda p: p.step.options.Training.gradientAccumulation(3), "Can't modify frozen Options"),
    (lambda p: p.step.getAnchoredTensor("nothing"), "No tensor with name nothing found"),
    (lambda p: p.step.copyNamedBuffersToDevice(), "No named buffers marked as updatable"),
    (lambda p: p.step.load_state_dict({"body.weight": torch.ones(1)}), "Missing key.*size mismatch for body.weight"),
    (lambda p: p.step.loadExecutable("/nowhere/at.all"), "Invalid file /nowhere/at.all"),
    (lambda p: p.step.cycleCount(), "Cycle count logging is disabled"),
    (lambda p: p.step.nothing, "has no attribute 'nothing'"),
    (lambda p: poptorch.trainingModel(p.step.model), "Model has already been wrapped in 'poptorch.trainingModel'"),
    (lambda p: poptorch.DataLoader(3, []), "The first argument must be a poptorch.Options"),
]


@pytest.mark.parametrize("number", range(len(FAULTS)))
@pytest.mark.filterwarnings("ignore:Ignoring unexpected")
def test_training_goes_on_after_an_error(number: int) -> None:
    fault, words = FAULTS[number]
    model = Classifier()
    twin = twin_of(model)
    optimizer, reference = sgd(model, momentum=0.9), sgd(twin, momentum=0.9)
    settings = options()
    loader = poptorch.DataLoader(settings, torch.utils.data.TensorDataset(*batch(8)), batch_size=4)
    batches = list(loader)
    step = poptorch.trainingModel(model, settings, optimizer)
    _, loss = step(*batches[0])
    before = copy.deepcopy(dict(step.state_dict()))
    with pytest.raises((poptorch.Error, AssertionError, AttributeError, RuntimeError), match=f"(?s){words}"):
        fault(Program(step, *batches[0], loss))
    torch.testing.assert_close(dict(step.state_dict()), before, rtol=0, atol=0)
    torch.testing.assert_close(list(loader), batches, rtol=0, atol=0)
    assert step.isCompiled()
    assert step.isAttachedToDevice()
    step(*batches[1])
    for pair in batches:
        eager_training(twin, reference, tuple(pair))
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))
    held = optimizer.state_dict()["param_groups"][0]
    assert (held["lr"], held["momentum"]) == (0.1, 0.9)


Wrong = Callable[[Classifier], tuple[Any, Any, tuple[torch.Tensor, ...]]]
X, LABELS = batch(8)
WHOLE = "Invalid batch dimension: In the input x, the batch dimension .* must be a multiple of poptorch.Options"

NOT_COMPILED: list[tuple[Wrong, str]] = [
    (lambda m: (3, None, (X, LABELS)), r"'options' is of type <class 'int'> \(Expected poptorch.Options\)"),
    (lambda m: (options(accumulation=3), None, (X, LABELS)), WHOLE),
    (lambda m: (options().replicationFactor(3), None, (X, LABELS)), WHOLE),
    (lambda m: (options(accumulation=2), None, (X[0, 0], LABELS)), WHOLE),
    (lambda m: (options(), None, (X.to(torch.complex64), LABELS)), "Unsupported input type .*complex64 for x"),
    (lambda m: (options(), None, (X[:0], LABELS)), r"Zero-sized tensors are unsupported \(Got shape \[0, 6\]\)"),
    (lambda m: (options(), None, (X[:, :3], LABELS)), "mat1 and mat2 shapes cannot be multiplied"),
    (lambda m: (options(), None, (X, LABELS.float())), "target|type Long but found Float"),  # as the release has it
    (lambda m: (options(), None, (X,)), "Couldn't find a loss in graph!"),
    (lambda m: (options().useOfflineIpuTarget(), None, (X, LABELS)), "Trying to run a model on an offline device"),
    (lambda m: (options(), torch.optim.LBFGS(m.parameters()), (X, LABELS)), "Unsupported optimizer type LBFGS"),
    (lambda m: (options(), torch.optim.Adam(m.parameters(), amsgrad=True), (X, LABELS)),
     "Only non-amsgrad Adam/AdamW optimizers are supported."),
    (lambda m: (options(), poptorch.optim.SGD(m.parameters(), lr=0.1, loss_scaling=0.0), (X, LABELS)),
     "loss_scaling must be a float above 0"),
]


@pytest.mark.parametrize("number", range(len(NOT_COMPILED)))
def test_a_model_that_was_not_compiled_trains_afterwards(number: int) -> None:
    wrong, words = NOT_COMPILED[number]
    model = Classifier()
    twin = twin_of(model)
    before = copy.deepcopy(dict(model.state_dict()))
    optimizer, reference = sgd(model, momentum=0.9), sgd(twin, momentum=0.9)
    settings, unsuited, inputs = wrong(model)
    with pytest.raises((poptorch.Error, AssertionError, RuntimeError, ValueError), match=f"(?s){words}"):
        poptorch.trainingModel(model, settings, unsuited or optimizer)(*inputs)
    if hasattr(model, "destroy"):  # it was wrapped before it was refused
        model.destroy()
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert not optimizer.state
    poptorch.trainingModel(model, options(), optimizer)(X, LABELS)
    eager_training(twin, reference, (X, LABELS))
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))
