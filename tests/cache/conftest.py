"""A cache of its own for each test."""

import logging
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
def _logs_reach_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch was told of logs by a test before this one may keep them to its own handlers."""
    monkeypatch.setattr(logging.getLogger("torchipu"), "propagate", True)
