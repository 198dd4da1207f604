"""Kernels of CTC, on guarded buffers and several threads, against eager torch."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.elem_planner import run_op
from torchipu.capture import ctc


@pytest.mark.parametrize("batch", [1, 5])
def test_ctc_writes_its_results_alone(batch: int) -> None:
    torch.manual_seed(0)
    time, classes, labels = 7, 5, 3
    log_probs = torch.randn(time, batch, classes).log_softmax(-1)
    targets = torch.randint(1, classes, (batch, labels))
    given = (log_probs, targets, torch.arange(batch) % time + 1, torch.arange(batch) % (labels + 1), 0, ctc.MEAN, True)
    loss, alpha = torch.ops.ipu.ctc_loss(*given)
    behind = (torch.randn(batch), loss, alpha, *given[:5], True)
    for threads in (1, 3):
        (mine, _), _ = run_op("ipu.ctc_loss.default", *given, threads=threads)
        torch.testing.assert_close(mine, loss)
        (mine,), (plain,) = run_op("ipu.ctc_loss_backward.default", *behind, threads=threads)
        torch.testing.assert_close(mine, plain, rtol=1e-5, atol=1e-5)
