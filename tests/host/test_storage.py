"""Allocations that are alive together never share bytes, and the arena is no larger than it must be."""

from hypothesis import given
from hypothesis import strategies as st

from torchipu.host.storage import ALIGNMENT_BYTES, Allocation, Place, aligned, place_in_arena


@st.composite
def allocations(draw: st.DrawFn) -> list[Allocation]:
    found = []
    for number in range(draw(st.integers(0, 25))):
        first = draw(st.integers(0, 20))
        last = first + draw(st.integers(0, 8))
        found.append(Allocation(number, draw(st.integers(1, 1000)), Place.ARENA, first=first, last=last))
    return found


def are_alive_together(a: Allocation, b: Allocation) -> bool:
    return a.first <= b.last and b.first <= a.last


@given(allocations())
def test_allocations_alive_together_never_overlap(given_allocations: list[Allocation]) -> None:
    place_in_arena(given_allocations)
    for a in given_allocations:
        for b in given_allocations:
            if a is not b and are_alive_together(a, b):
                assert a.offset_bytes + a.num_bytes <= b.offset_bytes or b.offset_bytes + b.num_bytes <= a.offset_bytes


@given(allocations())
def test_arena_holds_every_allocation_on_a_cache_line_and_is_no_larger_than_their_sum(
    given_allocations: list[Allocation],
) -> None:
    peak = place_in_arena(given_allocations)
    assert all(a.offset_bytes % ALIGNMENT_BYTES == 0 for a in given_allocations)
    assert peak == max((a.offset_bytes + aligned(a.num_bytes) for a in given_allocations), default=0)
    assert peak <= sum(aligned(a.num_bytes) for a in given_allocations)
    for step in range(30):
        assert peak >= sum(aligned(a.num_bytes) for a in given_allocations if a.first <= step <= a.last)


def test_a_chain_of_values_takes_turns_in_two_places() -> None:
    chain = [Allocation(n, 640, Place.ARENA, first=n, last=n + 1) for n in range(10)]
    assert place_in_arena(chain) == 2 * 640


def test_sizes_are_rounded_up_to_cache_lines() -> None:
    assert [aligned(n) for n in (0, 1, 64, 65)] == [0, 64, 64, 128]
