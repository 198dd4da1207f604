"""Metrics over all processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.distributed.processes import run
from torchipu.distributed.metrics import reduce_metrics
from torchipu.errors import OptionsError


def test_all_processes_get_the_same_numbers(tmp_path: Path) -> None:
    for rank, found in enumerate(run("tests.distributed.metric_shares:reduce", [2], tmp_path)[0]):
        assert found["mean"] == found["after"] == {"loss": 1.5, "hits": 5.0}
        assert found["sum"] == {"loss": 3.0, "hits": 10.0}
        assert found["min"] == {"loss": 1.0, "hits": 0.0}
        assert found["max"] == {"loss": 2.0, "hits": 10.0}
        assert found["weighted"] == {"loss": 1.75, "hits": 7.5}
        assert found["alone"] == {"loss": 1.0 + rank, "hits": 10.0 * rank}
        assert "differ in metrics: rank 0 has accuracy, rank 1 has loss" in found["error"]


def test_one_process_reduces_its_own() -> None:
    assert reduce_metrics({"loss": torch.tensor([2.0])}) == {"loss": 2.0}


def test_what_cannot_be_reduced_is_named() -> None:
    with pytest.raises(OptionsError, match=r"unknown reduction 'average'.*"):
        reduce_metrics({}, "average")
    with pytest.raises(OptionsError, match=r"metric 'loss' has shape \[3\], not one number"):
        reduce_metrics({"loss": torch.ones(3)})
