"""torch's own cases of its modules, through ``inferenceModel``: as eager, or refused in PopTorch's words."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal import common_nn

from torchipu import poptorch

REFUSED = {
    r"NLLLoss.*_weights": 'Parameter "weight" is unsupported for aten::nll_loss_nd',
    r".*_zero_(batch|dim)$": "Zero-sized tensors are unsupported",
    r"EmbeddingBag_\w+_padding_idx": "padding_idx parameter is unsupported",
    r"(Embedding|EmbeddingBag)_sparse": "scale_grad_by_freq and sparse must be False",
    r"interpolate_(tri)?linear_": "currently only 'nearest' is supported",
}
"""What PopTorch does not support, by the names of cases."""


def _name(case: dict[str, Any]) -> str:
    return case.get("fullname") or f"{case['module_name']}_{case.get('desc', '')}".rstrip("_")


CASES = {_name(case): case for case in (*common_nn.module_tests, *common_nn.get_new_module_tests())}


def _float(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype is torch.float64 else value


def _made(case: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Return the module or function of a case, and its inputs."""
    arguments = case.get("constructor_args", ())
    model = (case.get("constructor") or getattr(nn, case["module_name"]))(*arguments)
    if "input_fn" in case:
        given = case["input_fn"]()
    elif "input_size" in case:
        given = torch.randn(case["input_size"])
    else:
        pytest.skip("torch's case says nothing of its inputs")
    inputs = list(given) if isinstance(given, tuple) else [given]
    if "target_fn" in case:
        inputs.append(case["target_fn"]())
    if isinstance(model, nn.Module):
        model = model.eval().float()
    if any(isinstance(value, torch.Tensor) and value.is_complex() for value in inputs):
        pytest.skip("PopTorch has no complex numbers")
    return model, list(map(_float, inputs))


@pytest.mark.parametrize("name", CASES)
def test_case_computes_as_eager_or_is_refused_in_poptorch_words(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = _made(CASES[name])
    executor = poptorch.inferenceModel(copy.deepcopy(model))
    words = next((words for pattern, words in REFUSED.items() if re.match(pattern, name)), None)
    if words is not None:
        with pytest.raises(poptorch.Error, match=re.escape(words)):
            executor(*inputs)
        return
    expected, found = model(*inputs), executor(*inputs)
    expected, found = (list(one) if isinstance(one, (tuple, list)) else [one] for one in (expected, found))
    assert len(expected) == len(found)
    for wanted, got in zip(map(_float, expected), found, strict=True):  # the device has no float64
        shape = wanted.shape or (1,)  # a result without dimensions is one of a batch
        torch.testing.assert_close(
            got.reshape(shape), wanted.reshape(shape), rtol=1e-3, atol=1e-4, check_dtype=wanted.is_floating_point(),
        )
