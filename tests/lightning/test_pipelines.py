"""Blocks split a replica over IPUs: begun in ``__init__`` or before ``fit``, PopTorch's or torchipu's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import IPUStrategy  # type: ignore[attr-defined]

import torchipu
import torchipu.poptorch as poptorch
from tests.lightning.runs import Classifier, Run, assert_same, loader


def ipus_of(run: Run, stage: str = "train") -> set[int]:
    """Return the IPUs on which the first program of a stage has ops."""
    program = run.trainer.strategy.poptorch_models[stage].programs[0]
    return {op.placement.ipu for op in program.compiled.graph.ops if op.placement is not None}


class _Begun(Classifier):
    def __init__(self) -> None:
        super().__init__()
        poptorch.BeginBlock(self.net[2], "head", ipu_id=1)


class _Within(Classifier):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torchipu.Block("body", ipu_id=0):
            x = self.net[1](self.net[0](x))
        with torchipu.Block("head", ipu_id=1):
            return self.net[2](x)


@pytest.mark.parametrize("make", [_Begun, _Within])
def test_pipeline_over_two_ipus_is_the_cpu_run(make: type) -> None:
    # 13 batches in groups of 4: the last group is too short for a pipeline, and its batch is ragged.
    _, ours = assert_same(make, accumulate_grad_batches=4, max_epochs=1)
    assert ipus_of(ours) == {0, 1}
    assert ours.trainer.strategy.poptorch_models["train"].programs[0].options.execution == "pipelined"


def test_block_that_begins_before_fit_and_evaluation_as_a_pipeline() -> None:
    def make() -> Any:
        module = Classifier()
        poptorch.BeginBlock(module.net[2], "head", ipu_id=1)
        return module

    ours = Run("ipu", make, lambda: (loader(48), loader(32)), max_epochs=1, accumulate_grad_batches=3,
               strategy=IPUStrategy(device_iterations=2))
    assert ipus_of(ours, "validate") == {0, 1}


def test_pipeline_that_accumulation_does_not_fill_is_refused_in_words_of_poptorch() -> None:
    with pytest.raises(poptorch.Error, match="gradientAccumulation must be greater than or equal to the number of"):
        Run("ipu", _Begun, lambda: loader(16), max_epochs=1)
