"""What a step reads at the edge of a call: arguments and constants that lie in any way, until the program has run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchipu
from torchipu.step.edge import Arguments

LYING: dict[str, Callable[[Tensor], Tensor]] = {
    "row-major": lambda x: x.clone(),
    "transposed": lambda x: x.t().contiguous().t(),
    "every other row": lambda x: x.repeat_interleave(2, 0)[::2],
    "repeated": lambda x: x[:1].expand_as(x),
    "backwards through a sign": lambda x: torch._neg_view(-x),
    "an imaginary part": lambda x: torch.complex(x, -x).conj().imag,
    "zeros without memory": lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype),
    "in double precision": lambda x: x.double(),
    "in double precision, transposed": lambda x: x.double().t().contiguous().t(),
}
X = torch.randn(8, 5, generator=torch.Generator().manual_seed(1))


class Weighed(nn.Module):
    """Rows `[N, 5]` weighed by a constant, `[N, 5]` or `[1, 5]`, that is no state of the model."""

    def __init__(self, constant: Tensor) -> None:
        super().__init__()
        self.constant = constant

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.constant).sum(-1).exp()


@pytest.mark.parametrize("name", LYING)
@pytest.mark.parametrize("iterations", [1, 4])
@pytest.mark.filterwarnings("ignore:torchipu. torch.float64 does not exist")
def test_arguments_that_lie_in_any_way_give_what_float64_gives(name: str, iterations: int) -> None:
    model = Weighed(torch.linspace(-1, 1, 5)[None])
    step = torchipu.InferenceStep(model, torchipu.Options(device_iterations=iterations, output_mode="all"))
    for call in range(2):
        x = LYING[name](X + call)
        torch.testing.assert_close(step(x).double(), model(x.double()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LYING)
def test_what_a_program_reads_lives_until_it_has_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of what lies in another way than kernels read have memory that nobody else holds."""
    bind, calls = Arguments.bind, list[tuple[set[int], list[Tensor]]]()

    class Noting:
        def __init__(self, engine: Any) -> None:
            self.engine, self.addresses = engine, set[int]()

        def bind(self, number: int, address: int, *advance: int) -> None:
            self.addresses.add(address)
            self.engine.bind(number, address, *advance)

    def noting(self: Arguments, tensors: Sequence[Tensor], *more: Any) -> list[Tensor]:
        engine = self._engine
        self._engine = noted = Noting(engine)  # type: ignore[assignment]
        try:
            kept = bind(self, tensors, *more)
        finally:
            self._engine = engine
        calls.append((noted.addresses, kept))
        return kept

    monkeypatch.setattr(Arguments, "bind", noting)
    step = torchipu.InferenceStep(Weighed(LYING[name](X)))
    for _ in range(2):
        step(LYING[name](X))
    assert len(calls) == 2
    for addresses, kept in calls:
        assert len(addresses) == 2
        assert addresses == {tensor.data_ptr() for tensor in kept}


class Squares(nn.Module):
    """Sum of squares of activations of rows `[N, 5]`; its weight `[8, 5]` is rows as well."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(8, 5) / 2)

    def forward(self, x: Tensor) -> Tensor:
        return ((x @ self.weight.t()).tanh() ** 2).sum()


@pytest.mark.parametrize("part", [slice(None), slice(2, 6)], ids=["whole", "in the middle"])
def test_an_argument_that_is_a_weight_is_read_as_it_was_before_the_call(part: slice) -> None:
    """Its rows are those of several updates, each of which writes over the rows of the next ones."""
    model = Squares()
    step = torchipu.TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.1), torchipu.Options(device_iterations=4, output_mode="all"),
    )
    for _ in range(2):
        twin = copy.deepcopy(model).double()
        optimizer, losses = torch.optim.SGD(twin.parameters(), lr=0.1), list[Tensor]()
        for rows in twin.weight.detach()[part].clone().chunk(4):
            optimizer.zero_grad()
            losses.append(twin(rows))
            losses[-1].backward()
            optimizer.step()
        found = step(model.weight.detach()[part])
        torch.testing.assert_close(found.double(), torch.stack(losses).detach(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(model.weight.double(), twin.weight, rtol=1e-5, atol=1e-5)
