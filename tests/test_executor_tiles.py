"""``Options(executor="tiles")``: whole calls on the tiles, beside the host's plan and eager PyTorch."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch._higher_order_ops import scan, while_loop

import torchipu


class Classifier(torch.nn.Module):
    """Two stages with a norm that keeps statistics."""

    def __init__(self, ipus: tuple[int, int] = (0, 0)) -> None:
        super().__init__()
        self.ipus = ipus
        self.first = torch.nn.Sequential(  # a bias before the norm has no gradient but rounding
            torch.nn.Conv2d(1, 4, 3, padding=1, bias=False), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
        )
        self.second = torch.nn.Sequential(torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(64, 3))

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        with torchipu.Block("first", ipu_id=self.ipus[0]):
            x = self.first(x)
        with torchipu.Block("second", ipu_id=self.ipus[1]):
            x = self.second(x)
            return x if target is None else torch.nn.functional.cross_entropy(x, target)


def trained(executor: str, optimizer: Any, ipus: tuple[int, int], **options: Any) -> tuple[list[float], Any]:
    torch.manual_seed(3)
    model = Classifier(ipus)
    settings = torchipu.Options(executor=executor, **options)
    step = torchipu.TrainStep(model, optimizer(model.parameters()), settings)
    samples = 2 * settings.gradient_accumulation * settings.replicas * settings.device_iterations
    losses = [
        step(torch.randn(samples, 1, 8, 8), torch.randint(0, 3, (samples,))).mean().item() for _ in range(3)
    ]
    return losses, copy.deepcopy(model.state_dict())


@pytest.mark.parametrize(("optimizer", "ipus", "options"), [
    (partial(torch.optim.SGD, lr=0.1, momentum=0.9), (0, 0), {}),
    (partial(torch.optim.SGD, lr=0.1), (0, 0), {"recompute": ("first",)}),
    (partial(torch.optim.AdamW, lr=0.01), (0, 1), {"gradient_accumulation": 3, "device_iterations": 2}),
    (partial(torch.optim.SGD, lr=0.1), (0, 1), {"gradient_accumulation": 3, "replicas": 2, "broadcast_buffers": False}),
])
def test_steps_on_tiles_train_as_those_of_the_host_do(
    optimizer: Any, ipus: tuple[int, int], options: dict[str, Any],
) -> None:
    losses, state = trained("host", optimizer, ipus, **options)
    on_tiles, state_of_tiles = trained("tiles", optimizer, ipus, **options)
    torch.testing.assert_close(torch.tensor(on_tiles), torch.tensor(losses), rtol=1e-5, atol=1e-6)
    for name, value in state.items():
        torch.testing.assert_close(state_of_tiles[name], value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.whole
@pytest.mark.parametrize("mode", ["all", "final", "sum"])
def test_results_are_handed_back_as_the_host_does(mode: str) -> None:
    model = Classifier((0, 1)).eval()
    x = torch.randn(12, 1, 8, 8)
    found = [
        torchipu.InferenceStep(model, torchipu.Options(executor=executor, device_iterations=6, output_mode=mode))(x)
        for executor in ("host", "tiles")
    ]
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)
    if mode == "all":
        torch.testing.assert_close(found[1], model(x), rtol=1e-5, atol=1e-6)


def test_a_call_that_fails_leaves_everything_as_it_was() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(4, 3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters())

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x).sum()

    step = torchipu.TrainStep(Loss(), optimizer, torchipu.Options(executor="tiles"))
    step(torch.tensor([0, 1]))
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    with pytest.raises(Exception, match=r"index|range"):
        step(torch.tensor([0, 9]))
    torch.testing.assert_close(model.state_dict(), before[0], rtol=0, atol=0)
    torch.testing.assert_close(optimizer.state_dict()["state"], before[1]["state"], rtol=0, atol=0)


def test_it_is_refused_where_it_has_no_meaning() -> None:
    compiled = torch.compile(torch.nn.Linear(2, 2), backend="ipu", options={"executor": "tiles"})
    with pytest.raises(Exception, match="the tiles run whole programs"):
        compiled(torch.randn(1, 2))


@pytest.mark.parametrize("rounds", [True, False])
def test_random_bits_go_on_from_call_to_call(rounds: bool) -> None:
    weights, losses = [], []
    for executor in ("host", "tiles"):
        torch.manual_seed(2)
        model = torch.nn.Sequential(torch.nn.Dropout(0.3), torch.nn.Linear(6, 3))
        model = torch.nn.Sequential(model.half(), torch.nn.Flatten())
        options = torchipu.Options(executor=executor, stochastic_rounding=True, seed=4, gradient_accumulation=2)
        step = torchipu.TrainStep(Squares(model), torch.optim.SGD(model.parameters(), lr=1e-2), options)
        step.stochastic_rounding = rounds
        losses.append([step(torch.ones(8, 6).half()).mean() for _ in range(3)])
        weights.append(copy.deepcopy(model.state_dict()))
    torch.testing.assert_close(losses[1], losses[0], rtol=2e-3, atol=0)
    torch.testing.assert_close(weights[1], weights[0], rtol=2e-3, atol=1e-4)
    assert len({loss.item() for loss in losses[0]}) == 3


class Squares(torch.nn.Module):
    """The mean of the squares of what a model gives."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).float().square().mean()


