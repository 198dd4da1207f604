"""Limits of PopTorch: the words of its refusals, and that what it takes is taken."""

from __future__ import annotations

import operator
import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torchipu import poptorch

X = torch.arange(12.0).reshape(2, 6) / 7
LABELS = torch.tensor([1, 2])
IMAGE = torch.arange(16.0).reshape(1, 1, 4, 4)
SERIES = torch.arange(36.0).reshape(3, 2, 6) / 36
BYTES = torch.tensor([1, 2], dtype=torch.uint8)


class CTC(nn.Module):
    """A model with a CTC loss over two steps; its targets are constants of the program."""

    def __init__(self, reduction: str, targets: torch.Tensor) -> None:
        super().__init__()
        self.loss = nn.CTCLoss(reduction=reduction, zero_infinity=True)
        self.targets = targets

    def forward(self, x: torch.Tensor) -> Any:
        return self.loss(x.reshape(2, 1, 6).log_softmax(2), self.targets, torch.tensor([2]), torch.tensor([1]))


CASES: list[tuple[Any, torch.Tensor, str]] = [
    (nn.NLLLoss(weight=torch.ones(6)), X, 'Parameter "weight" is unsupported for aten::nll_loss_nd'),
    (nn.CrossEntropyLoss(weight=torch.ones(6)), X, 'Parameter "weight" is unsupported for aten::cross_entropy_loss'),
    (CTC("none", torch.tensor([[1]])), X, 'CTCLoss with reduction="none" is currently not supported'),
    (CTC("mean", torch.tensor([1])), X, "CTCLoss needs 2-dimensional targets"),
    (nn.GRU(6, 4, num_layers=2), SERIES, "Only GRU with 1 layer supported"),
    (nn.GRU(6, 4, dropout=0.1), SERIES, "GRU only supports dropout = 0.0"),
    (nn.GRU(6, 4, bidirectional=True), SERIES, "bidirectional GRU not supported"),
    (nn.LSTM(6, 4, bias=False), SERIES, "LSTM without biases not supported"),
    (nn.LSTM(6, 4, num_layers=2), SERIES, "Only LSTM with 1 layer supported"),
    (nn.LSTM(6, 4, dropout=0.1), SERIES, "LSTM only supports dropout = 0.0"),
    (nn.LSTM(6, 4, bidirectional=True), SERIES, "bidirectional LSTM not supported"),
    (nn.RNN(6, 4, bias=False), SERIES, "RNN without biases is not supported"),
    (nn.RNN(6, 4, num_layers=2), SERIES, "Only RNN with 1 layer is supported"),
    (nn.RNN(6, 4, dropout=0.1, nonlinearity="relu"), SERIES, "RNN only supports dropout = 0.0"),
    (nn.RNN(6, 4, bidirectional=True), SERIES, "Bidirectional RNN is not supported"),
    (nn.Embedding(4, 3, scale_grad_by_freq=True), LABELS, "Unsupported aten::embedding operation"),
    (nn.Embedding(4, 3, sparse=True), LABELS, "Unsupported aten::embedding operation"),
    (nn.EmbeddingBag(4, 3, scale_grad_by_freq=True), LABELS[None], "Unsupported aten::embedding_bag operation"),
    (nn.EmbeddingBag(4, 3, sparse=True), LABELS[None], "Unsupported aten::embedding_bag operation"),
    (nn.EmbeddingBag(4, 3, padding_idx=0), LABELS[None], "padding_idx parameter is unsupported."),
    (lambda i: nn.EmbeddingBag(4, 3)(i, i - 1), LABELS, "offsets tensor must be a constant."),
    (F.one_hot, LABELS, "OneHot num classes must be specified and must be constant."),
    (lambda x: F.gelu(x, approximate="x"), X, "Unknown GELU approximate 'x'"),
    (lambda x: x & x, BYTES, "Poplar does not support binary operations on 8-bit integral types."),
    (lambda x: ~x, BYTES.char(), "Poplar does not support binary operations on 8-bit integral types."),
    (lambda x: x | x, X, "or supports only bool and integer types"),
    (lambda x: torch.bitwise_xor(x, x), X, "bitwise_xor supports only bool and integer types"),
    (lambda x: torch.arange(x[0]), LABELS, "Unsupported arange op"),
    (lambda x: x.new_zeros(x[0]), LABELS, "Shape needs to be a static constant"),
    (lambda x: x.new_ones((x[0], 2)), LABELS, "Shape needs to be a static constant"),
    (lambda x: x * x[0, 1].item(), X, "Cannot force a non-constant 'aten::getitem' node to a float"),
    (lambda x: x * float(x.sum()), X, "Cannot force a non-constant 'aten::sum' node to a float"),
    (lambda x: x * int(x[0]), LABELS, "Cannot force a non-constant 'aten::getitem' node to an int"),
    (lambda x: x if x.sum() > 0 else -x, X, "Cannot force a non-constant 'aten::gt' node to a bool"),
    (lambda i: torch.ones(4, 4).unfold(1, i[0], 1), LABELS, "the value on the host of aten._local_scalar_dense"),
    (lambda x: x.nonzero(), X, "Unsupported ops found in compiled model: [aten::nonzero]"),
    (nn.AdaptiveAvgPool1d(4), X[None], "the input size [6] is divisible by the output size [4]"),
    (nn.AdaptiveAvgPool2d((2, 3)), IMAGE, "the input size [4, 4] is divisible by the output size [2, 3]"),
    (nn.Upsample(scale_factor=2, mode="linear"), IMAGE[0], "currently only 'nearest' is supported"),
    (lambda x: F.layer_norm(x, (6,)), X.int(), 'layer_norm input "input" of type int32 not supported'),
    (lambda x: F.batch_norm(x, None, None, training=True), X.int(), 'batch_norm input "input" of type int32 not supp'),
    (lambda x: x.scatter_reduce(0, x.long() * 0, x, "median"), X, "Unsupported reduction type for scatter_reduce: med"),
    (torch.triu, X, "torch.triu is only supported within constant expressions"),
    (lambda x: x.clone().__setitem__(slice(None, None, 2), 0), X, "of slices with step size other than 1"),
    (lambda x: x.clone()[:, 1::2].add_(1), X, "In-place modification of slices with step size other than 1"),
    (lambda x: operator.iadd(x.clone()[..., ::3], 1), X, "slices with step size other than 1 is not supported"),
]


