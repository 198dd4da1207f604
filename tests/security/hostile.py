"""Hostile files, made with seeds, and what each reader makes of them.

``python -m tests.security.hostile FOLDER COUNT SEED`` prints one JSON object: how many files, what ran, what raised an
error that is none of ours or took too long. Everything happens under a limit of memory, and an audit hook of Python's
sees what no reader may do. With ``changed`` behind it, all files are sound ones with changes.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import resource
import signal
import sys
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import poptorch
import torch

import torchipu
from torchipu import pva
from torchipu.cache.store import Store
from torchipu.errors import IpuError
from torchipu.onnx.converter import converter
from torchipu.onnx.inputs import _array
from torchipu.poptorch.options import ConfigFileError
from torchipu.poptorch.stored import cache as poptorch_cache
from torchipu.pvti.recorder import Recorder
from torchipu.report.database import read_database
from torchipu.report.debug import read_debug
from torchipu.target import lookup_target

SECONDS = 10
MORE_BYTES = 1 << 30
"""Of address space, beyond what the process had before the first file."""
FORBIDDEN = (
    "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pickle.find_class", "marshal.load",
    "socket.connect", "ctypes.dlopen", "shutil.rmtree",
)
"""Audit events that no reader of a hostile file may cause; an entry of a cache that is damaged is removed."""


class Net(torch.nn.Module):
    """Float32 ``[N, 2]`` to ``[N, 3]``."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).tanh()


# ---------------------------------------------------------------------- files that are sound
def samples(folder: Path) -> dict[str, tuple[Path, Callable[[Path], object]]]:
    """Write a sound file for each reader; return it with the reader."""
    torch.manual_seed(0)
    run = poptorch.inferenceModel(Net())
    run(torch.ones(1, 2))
    run.save(folder / "net.poptorch")
    store = Store(folder, 1 << 30)
    step = torchipu.InferenceStep(Net())
    step(torch.ones(1, 2))
    _write_entry(store)
    step.report(folder / "report")
    report = next((folder / "report").rglob("profile.pop")).parent
    (folder / "options.cfg").write_text("deviceIterations(4)\nTraining.gradientAccumulation(2)\nuseIpuModel(True)\n")
    (folder / "machine.toml").write_text('base = "mk2"\nnum_tiles = 736\nclock_hz = 1.5e9\n')
    np.save(folder / "array.npy", np.arange(6.0).reshape(2, 3))
    found = {
        "executable": (folder / "net.poptorch", poptorch.load),
        "entry of the compile cache": (folder / "one.capture", _read_entry),
        "entry of the executable cache": (folder / "net.poptorch", poptorch_cache._read),
        "options": (folder / "options.cfg", lambda path: poptorch.Options().loadFromFile(path)),
        "machine": (folder / "machine.toml", lambda path: lookup_target(str(path))),
        "profile": (report / "profile.pop", _read_profile),
        "debug information": (report / "debug.cbor", read_debug),
        "trace": (_write_trace(folder), lambda path: list(pva.openTrace(path).processes)),
        "array": (folder / "array.npy", lambda path: _array(str(path))),
    }
    with suppress(ImportError):
        converter()
        _write_onnx(folder / "model.onnx")
        found["ONNX model"] = (folder / "model.onnx", torchipu.from_onnx)
    return found


def _write_entry(store: Store) -> None:
    assert store.write("one", {"a": torch.arange(4.0)}, {"what": "a model", "places": "{}", "capture": "{}"})


def _read_entry(path: Path) -> object:
    return Store(path.parent, 1 << 40).read(path.name.removesuffix(".capture"))


def _read_profile(path: Path) -> object:
    read_database(path)
    report = pva.openReport(path)
    return [len(report.execution.steps), report.compilation.target.numTiles]


def _write_trace(folder: Path) -> Path:
    recorder = Recorder(folder)
    for number in range(3):
        recorder.add_span("a row", f"span {number}", 1000 * number, 1000 * number + 900)
    recorder.flush()
    return recorder.path


