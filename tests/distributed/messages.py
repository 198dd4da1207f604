"""Messages through shared memory; run by ``tests.distributed.forked``."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.distributed.forked import Scenario
from torchipu.distributed.shared_memory import OFF, RING_BYTES, Link, _of_this_process, connect

AT_A_PORT = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}", "OMP_NUM_THREADS": "1"}


def links(rank: int, size: int = 2, seconds: float = 30.0) -> Mapping[int, Link]:
    if not dist.is_initialized():
        dist.init_process_group("gloo", rank=rank, world_size=size)

    def tell(text: str) -> list[str]:
        told = [""] * size
        dist.all_gather_object(told, text)
        return told

    found = connect(rank, size, tell, seconds)
    assert found.is_whole
    return found.by_rank


def numbers(seed: int, count: int) -> torch.Tensor:
    return torch.randint(256, (count,), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def pass_many(rank: int) -> Any:
    """Send messages of all sizes both ways, several rings full, with tags that are expected in another order."""
    link = links(rank)[1 - rank]
    sizes = [0, 1, 15, 16, 17, 4096, RING_BYTES // 3, 5, RING_BYTES - 16, RING_BYTES, 2 * RING_BYTES + 7, 3] * 3
    for number, size in enumerate(sizes):
        link.send(numbers(10 * number + rank, size), number % 4)
    wrong = []
    for tag in (2, 0, 3, 1):  # those of other tags come before
        for number, size in enumerate(sizes):
            if number % 4 == tag:
                room = torch.empty(size, dtype=torch.uint8)
                link.receive(room, tag).wait()
                if not torch.equal(room, numbers(10 * number + 1 - rank, size)):
                    wrong.append(number)
    return wrong


def expect_first(rank: int) -> Any:
    """Expect messages before they come, of which one is on its way already; in threads of their own."""
    link = links(rank)[1 - rank]
    if rank == 0:
        time.sleep(0.3)
        big = numbers(1, RING_BYTES + 100)
        sender = threading.Thread(target=link.send, args=(big, 5))
        sender.start()
        sender.join()
        for tag in (6, 7, 8):
            time.sleep(0.05)
            link.send(torch.full((3,), float(tag)), tag)
        return True
    found: dict[int, Any] = {}

    def take(tag: int) -> None:
        room = torch.empty(3)
        link.receive(room, tag).wait()
        found[tag] = room.tolist()

    threads = [threading.Thread(target=take, args=(tag,)) for tag in (8, 7, 6)]
    for thread in threads:
        thread.start()
    time.sleep(0.6)  # the first part of the large one is taken meanwhile, by who waits for others
    room = torch.empty(RING_BYTES + 100, dtype=torch.uint8)
    link.receive(room, 5).wait()
    for thread in threads:
        thread.join()
    return torch.equal(room, numbers(1, RING_BYTES + 100)) and found == {tag: [float(tag)] * 3 for tag in (6, 7, 8)}


def ring_around(rank: int) -> Any:
    """Three processes that all fill the ring to the next before they read the one from the one before."""
    ways = links(rank, 3)
    count = 3 * RING_BYTES
    ways[(rank + 1) % 3].send(numbers(rank, count), 1)
    room = torch.empty(count, dtype=torch.uint8)
    ways[(rank - 1) % 3].receive(room, 1).wait()
    return torch.equal(room, numbers((rank - 1) % 3, count))


def error_of(call: Any) -> Any:
    begin = time.monotonic()
    try:
        call()
    except RuntimeError as error:
        return str(error), time.monotonic() - begin
    return "none", 0.0


def lose(rank: int) -> Any:
    """Wait for a process that is killed, after it has sent one more message; then send to it until the ring is full."""
    if rank == 1:
        process = os.fork()
        if process == 0:
            _of_this_process()
            if os.fork() == 0:  # a child of its own does not stand for it
                os.closerange(0, 3)
                time.sleep(5)
                os._exit(0)
            links(1)[0].send(torch.ones(2), 1)
            Path("sent").touch()
            time.sleep(30)
            os._exit(0)
        while not Path("sent").exists():
            time.sleep(0.05)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        return None
    link = links(rank)[1]
    while not Path("sent").exists():
        time.sleep(0.05)
    room = torch.empty(2)
    link.receive(room, 1).wait()
    waited = error_of(lambda: link.receive(torch.empty(2), 1).wait())
    return room.tolist(), waited, error_of(lambda: link.send(numbers(0, 2 * RING_BYTES), 1))


def be_silent(rank: int) -> Any:
    link = links(rank, seconds=0.5)[1 - rank]
    if rank == 1:
        dist.barrier()
        return None
    looked: list[int] = []
    found = error_of(lambda: link.receive(torch.empty(2), 1).wait(lambda: looked.append(1)))
    dist.barrier()
    return found, len(looked)


def leave_nothing(rank: int) -> Any:
    links(rank)  # what a process keeps: that it lives
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    ways: Any = links(rank)
    files = sorted(Path("/dev/shm").glob("*torchipu*"))
    during = len(os.listdir("/proc/self/fd"))
    del ways
    gc.collect()
    return [str(file) for file in files], during - before, len(os.listdir("/proc/self/fd")) - before


def switch_off(rank: int) -> Any:
    """One of three has it switched off: the others have a way to each other, and none to it."""
    if rank == 2:
        os.environ[OFF] = "0"
    dist.init_process_group("gloo", rank=rank, world_size=3)

    def tell(text: str) -> list[str]:
        told = [""] * 3
        dist.all_gather_object(told, text)
        return told

    found = connect(rank, 3, tell, 30.0)
    return sorted(found.by_rank), found.is_whole


def differ_in_size(rank: int) -> Any:
    link = links(rank)[1 - rank]
    link.send(torch.ones(4), 1)
    return error_of(lambda: link.receive(torch.empty(3), 1).wait())[0]


SCENARIOS = {
    "many": Scenario(pass_many, (0, 1), AT_A_PORT),
    "expected": Scenario(expect_first, (0, 1), AT_A_PORT),
    "around": Scenario(ring_around, (0, 1, 2), AT_A_PORT),
    "lost": Scenario(lose, (0, 1), AT_A_PORT),
    "silent": Scenario(be_silent, (0, 1), AT_A_PORT),
    "left": Scenario(leave_nothing, (0, 1), AT_A_PORT),
    "off": Scenario(switch_off, (0, 1, 2), AT_A_PORT),
    "sizes": Scenario(differ_in_size, (0, 1), AT_A_PORT),
}
