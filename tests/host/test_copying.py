"""Copies at the edge of a call: values, and what torch is told of the writes."""

import pytest
import torch

from torchipu._kernels.abi import copy_memory
from torchipu.host.copying import RepeatedCopy, copy_all


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("count", [0, 1, 1000, 3_000_001])
def test_bytes_arrive_and_the_write_is_counted(threads, count):
    sources = [torch.randn(count), torch.arange(count), torch.rand(count) > 0.5]
    targets = [torch.zeros_like(source) for source in sources]
    versions = [target._version for target in targets]
    copy_all(targets, sources, threads)
    assert all(map(torch.equal, targets, sources))
    assert all(target._version > version for target, version in zip(targets, versions, strict=True))


def test_views_and_other_types_are_converted():
    source = torch.randn(6, 4)
    targets = [torch.zeros(4, 6).t(), torch.zeros(6, 4, dtype=torch.float64), torch.zeros(6, 4)]
    sources = [source, source, source.t().contiguous().t()]
    copy_all(targets, sources, 2)
    assert all(torch.equal(target.float(), source) for target in targets)


def test_a_parameter_that_a_graph_needs_notices():
    weight = torch.nn.Parameter(torch.ones(4))
    loss = (weight * weight).sum()
    copy_all([weight.detach()], [torch.zeros(4)], 1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_nothing_is_copied_without_pairs():
    copy_memory([], 2)
    copy_all([], [], 2)


@pytest.mark.parametrize("change", [
    lambda weight: weight.data.resize_(6, 2),
    lambda weight: setattr(weight, "data", weight.data.t()),
    lambda weight: setattr(weight, "data", weight.data.view(torch.int32)),
    lambda weight: setattr(weight, "data", torch.zeros(4, 4)),
    lambda weight: weight.data.t_(),
    lambda weight: setattr(weight, "data", weight.data._neg_view()),
])
def test_a_target_that_is_changed_between_copies_is_written_as_it_then_is(change):
    weight, source = torch.nn.Parameter(torch.zeros(4, 4), requires_grad=False), torch.arange(16.0).view(4, 4)
    copies = RepeatedCopy([weight, torch.zeros(3)], [source, torch.ones(3)])
    for _ in range(2):
        weight.zero_()
        copies.copy(2)
        assert torch.equal(weight, source)
    change(weight)
    version = weight._version
    if weight.shape != source.shape or weight.is_neg():  # torch's own words
        with pytest.raises(RuntimeError, match=r"size|negation"):
            copies.copy(2)
        return
    copies.copy(2)
    assert torch.equal(weight, source.to(weight.dtype))
    assert weight._version > version