def _branch_on_a_slice(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda a: a * 2.0, lambda a: a - 1.0, (x[:, ::2],))


def _branch_within_a_branch_on_views(x: torch.Tensor) -> torch.Tensor:
    def within(a: torch.Tensor) -> torch.Tensor:
        return torch.cond(a.sum() < 9, lambda b: _rows(b * 3, 0), lambda b: _rows(b - 3, 0), (a[:, 1:],))

    return torch.cond(x.sum() > 0, within, lambda a: _rows(a, 1), (x.t(),))


def _rows(x: torch.Tensor, column: int) -> torch.Tensor:
    return (x[1:, column:] * 1).t().contiguous()


def _loop_from_a_slice_that_reads_another(x: torch.Tensor) -> torch.Tensor:
    rows, begin = x.t()[::2], (torch.zeros((), dtype=torch.int32), x.t()[1::2].clone())
    return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 0.5 + rows), begin)[1]


def _loop_over_rows_of_a_slice(x: torch.Tensor) -> torch.Tensor:
    last, rows = scan(lambda a, row: (a + row * 2, (a - row).clone()), x[:, 0][::2].clone(), x[::2].t()[1:])
    return rows + last


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("function", [
    _branch_on_a_slice, _branch_within_a_branch_on_views, _loop_from_a_slice_that_reads_another,
    _loop_over_rows_of_a_slice,
])
def test_branches_and_loops_on_tiles_read_views_as_views(function: Any, sign: int) -> None:
    torch._dynamo.reset()  # eager cond compiles itself, and would take sizes as symbols after the case before
    x = torch.rand(4, 6) * sign
    step = torchipu.InferenceStep(Calling(function), torchipu.Options(executor="tiles"))
    torch.testing.assert_close(step(x), function(x), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("given", "types"), [
    (torch.float16, [torch.int32]), (torch.float16, [torch.int16, torch.float16]), (torch.float32, [torch.float16]),
    (torch.float32, [torch.int32, torch.float32]), (torch.int32, [torch.float32]), (torch.int8, [torch.uint8]),
])
def test_bytes_on_tiles_are_seen_as_other_types(given: torch.dtype, types: list[torch.dtype]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for dtype in types:
            x = x.view(dtype)
        return x

    torch.manual_seed(1)
    x = (torch.randn(9, 4) * 50).to(given)
    step = torchipu.InferenceStep(Calling(function), torchipu.Options(executor="tiles"))
    torch.testing.assert_close(step(x), function(x), rtol=0, atol=0, equal_nan=True)


class Calling(torch.nn.Module):
    """A function, of what has been computed."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x * 1)
