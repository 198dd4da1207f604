"""Functions that Dynamo leaves to eager as a whole: told once, refused under strict, by themselves."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._C._dynamo.eval_frame import _FrameAction as FrameAction
from torch._C._dynamo.eval_frame import _FrameExecStrategy as FrameExecStrategy
from torch._dynamo.testing import CompileCounter
from torch._dynamo.types import ConvertFrameReturn

import torchipu
from torchipu.backend import COUNTS
from torchipu.capture.left_code import is_left
from torchipu.errors import CaptureError


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


class Experts(nn.Module):
    """Hands each expert the rows that chose it, as many as there are."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 3), nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        chosen, out = self.gate(x).argmax(-1), torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = torch.where(chosen == number)[0]
            out = out.index_add(0, rows, expert(x[rows]))
        return out



def in_parts(x: Tensor) -> Tensor:
    y = x.sin()
    print(end="")
    return y * y.nonzero().shape[0]


X = torch.randn(6, 4)


def told(run: Callable[..., Tensor]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(one.message) for one in caught if "in eager" in str(one.message)]


def test_a_function_that_runs_in_eager_is_told_once_with_its_line_and_the_reason() -> None:
    model = Experts()
    before = COUNTS.graphs
    run = torch.compile(model, backend="ipu")
    (text,) = told(lambda: run(X))
    assert COUNTS.graphs == before
    assert "torch runs Experts.forward" in text
    assert "test_left_frames.py" in text
    assert "rows = torch.where(chosen == number)[0]" in text
    assert "output shape depends on input Tensor data" in text  # torch's own explanation
    assert "docs/graph_breaks.md" in text
    assert told(lambda: run(X)) == []
    torch.testing.assert_close(run(X), model(X))


def test_users_may_silence_what_is_told_by_our_name() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", module="torchipu")
        torch.compile(Experts(), backend="ipu")(X)
    assert [one for one in caught if "in eager" in str(one.message)] == []
    torch._dynamo.reset()
    assert len(told(lambda: torch.compile(Experts(), backend="ipu")(X))) == 1


def test_under_strict_it_is_refused_at_every_call_whatever_ran_before() -> None:
    model = Experts()
    strict = torch.compile(model, backend="ipu", options={"strict": True})
    plain = torch.compile(model, backend="ipu")
    for _ in range(2):
        for _ in range(2):
            with pytest.raises(CaptureError, match=r"strict: torch leaves Experts\.forward .* to eager") as caught:
                strict(X)
            assert "rows = torch.where" in str(caught.value)
        torch.testing.assert_close(plain(X), model(X))


def test_left_is_what_torch_leaves_for_good() -> None:
    """A frame that it leaves this once it may compile when that is called again."""
    this_once = FrameExecStrategy(FrameAction.DEFAULT, FrameAction.DEFAULT)
    assert is_left(ConvertFrameReturn())
    assert not is_left(ConvertFrameReturn(frame_exec_strategy=this_once))


def test_a_break_that_torch_goes_on_after_is_not_told_so() -> None:
    run = torch.compile(in_parts, backend="ipu")
    before = COUNTS.graphs
    assert told(lambda: run(X)) == []
    assert COUNTS.graphs > before


def test_an_explanation_lists_it() -> None:
    with pytest.warns(UserWarning, match="in eager"):
        found = torchipu.explain(Experts(), X)
    (text,) = found.eager_functions
    assert "test_left_frames.py" in text
    assert "in forward: Dynamic shape operator" in text
    assert text in str(found)


def test_other_backends_say_nothing_and_remember_for_themselves() -> None:
    model, counter = Experts(), CompileCounter()
    other, ours = torch.compile(model, backend=counter), torch.compile(model, backend="ipu")
    assert told(lambda: other(X)) == []
    torch._dynamo.reset()
    assert len(told(lambda: ours(X))) == 1
    assert told(lambda: other(X)) == []
