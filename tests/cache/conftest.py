"""A cache of its own for each test."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchipu.cache import settings


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Turn the cache on, in a folder of the test, and return the folder."""
    monkeypatch.setenv(settings.SWITCH, "1")
    monkeypatch.setenv(settings.DIRECTORY, str(tmp_path / "cache"))
    monkeypatch.delenv(settings.SIZE, raising=False)
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def _logs_reach_pytest(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test before this one has told of logs may keep them to other handlers, or drop them."""
    logger = logging.getLogger("torchipu")
    monkeypatch.setattr(logger, "propagate", True)
    level = logger.level
    logger.setLevel(logging.NOTSET)
    yield
    logger.setLevel(level)
