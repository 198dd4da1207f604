"""What the tests of the compat layer share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from torchipu import poptorch
from torchipu.poptorch import _logging


@pytest.fixture
def debug_log(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """Write debug lines; the value returns those that were written since it was last called."""
    level = _logging.logger.level
    poptorch.setLogLevel("DEBUG")
    yield lambda: capsys.readouterr().err
    _logging.logger.setLevel(level)
