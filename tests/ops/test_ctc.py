"""CTC loss against eager float64: reductions, lengths, blanks, impossible alignments; and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.ops.judge import judge
from torchipu import poptorch
from torchipu.errors import ConstraintError, ExecutionError
from torchipu.step import TrainStep


def logits(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()


def loss(x: torch.Tensor, targets: torch.Tensor, inputs: Any, lengths: Any, **keywords: Any) -> torch.Tensor:
    return F.ctc_loss(x.log_softmax(-1), targets, inputs, lengths, **keywords)


TARGETS = torch.tensor([[1, 2, 2, 3], [4, 4, 4, 0], [3, 1, 0, 0]])
INPUTS, LENGTHS = torch.tensor([9, 8, 5]), torch.tensor([4, 3, 2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_padded_targets_of_several_lengths(reduction: str, dtype: torch.dtype) -> None:
    ops = judge(lambda *a: loss(*a, reduction=reduction), logits(9, 3, 5), TARGETS, INPUTS, LENGTHS, dtype=dtype)
    assert [op.kind for op in ops].count("ctc_loss") == 1
    assert [op.kind for op in ops].count("ctc_loss_backward") == 1


def test_lengths_given_as_numbers_or_as_32_bit_integers() -> None:
    judge(lambda x, t: loss(x, t, (9, 8, 5), (4, 3, 2)), logits(9, 3, 5), TARGETS)
    judge(loss, logits(9, 3, 5), TARGETS.int(), INPUTS.int(), LENGTHS.int())


@pytest.mark.parametrize("blank", [2, 4])
def test_any_class_may_be_the_blank(blank: int) -> None:
    targets = torch.tensor([[1, 3, 3], [3, 1, 1]])
    judge(lambda x, t: loss(x, t, (7, 6), (3, 2), blank=blank), logits(7, 2, 5), targets)


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_targets_too_long_for_their_input(zero_infinity: bool) -> None:
    judge(lambda x, t, i, n: loss(x, t, i, n, zero_infinity=zero_infinity), logits(9, 3, 5), TARGETS,
          torch.tensor([9, 3, 1]), LENGTHS)


def test_empty_targets_and_a_lone_sample() -> None:
    judge(loss, logits(9, 3, 5), TARGETS, INPUTS, torch.tensor([0, 3, 0]))
    judge(loss, logits(9, 5), torch.tensor([1, 2, 2]), torch.tensor(9), torch.tensor(3))


def test_the_module_over_many_steps() -> None:
    x = logits(60, 4, 12).detach()
    targets = torch.randint(1, 12, (4, 20), generator=torch.Generator().manual_seed(1))
    judge(nn.CTCLoss(), x.log_softmax(-1).requires_grad_(), targets, torch.tensor([60, 50, 45, 60]),
          torch.tensor([20, 10, 1, 15]), rtol=1e-4)


CASES = st.tuples(
    st.lists(st.lists(st.integers(1, 3), min_size=4, max_size=4), min_size=3, max_size=3),
    st.lists(st.integers(0, 6), min_size=3, max_size=3), st.lists(st.integers(0, 4), min_size=3, max_size=3),
    st.integers(0, 1000), st.floats(0.1, 8.0),
)


FORMS = {
    "function": lambda zero: lambda *a: F.ctc_loss(*a, reduction="sum", zero_infinity=zero),
    "module": lambda zero: nn.CTCLoss(zero_infinity=zero),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("zero_infinity", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float16, 5e-3)])
def test_any_lengths_and_labels_give_what_eager_gives(
    dtype: torch.dtype, tolerance: float, zero_infinity: bool, form: str,
) -> None:
    function = FORMS[form](zero_infinity)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="ipu", fullgraph=True, dynamic=False)
    impossible = 0

    @settings(max_examples=60, deadline=None)
    @given(CASES)
    def check(case: Any) -> None:
        nonlocal impossible
        targets, inputs, lengths = (torch.tensor(part) for part in case[:3])
        noise = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(case[3])) * case[4]
        mine = noise.log_softmax(-1).to(dtype).requires_grad_()
        exact = mine.detach().double().requires_grad_()
        results = []
        for run, x in ((compiled, mine), (function, exact)):
            value = run(x, targets, inputs, lengths)
            value.backward()
            results.append((value.detach().double(), x.grad.double()))
        impossible += F.ctc_loss(exact, targets, inputs, lengths, reduction="none").isinf().any().item()
        for ours, eager in zip(*results, strict=True):
            scale = max(1.0, float(eager[eager.isfinite()].abs().max())) if eager.isfinite().any() else 1.0
            torch.testing.assert_close(ours, eager, rtol=tolerance, atol=tolerance * scale, equal_nan=True)

    check()
    assert impossible > 10  # of 60 batches


class Speech(nn.Module):
    def __init__(self, **keywords: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 5)
        self.keywords = keywords

    def forward(
        self, x: torch.Tensor, targets: torch.Tensor, inputs: torch.Tensor, lengths: torch.Tensor,
    ) -> torch.Tensor:
        return loss(self.linear(x).transpose(0, 1), targets, inputs, lengths, **self.keywords)


def test_a_training_step_lowers_the_loss_as_eager_does() -> None:
    torch.manual_seed(0)
    model = Speech()
    exact = copy.deepcopy(model).double()
    x = torch.randn(3, 9, 4)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.5))
    optimiser = torch.optim.SGD(exact.parameters(), lr=0.5)
    for _ in range(3):
        value = step(x, TARGETS, INPUTS, LENGTHS)
        optimiser.zero_grad()
        wanted = exact(x.double(), TARGETS, INPUTS, LENGTHS)
        wanted.backward()
        optimiser.step()
        torch.testing.assert_close(value.double().reshape(()), wanted.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("keywords", "targets", "time", "message", "remedy"), [
    ({"reduction": "none"}, TARGETS, 9, "reduction='none'", "mean"),
    ({"blank": 5}, TARGETS, 9, "blank that is no class", "between 0"),
    ({"blank": -1}, TARGETS, 9, "blank that is no class", "between 0"),
    ({}, torch.tensor([1, 2, 2, 3, 4, 4, 4, 3, 1]), 9, "not one row", "pad"),
    ({}, TARGETS, 3, "longer than its inputs", "cut the padding"),
])
def test_forms_that_the_device_lacks_are_refused(
    keywords: dict[str, Any], targets: torch.Tensor, time: int, message: str, remedy: str,
) -> None:
    x, lengths = torch.randn(3, time, 4), torch.tensor([3, 3, 3])
    model = Speech(**keywords).eval()
    torch._dynamo.reset()
    with pytest.raises(Exception, match=message) as caught:  # torch wraps it
        torch.compile(model, backend="ipu", fullgraph=True)(x, targets, lengths, LENGTHS)
    error: BaseException | None = caught.value
    while error is not None and not isinstance(error, ConstraintError):
        error = getattr(error, "inner_exception", None) or error.__cause__
    assert isinstance(error, ConstraintError)
    assert remedy in error.remedy
    assert "ctc_loss" in str(error.op)
    assert "F.ctc_loss" in str(error.source)


@pytest.mark.parametrize(("keywords", "targets", "words"), [
    ({"reduction": "none"}, TARGETS, 'CTCLoss with reduction="none" is currently not supported'),
    ({"blank": 5}, TARGETS, r"(?s)blank that is no class.*F.ctc_loss.*between 0"),
    ({}, torch.tensor([1, 2, 2, 3, 4, 4, 4, 3, 1]), "CTCLoss needs 2-dimensional targets: pad the label sequences"),
    ({}, TARGETS.repeat(1, 3), r"(?s)longer than its inputs.*F.ctc_loss.*cut the padding"),
])
def test_poptorch_refuses_them_at_compile_time_and_the_model_stays_as_it_is(
    keywords: dict[str, Any], targets: torch.Tensor, words: str,
) -> None:
    model = Speech(**keywords)
    before = copy.deepcopy(model.state_dict())
    training = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
    inputs = torch.randn(3, 9, 4), targets, INPUTS, LENGTHS
    if targets.dim() == 1:
        inputs = torch.randn(3, 9, 4), targets[:3], INPUTS, LENGTHS  # a first size that is the batch
    with pytest.raises(poptorch.Error, match=words):
        training.compile(*inputs)
    assert not training.isCompiled()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    good = Speech()
    good.load_state_dict(before)
    other = poptorch.trainingModel(good, optimizer=torch.optim.SGD(good.parameters(), lr=0.5))
    other(torch.randn(3, 9, 4), TARGETS, INPUTS, LENGTHS)
    assert any(not torch.equal(value, before[name]) for name, value in other.state_dict().items())


def test_a_label_outside_the_classes_is_an_error() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="ipu", fullgraph=True)
    with pytest.raises(ExecutionError, match="ctc_loss"):
        compiled(logits(9, 3, 5), torch.full((3, 4), 7), INPUTS, LENGTHS)