def _write_onnx(path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2, 3], [1.0] * 6)
    graph = helper.make_graph(
        [node], "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])], [weight],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


# ---------------------------------------------------------------------- files that are not
class Payload:
    """Runs a command where it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.proof}'",)


def foreign(proof: Path) -> Iterator[bytes]:
    """Yield what is of no format of ours, or of several."""
    attack = pickle.dumps(Payload(proof))
    yield attack
    yield b""
    yield b"\0" * 4096
    yield (2**63 - 1).to_bytes(8, "little") + b"{}"
    yield gzip.compress(bytes(1 << 26))
    yield _zipped(attack)
    deep = b'{"__metadata__":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    yield len(deep).to_bytes(8, "little") + deep
    yield b"SQLite format 3\x00" + attack
    yield b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(128) + attack
    yield cbor2.dumps([[1] * 3] * 3) + b"\xbf" * 5000
    yield b"\x9b" + (2**60).to_bytes(8, "big")
    yield f"__import__('os').system('touch {proof}')\ndeviceIterations(__import__('os').getpid())\n".encode()
    yield f'base = "mk2"\nnum_tiles = "$(touch {proof})"\n'.encode() + b"a." * 3000 + b"b = 1\n"
    yield f"!!python/object/apply:os.system ['touch {proof}']\n".encode()
    yield f"#!/bin/sh\ntouch {proof}\n".encode()


def _zipped(attack: bytes) -> bytes:
    """Return what ``torch.save`` would have written, with an attack in the place of the pickle."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as file:
        file.writestr("archive/data.pkl", attack)
        file.writestr("../../outside", b"x")
    return memory.getvalue()


def mutated(data: bytes, chance: random.Random, attack: bytes) -> bytes:
    """Return a sound file with one to four changes."""
    made = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(made) + 1)
        match chance.randrange(7):
            case 0:
                made[at:] = b""
            case 1:
                made[at : at + 8] = chance.choice((2**63, 2**64 - 1, 2**31, 0)).to_bytes(8, "little")
            case 2:
                made[at:at] = attack
            case 3:
                made[at : at + 64] = chance.randbytes(64)
            case 4:
                made[at:at] = made[: chance.randrange(len(made) + 1)][:4096]
            case 5:
                made[at:at] = chance.choice((b"NaN", b"1e999", b"../../x", b'"' * 9, b"[" * 3000, b"9" * 5000))
            case _:
                if made:
                    made[at % len(made)] ^= 1 << chance.randrange(8)
        made = made or bytearray(b"\0")
    return bytes(made)


# ---------------------------------------------------------------------- reading
class _TooLongError(Exception):
    pass


def _too_long(*_: object) -> None:
    raise _TooLongError


def read_all(folder: Path, count: int, seed: int, *, with_foreign: bool = True) -> dict[str, Any]:
    """Read hostile files; return what came of it.

    Args:
        folder: Where they are written.
        count: How many, or a few less: as many for each reader.
        seed: Of the changes of sound files.
        with_foreign: Whether files of other formats are among them, which are the same for all seeds.
    """
    proof, forbidden = folder / "proof", Counter[str]()
    readers = samples(folder)
    for path, read in readers.values():
        read(path)
    watching: list[bool] = []
    sys.addaudithook(lambda event, _: forbidden.update([event]) if watching and event in FORBIDDEN else None)
    before = _contents(folder)
    _limit_memory()
    signal.signal(signal.SIGALRM, _too_long)
    outcomes, wrong, number = Counter[str](), [], 0
    attack = pickle.dumps(Payload(proof))
    chance = random.Random(seed)
    each = max(count // len(readers), 16)
    same = [*foreign(proof)] if with_foreign else []
    for name, (path, read) in readers.items():
        data = path.read_bytes()
        files = same + [mutated(data, chance, attack) for _ in range(each - len(same))]
        for place, content in enumerate(files):
            hostile = path.with_name(f"hostile{number}{path.suffix}")
            hostile.write_bytes(content)
            number += 1
            watching.append(True)
            outcome = _outcome(read, hostile)
            watching.clear()
            outcomes[outcome.partition(":")[0]] += 1
            if outcome.startswith(("foreign", "too long")):
                wrong.append(f"{name}, file {place}: {outcome}")
            hostile.unlink(missing_ok=True)
    return {
        "files": number, "readers": len(readers), "ran": proof.exists(), "forbidden": dict(forbidden),
        "outcomes": dict(outcomes), "wrong": wrong, "others changed": _contents(folder) != before,
    }


def _contents(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder, but locks and proofs."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"}


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + MORE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _outcome(read: Callable[[Path], object], path: Path) -> str:
    """Return in one word what a reader made of a file, and what is to be told of it."""
    signal.alarm(SECONDS)
    began = time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = read(path)
    except _TooLongError:
        return f"too long: {time.monotonic() - began:.0f} s"
    except (IpuError, poptorch.Error, ConfigFileError, OSError) as error:
        return "refused: " if str(error) else f"foreign: {type(error).__name__} without words"
    except BaseException as error:
        told = [str(error), *getattr(error, "__notes__", ())]
        ours = bool(str(error)) and any(path.name in text for text in told)
        ours = ours and isinstance(error, (AssertionError, ValueError, TypeError, AttributeError))
        return "refused: " if ours else f"foreign: {type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    return "left out: " if value is None else "read: "


if __name__ == "__main__":
    os.environ["TORCHIPU_CACHE"] = "0"
    folder, count, seed, *words = sys.argv[1:]
    print(json.dumps(read_all(Path(folder), int(count), int(seed), with_foreign="changed" not in words)))
