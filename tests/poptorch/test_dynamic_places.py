"""Places that only the program knows, ``x[i]``, ``x[i : i + 2]``, ``x.narrow(0, i, 2)``: read, and written through."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torchipu import poptorch

X = torch.arange(24.0).reshape(4, 6)


def assert_as_eager(model: Any, numbers: range) -> None:
    """Compare a program, compiled once, with eager PyTorch for each number; the input is written alike."""
    step = poptorch.inferenceModel(model)
    for number in numbers:
        mine, theirs = X.clone(), X.clone()
        expected = model(theirs, torch.tensor(number))
        torch.testing.assert_close(step(mine, torch.tensor(number)), expected, rtol=0, atol=0)
        assert mine.equal(theirs)


@pytest.mark.parametrize("model", [
    lambda x, i: (x[i], x[:, i], x[..., i], x[None, i]), lambda x, i: (x[i, i + 1], x[-i - 1], x[1 - i]),
    lambda x, i: (x[i, i : i + 2], x[i : i + 1, i]), lambda x, i: (x[[0, 2], i], x[i, torch.tensor([1, 2])]),
    lambda x, i: (x.view(2, 2, 6)[..., i], x.view(2, 2, 6)[..., i : i + 2], x.view(4, 2, 3)[i, ..., 1]),
    lambda x, i: (x.select(1, i), torch.select(x, 0, i), x.select(dim=-1, index=i)),
    lambda x, i: (x.narrow(1, i, 2), torch.narrow(x, -1, i, 3), x.narrow(dim=1, start=i, length=1)),
])
def test_a_place_is_read(model: Any) -> None:
    assert_as_eager(model, range(4 if "narrow" not in model.__code__.co_names else 3))


def _set(x: torch.Tensor, index: Any, value: Any) -> None:
    x[index] = value


def _add(x: torch.Tensor, index: Any, value: Any) -> None:
    x[index] += value


@pytest.mark.parametrize("write", [
    lambda x, i: _set(x, i, 5.0), lambda x, i: _set(x, (i, i), 9.0),
    lambda x, i: _set(x, (slice(None), i), x[:, 0] * 2),
    lambda x, i: _set(x, (i, slice(i, i + 2)), 5.0), lambda x, i: _set(x.select(1, i), 0, 7.0),
    lambda x, i: _set(x[:, i : i + 2], (0, 1), 7.0), lambda x, i: _set(x, i, x[i - 1]),
    lambda x, i: _add(x, i, 5.0), lambda x, i: _add(x, (i, slice(i, i + 2)), 5.0),
    lambda x, i: (_add(x, i, 1.0), _add(x, i, 2.0)),
    lambda x, i: x[:, i : i + 2].zero_(), lambda x, i: x[i].view(-1)[1:3].add_(10),
    lambda x, i: x[i][i : i + 2].mul_(2),
    lambda x, i: x.narrow(1, i, 2).fill_(3), lambda x, i: x[i].copy_(x[0]), lambda x, i: torch.add(x[i], 1, out=x[i]),
    lambda x, i: F.relu(x[i].sub_(3), inplace=True),
])
@pytest.mark.parametrize("is_input", [False, True])
def test_a_write_reaches_the_tensor_of_which_the_place_was_read(write: Any, is_input: bool) -> None:
    def model(x: torch.Tensor, i: torch.Tensor) -> Any:
        written = x if is_input else x * 1
        write(written, i)
        return written

    assert_as_eager(model, range(1, 4))


def test_a_place_that_is_known_at_capture_is_no_place_of_the_program() -> None:
    number = torch.tensor(2)
    step = poptorch.inferenceModel(lambda x: (x[number], x[:, torch.tensor(3)], x.narrow(1, number, 2)))
    torch.testing.assert_close(step(X), (X[2], X[:, 3], X[:, 2:4]))
    assert not any("Gather" in name or "Slice" in name and "Dynamic" in name for name in step.getTensorNames())


@pytest.mark.parametrize("model", [
    lambda x, i: x[torch.tensor(1, dtype=torch.uint8), i],
    lambda x, i: x[torch.tensor([1, 0, 1, 0], dtype=torch.uint8), i],
    lambda x, i: x.view(2, 2, 6)[torch.tensor([[1, 0], [0, 1]], dtype=torch.uint8), i],
    lambda x, i: x.view(2, 2, 6)[torch.tensor([[True, False], [False, True]]), i],
    lambda x, i: x[True, i], lambda x, i: x[torch.tensor(True), i : i + 2],
])
@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
def test_a_mask_beside_a_place_takes_as_many_dimensions_as_it_has(model: Any) -> None:
    assert_as_eager(model, range(3))


def test_a_byte_is_a_place_where_a_number_is_asked_for_and_a_mask_in_brackets() -> None:
    step = poptorch.inferenceModel(lambda x, i: (x.select(0, i), x.narrow(1, i, 2), x[i : i + 2]))
    for number in range(3):
        found = step(X, torch.tensor(number, dtype=torch.uint8))
        torch.testing.assert_close(found, (X[number], X[:, number : number + 2], X[number : number + 2]))
    with pytest.raises(poptorch.Error, match="depends on data"):  # the result has one row of X more, or none
        poptorch.inferenceModel(lambda x, i: x[i])(X, torch.tensor(1, dtype=torch.uint8))
