"""The exceptions: what programs read of them."""

from __future__ import annotations

import logging
import pickle

import pytest
import torch

from torchipu import poptorch
from torchipu.poptorch.poptorch_core import RECOVERY_ACTIONS, TestErrorType, _throwTestError, createPoptorchError


def test_error_is_no_runtime_error_and_is_the_base_of_the_others() -> None:
    assert poptorch.Error.__mro__[1] is Exception
    assert issubclass(poptorch.RecoverableError, poptorch.Error)
    assert issubclass(poptorch.UnrecoverableError, poptorch.Error)
    assert poptorch.Error is poptorch.poptorch_core.Error


def test_python_error_puts_its_type_before_the_bare_text() -> None:
    error = createPoptorchError("no such thing")
    assert str(error) == "'poptorch_py_error': no such thing"
    assert (error.type, error.message, error.location) == ("poptorch_py_error", "no such thing", "")


@pytest.mark.parametrize("kind", list(TestErrorType))
def test_each_test_error_is_raised_with_its_type(kind: TestErrorType) -> None:
    with pytest.raises(poptorch.Error, match="Error raised in:") as raised:
        _throwTestError(kind)
    assert f"'{raised.value.type}': {raised.value.message}" in str(raised.value)
    assert raised.value.location in str(raised.value)


def test_recoverable_error_says_which_reset_it_needs() -> None:
    with pytest.raises(poptorch.RecoverableError, match="Recovery action required: FULL_RESET") as raised:
        _throwTestError(TestErrorType.PoplarRecoverableFullReset)
    assert raised.value.recovery_action in RECOVERY_ACTIONS


def test_errors_keep_their_attributes_when_pickled() -> None:
    with pytest.raises(poptorch.RecoverableError) as raised:
        _throwTestError(TestErrorType.PoplarRecoverableFullReset)
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (type(copy), str(copy), copy.__dict__) == (type(raised.value), str(raised.value), raised.value.__dict__)


def test_refused_op_is_an_error_alone_without_a_traceback_of_torchs_insides(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addHandler(caplog.handler)
    try:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            poptorch.inferenceModel(lambda x: x @ x)(torch.ones(2, 3))
    finally:
        logger.removeHandler(caplog.handler)
    assert caplog.records == []
    assert logger.filters == []
