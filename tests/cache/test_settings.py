"""Where the compile cache lies, and which folders are none to read from."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from pathlib import Path

import pytest
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from tests.releases import USERS_WITHOUT_NAMES
from torchipu.cache import settings


@pytest.mark.parametrize("user", ["somebody", 'a<b>"c', pytest.param(None, marks=USERS_WITHOUT_NAMES)])
def test_without_a_folder_it_lies_in_that_of_torch(monkeypatch: pytest.MonkeyPatch, user: str | None) -> None:
    def getuser() -> str:
        if user is None:
            raise KeyError("no user of this number")
        return user

    monkeypatch.delenv(settings.DIRECTORY)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr(getpass, "getuser", getuser)
    assert settings.folder() == Path(default_cache_dir()) / "torchipu"


def test_a_folder_that_torch_is_told_of_holds_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(settings.DIRECTORY)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert settings.folder() == tmp_path / "torchipu"
    monkeypatch.setenv(settings.DIRECTORY, "~/mine")
    assert settings.folder() == Path.home() / "mine"


def _belongs_to_another(path: Path, patch: pytest.MonkeyPatch) -> None:
    path.mkdir()
    patch.setattr(settings.os, "geteuid", lambda: path.stat().st_uid + 1)


def _closed(path: Path, patch: pytest.MonkeyPatch) -> None:
    path.mkdir()
    patch.setattr(settings.os, "access", lambda where, mode: False)


@pytest.mark.parametrize(("make", "words"), [
    (lambda path, patch: None, "No such file"),
    (lambda path, patch: path.write_text("a file"), "it is not a folder"),
    (lambda path, patch: (path.mkdir(), path.chmod(0o720)), "others may write into it"),
    (lambda path, patch: (path.mkdir(), path.chmod(0o702)), "others may write into it"),
    (_belongs_to_another, "it belongs to user"),
    (_closed, "it may not be written"),
])
def test_a_folder_that_is_none_to_read_from_is_told_why(
    make: Callable[[Path, pytest.MonkeyPatch], object], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    make(tmp_path / "cache", monkeypatch)
    assert words in settings.refusal_of(tmp_path / "cache")


def test_a_folder_that_others_may_read_is_one(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o755)
    assert settings.refusal_of(tmp_path / "cache") == ""
