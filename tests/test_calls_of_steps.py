"""What a call of a step takes, what it says of one that it cannot take, and what torch's log is told."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torchipu
from tests.demanding import Demanding
from torchipu.errors import CaptureError


class Regressor(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor, scale: float = 1.0, *, shift: float = 0.0) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.linear(x) * scale + shift, y)


def training() -> torchipu.TrainStep:
    model = Regressor()
    return torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), 0.1))


def test_an_array_is_refused_with_what_makes_a_tensor_of_it() -> None:
    step, x, y = training(), torch.randn(4, 3), torch.randn(4, 2)
    before = copy.deepcopy(step.model.state_dict())
    for arguments in ((x.numpy(), y), (x, y.numpy())):
        with pytest.raises(CaptureError, match=r"an input is a numpy\.ndarray") as refused:
            step(*arguments)
        assert "pass tensors (as torch.from_numpy makes one of an array)" in str(refused.value)
    torch.testing.assert_close(dict(step.model.state_dict()), dict(before), rtol=0, atol=0)
    step(x, y)


def test_an_argument_by_its_name_is_the_same_as_by_its_place() -> None:
    step, x, y = training(), torch.randn(4, 3), torch.randn(4, 2)
    step(x, y)
    program = step.compiled
    step(x, y=y)
    step(y=y, x=x)
    assert step.compiled is program
    step(x, y, 1.0)
    assert step.compiled is not program
    program = step.compiled
    step(x, scale=1.0, y=y)
    assert step.compiled is program


def test_swapped_names_reach_their_arguments() -> None:
    class Difference(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor, *, shift: torch.Tensor) -> torch.Tensor:
            return x - y + shift

    step, x, y, shift = torchipu.InferenceStep(Difference()), torch.randn(3), torch.randn(3), torch.randn(3)
    torch.testing.assert_close(step(y=y, x=x, shift=shift), x - y + shift)
    torch.testing.assert_close(step(x, shift=y, y=shift), x - shift + y)


class Scaled(torch.nn.Module):
    def forward(self, values: Any, **factors: torch.Tensor) -> dict[str, torch.Tensor]:
        whole = sum(values.values()) if isinstance(values, dict) else sum(values)
        return {name: whole * factor for name, factor in factors.items()}


def test_keys_come_in_any_order_and_other_keys_and_containers_are_captured_anew() -> None:
    step, x, began = torchipu.InferenceStep(Scaled()), torch.ones(2), time.perf_counter()
    for _ in range(2):
        by_order = step({"a": x, "b": x * 2}, p=x, q=x * 3), step({"b": x * 2, "a": x}, q=x * 3, p=x)
        for result in by_order:
            assert list(result) == ["p", "q"]
            torch.testing.assert_close([result["p"], result["q"]], [x * 3, x * 9])
        torch.testing.assert_close(step([x, x, x], r=x)["r"], x * 3)
    assert [reason for reason, _ in step._seen.recompilations] == ["inputs are nested in another way"] * 3
    assert 0 < sum(seconds for _, seconds in step._seen.recompilations) < time.perf_counter() - began


def test_a_missing_argument_is_told_by_its_name() -> None:
    with pytest.raises(Exception, match="'y'"):
        training()(x=torch.randn(4, 3))


WRONG_SIZE = """
import torch, torchipu
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
    def forward(self, x):
        return self.linear(x).sum()
net = Net()
try:
    torchipu.TrainStep(net, torch.optim.SGD(net.parameters(), 0.1))(torch.randn(4, 5))
except torchipu.CaptureError as error:
    print(error)
"""


def test_a_wrong_number_of_features_says_expected_and_got_and_torch_logs_nothing() -> None:
    made = subprocess.run([sys.executable, "-c", WRONG_SIZE], capture_output=True, text=True, timeout=300, check=True)
    assert "expected 3 features in the last dimension and got 5" in made.stdout
    assert "Traceback" not in made.stderr
    assert "fake_tensor" not in made.stderr


@pytest.mark.parametrize(("layer", "given", "told"), [
    (torch.nn.Conv2d(3, 4, 3), (2, 5, 8, 8), "5"), (torch.nn.LayerNorm(6), (2, 5), "6"),
    (torch.nn.Linear(3, 2), (4, 5), "expected 3 features in the last dimension and got 5"),
], ids=["convolution", "norm", "product"])
def test_sizes_that_do_not_fit_are_told_with_the_line(
    layer: torch.nn.Module, given: tuple[int, ...], told: str,
) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> Any:
            return self.layer(x).sum()  # the user's line

    with pytest.raises(CaptureError) as caught:
        torchipu.InferenceStep(Net())(torch.randn(given))
    first = str(caught.value).partition("\n")[0]
    assert told in first
    assert "making fake tensor call" not in first
    assert "the user's line" in str(caught.value.source)


@pytest.mark.parametrize(("how", "told", "line"), [
    ("layer", "forward raises RuntimeError: input.size(-1) must be equal to input_size. Expected 6, got 5", ""),
    ("raises", "forward raises ValueError: six features, it's 5", "raise ValueError"),
    ("asserts", "an assertion of forward does not hold", "assert self.how"),
    ("looks up", "forward raises KeyError: y", '{"x": x}'),
])
def test_what_forward_raises_is_told_with_its_own_words(how: str, told: str, line: str) -> None:
    with pytest.raises(CaptureError) as caught:
        torchipu.InferenceStep(Demanding(how))(torch.randn(3, 2, 5))
    assert str(caught.value).partition("\n")[0].endswith(told)
    assert "torch.compile" not in str(caught.value)
    assert line in str(caught.value.source)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy])
def test_a_step_says_how_to_save_it(copied: Callable[[Any], Any]) -> None:
    step = training()
    with pytest.raises(pickle.PicklingError, match=r"save model.state_dict\(\) and optimizer.state_dict\(\)"):
        copied(step)
    step(torch.randn(4, 3), torch.randn(4, 2))
    with pytest.raises(pickle.PicklingError, match="a TrainStep is a compiled program"):
        copied(step)


LOGGED = """
import os, sys
import torch, torch._dynamo
from torch._logging._internal import _init_logs
import torchipu.backend

def work():
    function = torch.compile(lambda x: x * x.shape[0], backend="ipu", dynamic=True)
    for size in (2, 3):
        function(torch.randn(size, 3))

folder, *settings = sys.argv[1:]
for number, logs in enumerate(settings):
    if os.fork() == 0:
        os.dup2(os.open(os.path.join(folder, str(number)), os.O_CREAT | os.O_WRONLY), 2)
        if logs != os.environ["TORCH_LOGS"]:  # the first is that with which torch was imported
            os.environ["TORCH_LOGS"] = logs
            _init_logs()
        try:
            work()
        finally:
            os._exit(sys.exc_info()[0] is not None)
    assert os.wait()[1] == 0
"""
LOGS = {
    "torchipu": ("ops compiled in", "canonicalise took"), "+torchipu": ("canonicalise took", "Recompiling"),
    "recompiles": ("Recompiling for the IPU, in a graph of any size, for inputs 3, 3, [3, 3]", "ops compiled in"),
}


def test_torchs_log_is_told_of_programs(tmp_path: Path) -> None:
    first, *_ = LOGS
    subprocess.run(
        [sys.executable, "-c", LOGGED, str(tmp_path), *LOGS], timeout=300, check=True,
        env={**os.environ, "TORCH_LOGS": first},
    )
    for number, (told, untold) in enumerate(LOGS.values()):
        words = (tmp_path / str(number)).read_text(encoding="utf-8")
        assert told in words
        assert untold not in words
