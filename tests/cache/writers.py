"""Processes that write entries and are killed while they do: ``python -m tests.cache.writers --kills 1000``.

Each round forks two writers, while this process reads, and kills both at a random moment. What a writer has said to be
written has to be there, and whatever is there has to be whole. With ``--naive`` writers open the file itself.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch

from torchipu.cache.store import Store
from torchipu.stored import tensor_file

NAMES = 6
NUM_VALUES = 30_000


def payload(name: str) -> dict[str, torch.Tensor]:
    """Return what belongs into an entry: float32 ``[30000]`` that its name decides."""
    seed = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)
    return {"values": torch.arange(NUM_VALUES, dtype=torch.float32) + seed}


def write_naively(store: Store, name: str) -> None:
    """Write an entry in its own place, as nobody should."""
    temporary = store.folder / "whole"
    tensor_file.write(temporary, payload(name), {"kind": "torchipu cached capture", "layout": "1", "name": name})
    data = temporary.read_bytes()
    with store._path(name).open("wb", buffering=0) as file:
        for at in range(0, len(data), 8192):
            file.write(data[at : at + 8192])


def fork_writer(store: Store, seed: int, is_naive: bool) -> tuple[int, int]:
    """Return the number of a process that writes entries for ever, and the pipe on which it names those written."""
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    chance = random.Random(seed)
    while True:
        name = f"entry{chance.randrange(NAMES)}"
        if is_naive:
            write_naively(store, name)
        elif not store.write(name, payload(name), {"what": "a test"}):
            os._exit(1)
        os.write(writing, f"{name}\n".encode())


def is_whole(store: Store, name: str) -> bool:
    """Whether an entry can be read and holds what belongs there; True where there is none."""
    try:
        tensors, _ = tensor_file.read(store._path(name))
    except FileNotFoundError:
        return True
    except ValueError:
        return False
    return torch.equal(tensors["values"], payload(name)["values"])


def rounds(kills: int, seed: int, *, is_naive: bool = False, until_caught: bool = False) -> dict[str, int]:
    """Kill writers, and return how many kills, reads, corrupt reads, and entries that were written and are lost.

    Args:
        kills: How often.
        seed: Of the moments.
        is_naive: Whether writers open the file itself.
        until_caught: Whether something corrupt is the end.
    """
    chance = random.Random(seed)
    found = {"kills": 0, "reads": 0, "corrupt": 0, "lost": 0, "committed": 0}
    for _ in range(kills):
        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder), 1 << 40)
            writers = [fork_writer(store, chance.randrange(1 << 30), is_naive) for _ in range(2)]
            until = time.monotonic() + chance.uniform(0.001, 0.03)
            while time.monotonic() < until:
                found["reads"] += 1
                found["corrupt"] += not is_whole(store, f"entry{chance.randrange(NAMES)}")
            told = b""
            for process, pipe in writers:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
                with os.fdopen(pipe, "rb") as file:
                    told += file.read()
            found["kills"] += 1
            committed = set(told.decode().split("\n")[:-1])
            found["committed"] += len(committed)
            for number in range(NAMES):
                name = f"entry{number}"
                found["reads"] += 1
                found["corrupt"] += not is_whole(store, name)
                found["lost"] += name in committed and not store._path(name).exists()
        if until_caught and found["corrupt"]:
            break
    return found


def main() -> int:
    """Print what came of it as JSON; 1 where something was corrupt or lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--naive", action="store_true")
    parser.add_argument("--until-caught", action="store_true", help="end as soon as something is corrupt")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    found = rounds(flags.kills, flags.seed, is_naive=flags.naive, until_caught=flags.until_caught)
    print(json.dumps(found))
    return 1 if found["corrupt"] or found["lost"] else 0


if __name__ == "__main__":
    sys.exit(main())
