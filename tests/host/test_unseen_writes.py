"""Writes that torch does not count, seen by a few elements: which tensors are looked at, and where."""

from __future__ import annotations

import pytest
import torch

from torchipu.host.unseen_writes import Sampled


@pytest.mark.parametrize("tensor", [
    torch.zeros(1), torch.zeros(()), torch.zeros(3, 5), torch.zeros(7, dtype=torch.bool),
    torch.zeros(9, dtype=torch.float16), torch.zeros(2, 3, dtype=torch.complex128),
    torch.zeros(4, 6, 5).permute(2, 0, 1), torch.zeros(2, 4, 3, 3).to(memory_format=torch.channels_last),
    torch.zeros(9, 9)[1::2, ::3],
])
def test_a_write_into_a_whole_tensor_is_seen_once_and_one_beside_it_is_not(tensor: torch.Tensor) -> None:
    others = [torch.zeros(5), torch.zeros(0, 3)]
    sampled = Sampled([others[0], tensor, others[1]])
    assert sampled.changed() == []
    tensor.data.fill_(1)
    assert sampled.changed() == [1]
    assert sampled.take()
    assert sampled.changed() == []
    others[0].data.fill_(1)
    assert sampled.changed() == [0]


def test_the_ends_of_a_strided_tensor_are_looked_at_and_what_lies_between_its_elements_is_not() -> None:
    memory = torch.zeros(9, 9)
    tensor = memory[1::2, ::3]
    for place in (0, -1):
        sampled = Sampled([tensor])
        tensor.data[place, place] += 1
        assert sampled.changed() == [0]
    sampled = Sampled([tensor])
    memory.data[::2] += 1
    assert sampled.changed() == []


def test_a_tensor_that_lies_elsewhere_is_not_looked_at() -> None:
    tensor = torch.zeros(1 << 20)
    sampled = Sampled([tensor])
    tensor.untyped_storage().resize_(0)  # gives the memory back: reading it would end the process
    assert sampled.changed() == []
    assert not sampled.take()
    tensor = torch.zeros(8)
    sampled = Sampled([tensor])
    tensor.data = torch.ones(8)
    assert sampled.changed() == []
    assert not sampled.take()


def test_what_is_a_number_to_itself_alone_is_compared_bit_by_bit() -> None:
    tensor = torch.full((4,), float("nan"))
    sampled = Sampled([tensor])
    assert sampled.changed() == []
    tensor.data.zero_()
    assert sampled.take()
    tensor.data.neg_()
    assert sampled.changed() == [0]
