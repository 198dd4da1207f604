"""The words of PopTorch's errors, and that model, options and further calls are as before after each."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.poptorch.models import Classifier, batch, options, sgd, twin_of
from torchipu import poptorch

X = torch.arange(24.0).reshape(2, 3, 4)


class Wrong(nn.Module):
    """Does something that is refused, unless told otherwise.

    Args:
        call: What.
    """

    def __init__(self, call: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))
        self.call: Any = call

    def forward(self, x: torch.Tensor) -> Any:
        return self.linear(x) if self.call is None else self.call(self.linear(x))


@pytest.mark.parametrize(("call", "words"), [
    (lambda x: x.expand(4), "The desired shape passed to expand should have at least as many dimensions.*expand"),
    (lambda x: x.expand(5, 3, 4), "Can only expand dimensions of size 1.*must match the existing size"),
    (lambda x: x.expand([2, 3, 5]), "Can only expand dimensions of size 1.*must match the existing size"),
    (lambda x: torch.cross(x, x, dim=2), "Cross product .* size 3 .* length 3"),
    (lambda x: torch.linalg.cross(x, x[0], dim=1), "Cross product .* same rank"),
    (lambda x: torch.roll(x, (1, 2)), "The 'shifts' argument of the roll op must be a scalar when 'dims' is not "
                                      r"specified\. .*shifts and dimensions must align"),
    (lambda x: x.roll((1, 2), (0,)), "as many shifts as dims.*shifts and dimensions must align"),
    (lambda x: torch.roll(x, 1, 7), "within the rank of the tensor.*Dimension out of range"),
    (lambda x: F.glu(x, 1), "must be even"),
    (lambda x: F.glu(x, 7), r"7 is not in the legal range \[-3, 2\]"),
    (lambda x: torch.feature_dropout(x[0, 0], 0.5, True), "requires at least 2 dimensions"),
])
def test_shapes_that_poptorch_refuses_by_an_error_of_its_own(call: Any, words: str) -> None:
    model = Wrong(call)
    before = copy.deepcopy(model.state_dict())
    step = poptorch.inferenceModel(model)
    with pytest.raises(poptorch.Error, match=f"(?s){words}"):
        step(X)
    assert not step.isCompiled()
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    good = poptorch.inferenceModel(Wrong(None))
    torch.testing.assert_close(good(X), Wrong(None)(X).detach())


@pytest.mark.parametrize("call", [
    lambda x: torch.roll(x, (1, 2), (0,)),
    lambda x: x.expand(5, 3, 4),
    lambda x: F.glu(x[:, :, :3], 2),
    lambda x: torch.cross(x, x, dim=2),
])
def test_what_torch_says_stands_whole_behind_words_of_poptorch(call: Any) -> None:
    model = Wrong(call)
    with pytest.raises(RuntimeError) as eager:
        model(X)
    with pytest.raises(poptorch.Error) as found:
        poptorch.inferenceModel(model)(X)
    assert found.value.message.endswith(f" {eager.value}")


class TwoLosses(Classifier):
    """Marks two losses that have nothing to do with each other, or none."""

    marks = 2

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        y = self.head(self.body(x))
        return [poptorch.identity_loss(y * number, "sum") for number in range(1, self.marks + 1)] if self.marks else y


@pytest.mark.parametrize(("marks", "words"), [
    (2, "Multiple independent losses found in graph. Graph must have one final loss. Wrap final graph loss in "
        "poptorch.identity_loss."),
    (0, "Couldn't find a loss in graph!"),
])
def test_losses_that_are_not_one_leave_model_optimiser_and_loader_as_they_were(marks: int, words: str) -> None:
    model = TwoLosses()
    model.marks = marks
    before = copy.deepcopy(model.state_dict())
    optimizer = sgd(model, momentum=0.9)
    settings = options()
    loader = poptorch.DataLoader(settings, torch.utils.data.TensorDataset(*batch(4)), batch_size=4)
    step = poptorch.trainingModel(model, settings, optimizer)
    (inputs,) = loader
    with pytest.raises(poptorch.Error) as caught:
        step(*inputs)
    assert words in caught.value.message
    torch.testing.assert_close(dict(step.state_dict()), dict(before), rtol=0, atol=0)
    assert not optimizer.state
    step.destroy()
    model.marks = 1
    twin = twin_of(model)
    again = poptorch.trainingModel(model, settings.clone(), optimizer)
    (inputs,) = loader
    again(*inputs)
    reference = sgd(twin, momentum=0.9)
    twin(*batch(4))[0].backward()
    reference.step()
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))


def test_a_gradient_that_is_wanted_of_an_input_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    x = X.clone().requires_grad_()
    poptorch.inferenceModel(Wrong(None))(x)
    assert "Input tensor has requires_grad=True set" in capsys.readouterr().err
    assert x.requires_grad


def test_a_result_of_the_host_is_warned_of() -> None:
    table = torch.ones(2)
    with pytest.warns(UserWarning, match="Output expected to be on the IPU but is on cpu"):
        returned = poptorch.inferenceModel(lambda x: (x, table))(X)[1]
    assert returned.equal(table)


def test_optimiser_states_of_elsewhere_are_refused_and_change_nothing() -> None:
    model = Classifier()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = copy.deepcopy(optimizer.param_groups[0]["lr"])
    with pytest.raises(RuntimeError, match=r"Only IPU optimizer states can be loaded onto the IPU\."):
        optimizer.load_state_dict(sgd(model, lr=0.5).state_dict())
    with pytest.raises(RuntimeError, match=r"Cannot load optimizer state dictionary because it is empty\."):
        optimizer.load_state_dict({})
    assert optimizer.param_groups[0]["lr"] == before
    poptorch.trainingModel(model, optimizer=optimizer)(*batch(4))
