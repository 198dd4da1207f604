"""What forward may take and return: nothing at all, plain values, and any mixture of variable arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.poptorch.models import options
from torchipu import poptorch

ONES = torch.ones(2)


class Nothing(nn.Module):
    """Takes nothing and returns nothing."""

    def forward(self) -> None:
        return None


def test_a_model_without_inputs_and_outputs_compiles_and_runs(tmp_path: Path) -> None:
    for iterations in (1, 3):
        step = poptorch.inferenceModel(Nothing(), options(iterations))
        assert step() is None
        assert step() is None
        assert step.isCompiled()
        assert step.getTensorNames() == []
    step.save(tmp_path / "nothing")
    assert poptorch.load(tmp_path / "nothing")() is None


def test_a_model_may_return_constants_or_only_change_a_buffer() -> None:
    class Changing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self) -> None:
            self.count += 1

    class Constant(nn.Module):
        def forward(self) -> Any:
            return 3, "text", None

    model = Changing()
    step = poptorch.inferenceModel(model)
    assert [step(), step()] == [None, None]
    step.copyWeightsToHost()
    assert model.count == 2
    assert poptorch.inferenceModel(Constant())() == (3, "text", None)


class Variable(nn.Module):
    """Takes positional arguments, more of them, a keyword of its own and more of these."""

    def forward(self, a: Any, b: Any, *c: Any, y: Any = None, **w: Any) -> Any:
        total = a + 10 * b
        for place, value in enumerate(c, 2):
            total = total if value is None else total + 10**place * value
        if y is not None:
            total = total * y
        for name in sorted(w):
            total = total - len(name) * w[name]
        return total


@pytest.mark.parametrize(("args", "kwargs"), [
    ((ONES, ONES), {}), ((2, ONES), {}), ((ONES, 2.5), {}), ((2, ONES, 3, ONES), {}), ((2, ONES, 3, ONES), {"y": ONES}),
    ((ONES, 2, 3), {"y": 4, "z": ONES}), ((ONES,), {"b": 2}), ((), {"a": 2, "b": ONES}),
    ((), {"b": ONES, "a": 2, "y": ONES, "u": 1}), ((ONES, ONES, None, ONES), {"zz": 2, "y": 2.0}),
    ((ONES,), {"b": ONES, "k": ONES, "l": ONES}), ((ONES, ONES, ONES), {"y": None, "w": 3}),
])
def test_any_mixture_of_arguments_works_on_the_first_and_on_later_calls(args: Any, kwargs: Any) -> None:
    def more(value: Any, number: int) -> Any:
        return value + number if isinstance(value, torch.Tensor) else value

    step = poptorch.inferenceModel(Variable())
    for number in range(3):
        positional = [more(value, number) for value in args]
        named = {name: more(value, number) for name, value in reversed(list(kwargs.items()))}
        torch.testing.assert_close(step(*positional, **named), Variable()(*positional, **named))


@pytest.mark.parametrize(("args", "kwargs", "words"), [
    ((ONES, ONES, ONES, ONES), {"y": ONES}, r"expected 3 arguments but got 4"),
    ((ONES, ONES, ONES), {}, r"Type mismatch for y: expected <class 'torch.Tensor'> but got <class 'NoneType'>"),
    ((ONES, 2, ONES), {"y": ONES}, r"Type mismatch for b: .* got <class 'int'>"),
    ((ONES, ONES, 2), {"y": ONES}, r"Type mismatch for \*c\[0\]: .* got <class 'int'>"),
    ((ONES, ONES, torch.ones(3)), {"y": ONES}, r"Shape mismatch for \*c\[0\]"),
    ((ONES, ONES, ONES), {"y": ONES, "z": ONES}, r"Unexpected arguments: z\."),
])
def test_other_arguments_than_those_compiled_for_are_refused(args: Any, kwargs: Any, words: str) -> None:
    step = poptorch.inferenceModel(Variable())
    step(ONES, ONES, ONES, y=ONES)
    with pytest.raises(poptorch.Error, match=words):
        step(*args, **kwargs)
    torch.testing.assert_close(step(ONES, ONES, ONES, y=ONES), torch.full((2,), 111.0))


@pytest.mark.parametrize("strategy", [poptorch.PipelinedExecution, poptorch.ShardedExecution])
def test_inference_refuses_accumulation_in_one_whole_sentence(strategy: Any) -> None:
    settings = options(accumulation=4)
    settings.setExecutionStrategy(strategy())
    with pytest.raises(poptorch.Error, match=(
        r"You must set poptorch.Options\(\).Training.gradientAccumulation to 1 or leave it as its default value \(1\) "
        r"when running a poptorch.inferenceModel\(\)\."
    )):
        poptorch.inferenceModel(Variable(), settings)