@pytest.mark.parametrize(("model", "x", "words"), CASES)
def test_compilation_is_refused_in_the_words_of_poptorch(model: Any, x: torch.Tensor, words: str) -> None:
    target = LABELS if isinstance(model, (nn.NLLLoss, nn.CrossEntropyLoss)) else None
    step = poptorch.inferenceModel(model)
    with pytest.raises(poptorch.Error, match=re.escape(words)):
        step(x) if target is None else step(x, target)
    assert not step.isCompiled()


TAKEN: list[tuple[Any, torch.Tensor]] = [
    (lambda x: F.cross_entropy(x, x.argmax(1)), X), (CTC("mean", torch.tensor([[1]])), X),
    (nn.GRU(6, 4, bias=False), SERIES), (nn.LSTM(6, 4), SERIES), (nn.RNN(6, 4), SERIES),
    (nn.Embedding(4, 3, padding_idx=0), LABELS), (lambda i: F.embedding(i, torch.eye(4)), LABELS),
    (lambda i: F.embedding_bag(i, torch.eye(4), torch.tensor([0, 1]), mode="sum"), LABELS),
    (lambda i: F.one_hot(i, 5).float(), LABELS), (lambda x: F.gelu(x, approximate="tanh"), X),
    (lambda x: ~(x.int() & 3 | x.int()), X), (lambda x: (x > 1) ^ (x < 0.5), X),
    (nn.AdaptiveAvgPool1d(3), X[None]), (nn.AdaptiveAvgPool2d((2, None)), IMAGE),
    (nn.Upsample(scale_factor=2, mode="bilinear"), IMAGE), (nn.Upsample(scale_factor=1.5), IMAGE),
    (lambda x: x * torch.ones(6, 6).triu(1)[0], X), (lambda x: x * torch.eye(6).cumsum(0).triu()[:2], X),
    (lambda x: x.new_zeros(2) + torch.arange(2), X), (lambda x: x[: int(torch.tensor(1))], X),
    (lambda x: x[:, ::2] + 1, X), (lambda x: x[:, ::2].clone().mul_(2), X),
    (lambda x: x.clone()[:, 1:3].add_(x[0, 0]), X),
]


@pytest.mark.parametrize(("model", "x"), TAKEN)
def test_what_is_within_the_limits_is_computed(model: Any, x: torch.Tensor) -> None:
    got = poptorch.inferenceModel(model)(x)
    with torch.no_grad():
        expected = model(x)
    for one, other in zip(*(v if isinstance(v, tuple) else (v,) for v in (got, expected)), strict=True):
        for value, right in zip(*(v if isinstance(v, tuple) else (v,) for v in (one, other)), strict=True):
            torch.testing.assert_close(value, right, check_dtype=False)


def test_module_and_weights_are_as_before_a_refusal() -> None:
    class Model(nn.LSTM):
        def forward(self, x: Any) -> Any:
            return poptorch.identity_loss(super().forward(x)[0], "mean")

    model = Model(6, 4, num_layers=2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    step = poptorch.trainingModel(model)
    with pytest.raises(poptorch.Error, match="Only LSTM with 1 layer supported"):
        step(SERIES)
    step.destroy()
    assert type(model) is Model
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    model(SERIES).backward()  # and the CPU runs it
