"""A cache of its own for each test."""

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
