"""Runs with `tests/cache/faults.c` loaded: every call of a function fails in turn while files are written anew.

They are those of a report, and a file of tensors, as executables are.
"""

from __future__ import annotations

import ctypes
import errno
import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path

import cbor2
import torch

from tests.placed_graphs import lowered, pipeline, training_graph
from torchipu.device.cost import estimate
from torchipu.options import Options
from torchipu.report import profile_of
from torchipu.report.database import read_database
from torchipu.report.directory import write_directory
from torchipu.report.facts.gather import Facts, facts_of
from torchipu.stored import tensor_file
from torchipu.target import lookup_target

FUNCTIONS = ("open", "write", "read", "fsync", "rename", "unlink")
ERRORS = (errno.ENOSPC, errno.EIO)
MOST_CALLS = 400


def facts_named(name: str) -> Facts:
    """Return the facts of a program of one op, whose name tells it from another."""
    target = lookup_target("mk2")
    schedule = pipeline(1, 1)
    executable = lowered(training_graph(1, 16), schedule, target, micro_batches=1)
    options, cost = Options(), estimate(executable, target, schedule)
    return facts_of(name, executable, cost, target, options, profile_of(executable, cost, target, options.io_tiles))


def whole(path: Path) -> None:
    """Read all of a file.

    Raises:
        Exception: Part of it is missing.
    """
    match path.suffix:
        case ".pop":
            read_database(path)
        case ".cbor":
            cbor2.loads(path.read_bytes())
        case ".gz":
            json.loads(gzip.decompress(path.read_bytes()))
        case ".json":
            json.loads(path.read_text())
        case ".html":
            assert path.read_text().rstrip().endswith("</html>"), f"{path} has no end"
        case ".ipu":
            tensor_file.read(path)


def failing(write: Callable[[], object], folder: Path) -> tuple[dict[str, int], list[str]]:
    """Let each call of each function fail in turn.

    Args:
        write: Writes files over those in a folder.
        folder: Where calls fail.

    Returns:
        By function and error how many calls failed, and what was wrong afterwards.
    """
    shim, found, wrong = ctypes.CDLL(None), dict[str, int](), list[str]()
    for function in FUNCTIONS:
        for number in ERRORS:
            case = f"{function} {errno.errorcode[number]}"
            for n in range(1, MOST_CALLS):
                raised = None
                shim.fault_arm(function.encode(), n, number, str(folder).encode())
                try:
                    write()
                except OSError as error:
                    raised = error
                except Exception as error:
                    wrong.append(f"{case} {n}: {type(error).__name__}: {error}")
                shim.fault_arm(b"", 0, 0, b"")
                has_struck = bool(shim.fault_struck())
                if raised is not None and str(folder) not in str(raised):
                    wrong.append(f"{case} {n}: no file is named: {raised!r}")
                for path in sorted(folder.iterdir()):
                    if path.name.startswith(".") and path.name != ".report.lock":
                        if function != "unlink":
                            wrong.append(f"{case} {n}: left {path.name}")
                        path.unlink()
                        continue
                    try:
                        whole(path)
                    except Exception as error:
                        wrong.append(f"{case} {n}: {path.name} is torn: {error!r}")
                if not has_struck:
                    if raised is not None:
                        wrong.append(f"{case} {n}: nothing failed, and {raised!r} was raised")
                    break
                found[case] = n
            else:
                wrong.append(f"{function} is called without end")
    return found, wrong


def main(folder: str) -> None:
    """Print by what is written and by function and error how many calls failed, and what was wrong afterwards."""
    told = {}
    reports, tensors = Path(folder) / "reports", Path(folder) / "tensors"
    tensors.mkdir()
    facts = facts_named("after")
    write_directory(facts_named("before"), reports)
    told["report"] = failing(lambda: write_directory(facts, reports), reports)
    file, after = tensors / "model.ipu", {"after": torch.zeros(6000)}
    tensor_file.write(file, {"before": torch.ones(5000)}, {"words": "before"})
    told["tensors"] = failing(lambda: tensor_file.write(file, after, {"words": "after"}), tensors)
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
