"""Runs with `faults.c` loaded: every call of a function fails in turn while an entry is written and read."""

from __future__ import annotations

import ctypes
import errno
import json
import sys
import warnings
from pathlib import Path

from tests.cache.writers import is_whole, payload
from torchipu.cache.store import Store

FUNCTIONS = ("open", "write", "read", "fsync", "rename", "unlink")
ERRORS = (errno.ENOSPC, errno.EIO)
MOST_CALLS = 200


def main(folder: str) -> None:
    """Print by function and error how many calls failed, and what was wrong afterwards."""
    shim = ctypes.CDLL(None)
    found: dict[str, int] = {}
    wrong: list[str] = []
    store = Store(Path(folder), 1 << 40)
    assert store.write("entry0", payload("entry0"), {})
    for function in FUNCTIONS:
        for number in ERRORS:
            for n in range(1, MOST_CALLS):
                case = f"{function} {errno.errorcode[number]}"
                with warnings.catch_warnings(record=True) as told:
                    warnings.simplefilter("always")
                    shim.fault_arm(function.encode(), n, number, folder.encode())
                    is_there = store.write("entry1", payload("entry1"), {})
                    entry = store.read("entry0")
                    shim.fault_arm(b"", 0, 0, b"")
                    has_struck = bool(shim.fault_struck())
                if not is_there and len(told) != 1:
                    wrong.append(f"{case} {n}: {len(told)} warnings of an entry that is not there")
                if is_there and store.read("entry1") is None:
                    wrong.append(f"{case} {n}: an entry that was written is not there")
                if entry is None and is_there and function not in ("open", "read"):
                    wrong.append(f"{case} {n}: an older entry could not be read")
                if not is_whole(store, "entry0") or not (Path(folder) / "entry0.capture").exists():
                    wrong.append(f"{case} {n}: an older entry was lost")
                leftovers = [path.name for path in Path(folder).iterdir() if path.name.startswith(".")]
                if leftovers and function != "unlink":
                    wrong.append(f"{case} {n}: left {leftovers}")
                if not has_struck:
                    break
                found[case] = n
            else:
                wrong.append(f"{function} is called without end")
    print(json.dumps({"failed calls": found, "wrong": wrong}))


if __name__ == "__main__":
    main(sys.argv[1])
