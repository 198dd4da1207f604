"""Index tensors longer than what kernels look at in one go: values, what is refused, and threads."""

from collections.abc import Callable

import pytest
import torch

from torchipu import ExecutionError

Tensors = tuple[torch.Tensor, ...]
COUNT, ROWS, EXTENT = 1300, 7, 300


def numbers(*shape: int) -> torch.Tensor:
    return torch.randint(0, EXTENT, shape, generator=torch.Generator().manual_seed(2))


def values(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


CASES: dict[str, tuple[Callable[..., torch.Tensor], torch.Tensor, torch.Tensor, torch.Tensor]] = {
    "gather": (lambda x, i, s: torch.gather(x, 1, i) * s, values(ROWS, EXTENT), numbers(ROWS, COUNT), values(1)),
    "gather down": (lambda x, i, s: torch.gather(x, 0, i) * s, values(EXTENT, COUNT), numbers(ROWS, COUNT), values(1)),
    "columns": (lambda x, i, s: x.index_select(1, i) * s, values(ROWS, EXTENT), numbers(COUNT), values(1)),
    "add columns": (lambda x, i, s: x.index_add(1, i, s), values(ROWS, EXTENT), numbers(COUNT), values(ROWS, COUNT)),
    "scatter": (
        lambda x, i, s: x.scatter(1, i, s), values(ROWS, 2 * COUNT),
        torch.randperm(2 * COUNT, generator=torch.Generator().manual_seed(4))[:COUNT].expand(ROWS, COUNT).contiguous(),
        values(ROWS, COUNT),
    ),
    "add": (lambda x, i, s: x.scatter_add(1, i, s), values(ROWS, EXTENT), numbers(ROWS, COUNT), values(ROWS, COUNT)),
    "add down": (
        lambda x, i, s: x.scatter_add(0, i, s), values(EXTENT, COUNT), numbers(ROWS, COUNT), values(ROWS, COUNT),
    ),
    "largest": (
        lambda x, i, s: x.scatter_reduce(1, i, s, "amax"), values(ROWS, EXTENT), numbers(ROWS, COUNT),
        values(ROWS, COUNT),
    ),
}


def compiled(function: Callable[..., torch.Tensor], threads: int = 1) -> Callable[..., torch.Tensor]:
    torch._dynamo.reset()
    call: Callable[..., torch.Tensor] = torch.compile(function, backend="ipu", options={"host_threads": threads})
    return call


def results(run: Callable[..., torch.Tensor], operands: Tensors) -> Tensors:
    leaves = [x.clone().requires_grad_() for x in operands if x.is_floating_point()]
    found = run(leaves[0], operands[1], leaves[1])
    return (found.detach(), *torch.autograd.grad(found.sin().sum(), leaves))


@pytest.mark.parametrize("index", [torch.int64, torch.int32])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_double_precision(name: str, index: torch.dtype) -> None:
    function, x, i, s = CASES[name]
    if index is torch.int32 and name not in ("columns", "add columns"):
        pytest.skip("torch takes no such index here")
    wanted = results(function, (x.double(), i, s.double()))
    for mine, theirs in zip(results(compiled(function), (x, i.to(index), s)), wanted, strict=True):
        torch.testing.assert_close(mine.double(), theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_any_number_of_threads_gives_the_same_bits(name: str) -> None:
    function, *operands = CASES[name]
    first, *others = (results(compiled(function, threads), tuple(operands)) for threads in (1, 2, 5))
    for other in others:
        assert all(map(torch.equal, first, other))


@pytest.mark.parametrize("wrong", [-(2**63), -EXTENT - 1, 2 * COUNT, 2**31, 2**63 - 1])
@pytest.mark.parametrize("place", [0, 511, 512, COUNT - 1])
@pytest.mark.parametrize("name", CASES)
def test_an_index_out_of_range_is_refused_wherever_it_stands(name: str, place: int, wrong: int) -> None:
    function, x, i, s = CASES[name]
    i = i.clone()
    run = compiled(function)
    run(x, i, s)
    i[..., place] = wrong
    with pytest.raises((ExecutionError, IndexError, RuntimeError)):
        run(x, i, s)
