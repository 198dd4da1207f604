"""Entries are whole or not there: damage, other versions, kills, failing calls, eviction, folders that are not used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from tests.cache.writers import payload
from torchipu.cache import store as store_module
from torchipu.cache.store import Store
from torchipu.cli import main
from torchipu.errors import OptionsError
from torchipu.poptorch.stored import executable
from torchipu.stored import tensor_file

pytestmark = pytest.mark.whole  # damage to each kind of file must be noticed
HERE = Path(__file__).parent


def filled(names: list[str], most_bytes: int = 1 << 30) -> Store:
    """Return a store with entries, the last of which was used last."""
    store = Store.opened()
    store.most_bytes = most_bytes
    for age, name in enumerate(reversed(names)):
        assert store.write(name, payload(name), {"what": name})
        os.utime(store._path(name), (time.time() - 100 * (age + 1),) * 2)
    return store


def test_an_entry_is_found_by_its_name_and_is_what_was_written() -> None:
    store = filled(["first", "second"])
    entry = store.read("first")
    assert entry is not None
    assert torch.equal(entry[0]["values"], payload("first")["values"])
    assert entry[1]["what"] == "first"
    assert store.names("sec") == ["second"]
    assert store.read("third") is None


@pytest.mark.parametrize("kind", ["entry", "executable", "small"])
def test_every_flipped_bit_and_every_truncation_is_noticed(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    tensors = {"a": torch.arange(6.0).half(), "b": torch.tensor(True)}
    if kind == "executable":
        executable.write(path, tensors, {"graph": [1, 2.5, None, "text"]})
    elif kind == "entry":
        store = Store(tmp_path, 1 << 30)
        assert store.write("one", tensors, {"what": "a model", "capture": "{}"})
        path = store._path("one")
    else:
        tensor_file.write(path, {}, {})
    data = path.read_bytes()
    missed = []
    for damaged in [*(data[:size] for size in range(len(data))), *_flipped(data), data + b" "]:
        path.write_bytes(damaged)
        try:
            tensor_file.read(path)
        except ValueError:
            continue
        missed.append(damaged)
    assert not missed
    path.write_bytes(data)
    tensor_file.read(path)


def _flipped(data: bytes) -> list[bytes]:
    flipped = []
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        flipped.append(bytes(changed))
    return flipped


def test_a_damaged_entry_is_removed_and_said_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    store = filled(["one"])
    path = store._path("one")
    path.write_bytes(path.read_bytes()[:-1])
    assert store.read("one") is None
    assert not path.exists()
    assert "one.capture of the compile cache is not used: it is cut short" in caplog.text


@pytest.mark.parametrize(("what", "value", "words"), [
    ("layout", "2", "it was written with layout 2, and this is layout 1"),
    ("layout", "0", "it was written with layout 0, and this is layout 1"),
    ("version", "9.9", "it was written with version 9.9"),
    ("kind", "something else", "it is no entry of the compile cache"),
    ("name", "another", "it was written as another, and is named one"),
])
def test_entries_of_other_versions_and_names_are_not_used(
    what: str, value: str, words: str, caplog: pytest.LogCaptureFixture,
) -> None:
    store = filled(["one"])
    tensors, texts = tensor_file.read(store._path("one"))
    tensor_file.write(store._path("one"), tensors, {**texts, what: value})
    assert store.read("one") is None
    assert words in caplog.text


def test_the_entries_that_were_not_used_for_longest_make_room() -> None:
    store = filled(["oldest", "older", "newer"])
    size = store._path("oldest").stat().st_size
    assert store.read("oldest") is not None  # now the last used
    store.most_bytes = 3 * size
    assert store.write("newest", payload("newest"), {})
    assert store.names() == ["newest", "oldest", "newer"]
    assert sum(entry.num_bytes for entry in store.entries()) <= store.most_bytes


def test_what_killed_processes_left_is_removed_after_a_while() -> None:
    store = filled(["one"])
    fresh, stale = (store.folder / f".one.capture.{name}" for name in ("fresh", "stale"))
    for path in (fresh, stale):
        path.write_bytes(b"half")
    os.utime(stale, (time.time() - store_module.STALE_SECONDS - 1,) * 2)
    assert store.names() == ["one"]
    store.evict()
    assert fresh.exists()
    assert not stale.exists()


def test_killed_writers_leave_whole_entries_and_lose_none(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.cache.writers", "--kills", "50"], capture_output=True, text=True, check=False,
    )
    found = json.loads(done.stdout)
    assert (found["kills"], found["corrupt"], found["lost"]) == (50, 0, 0)
    assert found["committed"] > 0


def test_a_writer_that_opens_the_file_itself_is_caught() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.cache.writers", "--kills", "100", "--naive", "--until-caught"],
        capture_output=True, text=True, check=False,
    )
    assert done.returncode == 1
    assert json.loads(done.stdout)["corrupt"] > 0


def test_every_call_of_the_file_system_may_fail(tmp_path: Path) -> None:
    shim = tmp_path / "faults.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(shim), str(HERE / "faults.c"), "-ldl"], check=True)
    folder = tmp_path / "entries"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.cache.nth_call", str(folder)], capture_output=True, text=True, check=False,
        env=os.environ | {"LD_PRELOAD": str(shim)},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    for function in ("open", "write", "read", "fsync", "rename"):
        for error in ("ENOSPC", "EIO"):
            assert found["failed calls"][f"{function} {error}"] >= 1


def test_a_full_disk_is_a_warning_and_the_entry_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(["one"])

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensor_file.os, "fsync", full)
    with pytest.warns(UserWarning, match=r"a capture is not cached in .*No space left.*Free some room there"):
        assert not store.write("two", payload("two"), {})
    assert store.names() == ["one"]
    assert [path.name for path in store.folder.iterdir()] == ["one.capture"]


@pytest.mark.parametrize(("make", "words"), [
    (lambda path: path.write_text("a file"), "File exists"),
    (lambda path: (path.mkdir(), path.chmod(0o777)), "others may write into it"),
    (lambda path: (path.with_name("real").mkdir(), path.symlink_to(path.with_name("real"))), "it is a symbolic link"),
])
def test_folders_that_are_not_the_users_own_are_refused(make: object, words: str, own_cache: Path) -> None:
    make(own_cache)  # type: ignore[operator]
    with pytest.raises(OSError, match=words):
        Store.opened()


def test_the_folder_is_for_the_user_alone(own_cache: Path) -> None:
    store = filled(["one"])
    assert own_cache.stat().st_mode & 0o777 == 0o700
    assert store._path("one").stat().st_mode & 0o777 == 0o600


def test_the_size_is_read_with_its_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, size in (("", 1 << 30), ("500M", 500 << 20), ("2g", 2 << 30), ("123", 123), ("1 TB", 0)):
        monkeypatch.setenv("TORCHIPU_CACHE_SIZE", text)
        if size:
            assert Store.opened().most_bytes == size
        else:
            with pytest.raises(OptionsError, match="TORCHIPU_CACHE_SIZE='1 TB' is no size"):
                Store.opened()


def test_the_command_lists_verifies_and_clears(capsys: pytest.CaptureFixture[str]) -> None:
    store = filled(["one", "two"])
    assert main(["cache", "ls"]) == 0
    assert "2 entries, 0.2 of 1074 MB" in capsys.readouterr().out
    assert main(["cache", "verify"]) == 0
    assert "2 of 2 entries are sound" in capsys.readouterr().out
    path = store._path("two")
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["cache", "verify"]) == 1
    told = capsys.readouterr().out
    assert "two.capture: it is cut short" in told
    assert "1 of 2 entries are sound" in told
    assert main(["cache", "clear"]) == 0
    assert "2 entries removed" in capsys.readouterr().out
    assert list(store.folder.iterdir()) == []


def test_a_folder_that_others_can_write_into_is_told_by_the_command(
    own_cache: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    own_cache.mkdir()
    own_cache.chmod(0o777)
    assert main(["cache", "ls"]) == 2
    assert "others may write into it" in capsys.readouterr().err


def test_an_entry_whose_header_is_damaged_is_removed_before_it_is_read(caplog: pytest.LogCaptureFixture) -> None:
    store = filled(["one", "two"])
    path = store._path("one")
    path.write_bytes(b"no header")
    assert store.read_texts("one") is None
    assert not path.exists()
    assert "one.capture of the compile cache is not used" in caplog.text
    assert store.read_texts("two") is not None


def test_a_folder_that_is_gone_has_no_entries() -> None:
    store = filled(["one"])
    store.clear()
    store.folder.rmdir()
    assert (store.names(), store.entries(), store.verify(), store.clear(), store.evict()) == ([], [], {}, 0, 0)


def test_one_process_makes_room_at_a_time() -> None:
    store = filled(["one", "two"])
    store.most_bytes = 1
    with FileLock(store.folder / store_module.LOCK):
        assert store.evict() == 0
    assert store.names() == ["two", "one"]
    assert store.evict() == 2


def test_an_entry_without_a_readable_header_is_listed_and_is_not_sound() -> None:
    store = filled(["one"])
    store._path("one").write_bytes(b"no header")
    (entry,) = store.entries()
    assert (entry.num_bytes, dict(entry.texts)) == (9, {})
    assert store.verify()[entry.path]


def test_an_entry_that_vanishes_while_it_is_read_is_none() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = filled(["one"])
        store._path("one").unlink()
        assert store.read("one") is None
        assert store.read_texts("one") is None
