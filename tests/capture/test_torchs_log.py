"""Sizes that do not fit are told of by one error through torch.compile, without torch's stack in the log before it."""

from __future__ import annotations

import logging

import pytest
import torch

LOGGER = "torch._subclasses.fake_tensor"


def refused(backend: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what torch's log says while a layer gets three features for four."""
    torch._dynamo.reset()
    caplog.clear()
    logger = logging.getLogger(LOGGER)
    logger.addHandler(caplog.handler)  # torch's loggers do not propagate
    try:
        with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match=r"\[2, 3\] X \[4, 5\]"):
            torch.compile(torch.nn.Linear(4, 5), backend=backend)(torch.zeros(2, 3))
    finally:
        logger.removeHandler(caplog.handler)
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


def test_the_stack_of_sizes_that_do_not_fit_is_kept_out_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    assert refused("ipu", caplog) == []


def test_the_log_of_other_backends_is_theirs(caplog: pytest.LogCaptureFixture) -> None:
    assert refused("ipu", caplog) == []
    assert any("failed while attempting to run meta" in message for message in refused("eager", caplog))
    assert logging.getLogger(LOGGER).filters == []
