"""Vertices of calls of every record that moves, looks up, finds or fills in elements, against the ops themselves."""

from __future__ import annotations

import re

import pytest
import torch

from tests.device.tilings.calls import judge_call
from tests.ops.cases import calls
from tests.releases import NUMBERS_IN_BUCKETS

SERVED = re.compile(
    r"aten\.(clone|cat|stack|constant_pad_nd|slice_scatter|select_scatter|slice_backward|select_backward|repeat|flip|roll|"
    r"full|full_like|new_full|scalar_tensor|fill|ones|ones_like|new_ones|zeros|zeros_like|new_zeros|arange|linspace|"
    r"gather|scatter|scatter_add|scatter_reduce|index_select|index|index_put|_unsafe_index|_unsafe_index_put|take|put|"
    r"index_add|index_copy|index_fill|index_reduce|embedding|embedding_dense_backward|glu|glu_backward|"
    r"_?upsample_.*|reflection_pad.*|replication_pad.*|im2col|col2im|unfold_backward|as_strided_scatter|"
    r"diagonal_scatter|diagonal_backward|diag_embed|tril|triu|_?embedding_.*|max_unpool.*|masked_scatter|"
    r"masked_scatter_backward|nonzero_static|sort|topk|kthvalue|median|nanmedian|mode|searchsorted|bucketize|histc)\.[A-Za-z_]+"
)
TARGETS = [
    pytest.param(target, marks=NUMBERS_IN_BUCKETS) if target == "aten.bucketize.Scalar" else target
    for target in sorted(calls()) if SERVED.fullmatch(target)
]


@pytest.mark.whole
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("target", TARGETS)
def test_calls(target: str, dtype: torch.dtype) -> None:
    for call in calls(dtype).get(target, ()):
        for tiles in (1472, 5):
            assert judge_call(call, tiles) in ("tiled", "nothing")
