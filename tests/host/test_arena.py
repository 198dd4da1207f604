"""The arena that programs share: as large as the largest needs, one program's at a time, gone with the last."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from torch import nn

from torchipu.host import arena
from torchipu.host.arena import shared_arena
from torchipu.host.shared import Shared


def test_programs_share_memory_that_grows_with_the_largest() -> None:
    small = shared_arena(1000)
    large = shared_arena(100_000)
    assert small is large
    first = small.borrow(1000)
    other = large.borrow(100_000)
    assert first.data_ptr() % 64 == other.data_ptr() % 64 == 0
    assert abs(first.data_ptr() - other.data_ptr()) >= 1000  # borrowed already: memory of its own
    large.give_back(other)
    small.give_back(first)
    assert large.borrow(100_000) is first
    large.give_back(first)


def test_an_arena_that_has_grown_has_room_for_somewhat_larger_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    plain = arena.aligned_bytes
    monkeypatch.setattr(arena, "aligned_bytes", lambda num_bytes: made.append(num_bytes) or plain(num_bytes))
    shared = arena.Arena()
    for num_bytes in range(100_000, 200_000, 1000):  # a length more each time
        shared.grow(num_bytes)
        memory = shared.borrow(num_bytes)
        assert len(memory) >= num_bytes
        shared.give_back(memory)
    # The first, which is often the only one, has what it needs; then a quarter more than is asked for.
    assert made[:3] == [0, 100_000, 101_000 + 101_000 // 4]
    assert len(made) == 6


@pytest.mark.skipif(arena.CHECKED, reason="memory that kernels of the checked flavour close is never reserved")
def test_a_large_arena_that_has_grown_keeps_its_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = arena.Arena()
    shared.grow(arena.MAPPED_BYTES)
    assert len(shared.memory) < 2 * arena.MAPPED_BYTES  # the first, which is often the only one
    shared.grow(2 * arena.MAPPED_BYTES)
    memory = shared.memory
    assert memory.data_ptr() % 64 == 0
    assert not memory.any()
    memory[:8] = 7
    for times in range(3, 2 * arena.RESERVED + 1):
        shared.grow(times * arena.MAPPED_BYTES)
        assert shared.memory is memory
    assert len(memory) == 2 * arena.RESERVED * arena.MAPPED_BYTES
    monkeypatch.setattr(arena.mmap, "mmap", _refused)
    needed = 2 * arena.RESERVED * arena.MAPPED_BYTES + 1
    shared.grow(needed)
    assert needed <= len(shared.memory) < 2 * needed


def _refused(*_: object, **__: object) -> None:
    raise OSError("no memory that is not there")


def test_a_program_of_the_same_size_takes_the_memory_that_is_there() -> None:
    shared = arena.Arena()
    kept = []
    for _ in range(2):
        shared.grow(1000)
        kept.append(shared.borrow(1000))
        shared.give_back(kept[-1])
    assert kept[0] is kept[1]


def test_the_arena_goes_with_the_last_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "_SHARED", Shared(arena.Arena))  # programs of other tests may hold theirs
    holder = shared_arena(64)
    seen = weakref.ref(holder)
    assert shared_arena(64) is holder
    del holder
    gc.collect()
    assert seen() is None


def test_programs_of_two_threads_keep_their_values_apart() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64), nn.Tanh()) for _ in range(2)]
    x = torch.randn(32, 64)
    with torch.no_grad():
        compiled = [torch.compile(model, backend="ipu", options={"host_threads": 1}) for model in models]
        expected = [call(x) for call in compiled]
        wrong: list[int] = []

        def repeat(number: int) -> None:
            with torch.no_grad():
                for _ in range(200):
                    if not torch.equal(compiled[number](x), expected[number]):
                        wrong.append(number)

        threads = [threading.Thread(target=repeat, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
