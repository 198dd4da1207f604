"""Kernels that move bytes between tiles, and kernels that run vertex by vertex."""

from __future__ import annotations

import numpy as np
import pytest

from torchipu._kernels.abi import call_kernel, run_vertices
from torchipu._kernels.table.tile import TILE_NARROW, TILE_WIDEN, TileWidenInts
from torchipu._kernels.table.update import INCREMENT
from torchipu.device.tiles.memory import NOBODY, TileMemory


def longs(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


@pytest.fixture
def memory() -> TileMemory:
    memory = TileMemory(4, 256)
    memory.bytes[:] = np.arange(1024, dtype=np.uint8)
    return memory


def test_elements_move_with_their_owner(memory: TileMemory) -> None:
    memory.own(longs(256), longs(16), 7)
    assert memory.move(longs(512, 520), 9, memory, longs(256, 264), 7, 4) == -1
    np.testing.assert_array_equal(memory.bytes[[512, 515, 520]], memory.bytes[[256, 259, 264]])
    assert memory.owners[512:526].tolist() == [9] * 4 + [NOBODY] * 4 + [9] * 4 + [NOBODY] * 2


def test_what_is_not_the_owner_s_stops_a_move(memory: TileMemory) -> None:
    memory.own(longs(0), longs(7), 7)  # the last byte of the second element is nobody's
    assert memory.move(longs(512, 516, 520), 9, memory, longs(0, 4, 8), 7, 4) == 1
    assert memory.owners[516] == NOBODY


def test_padding_comes_from_nowhere(memory: TileMemory) -> None:
    bits = int.from_bytes(np.float32(-np.inf).tobytes(), "little")
    assert memory.move(longs(128), 3, memory, longs(-1), 7, 4, bits) == -1
    assert memory.bytes[128:132].view(np.float32)[0] == -np.inf
    assert memory.stranger(longs(128), longs(4), 3) == -1


def test_a_stranger_is_found_by_its_range(memory: TileMemory) -> None:
    memory.own(longs(0, 256), longs(8, 8), 5)
    assert memory.stranger(longs(0, 256), longs(8, 8), 5) == -1
    assert memory.stranger(longs(0, 256), longs(8, 9), 5) == 1
    assert memory.stranger(longs(0, 900), longs(8, 0), 5) == -1, "a range of no bytes has no stranger"


def test_floats_become_doubles_and_back() -> None:
    given, wide, back = np.array([0.1, -3, np.inf], np.float32), np.zeros(3), np.zeros(3, np.float32)
    call_kernel(TILE_WIDEN, [wide.ctypes.data, given.ctypes.data], TileWidenInts(3))
    call_kernel(TILE_NARROW, [back.ctypes.data, wide.ctypes.data], TileWidenInts(3))
    np.testing.assert_array_equal(wide, given.astype(np.float64))
    np.testing.assert_array_equal(back, given)


def test_each_vertex_runs_all_calls_on_its_own_memory() -> None:
    counts = np.array([1, 10, 100], np.float32)
    places = counts.ctypes.data + 4 * np.array([[0, 0], [2, 2]], np.int64)
    run_vertices([(INCREMENT, 1, (), (), 1, 0)] * 2, places)
    np.testing.assert_array_equal(counts, [3, 10, 102])


def test_places_and_arguments_must_be_as_many() -> None:
    with pytest.raises(ValueError, match="the calls take 1 arguments, and 2 were given"):
        run_vertices([(INCREMENT, 1, (), (), 1, 0)], np.zeros((1, 2), np.int64))
    with pytest.raises(ValueError, match="increment takes the operands"):
        run_vertices([(INCREMENT, 2, (), (), 1, 0)], np.zeros((1, 2), np.int64))


@pytest.mark.parametrize(("places", "named"), [
    (np.zeros((1, 1), np.int32), "got 2 dimensions of type 'i'"),
    (np.zeros((1, 1), np.float64), "got 2 dimensions of type 'd'"),
    (np.zeros(1, np.int64), "got 1 dimensions of type 'l'"),
    (np.zeros((2, 2), np.int64)[:, ::2], "not C-contiguous"),
], ids=["of 32 bits", "of floats", "of one dimension", "with gaps"])
def test_places_are_whole_numbers_of_64_bits_in_rows(places: np.ndarray, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        run_vertices([(INCREMENT, 1, (), (), 1, 0)], places)
