"""What a run that stops halfway is undone from: states that it had written by then, and torch's generator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch

from torchipu.host.copying import RepeatedCopy
from torchipu.ir.graph import Graph, Tensor
from torchipu.ir.types import Leg, Role


def written_before_the_end(graph: Graph, iterations: int) -> list[Tensor]:
    """Return the states that a run may have written when it stops halfway.

    Those of an update are written last of all, unless another iteration follows: nothing in an update asks for a value.

    Args:
        graph: What runs.
        iterations: Times that all of it runs.
    """
    of_updates = {result for op in graph.ops if op.leg is Leg.UPDATE for result in op.outputs}
    return [
        state for state, value in graph.updates
        if state.role is not Role.ACCUMULATOR and value is not state and (iterations > 1 or value not in of_updates)
    ]


class KeptStates:
    """A second memory for states, from which they are brought back.

    Attributes:
        are_back: Whether they were, when they were held last.

    Args:
        views: Where they lie.
    """

    def __init__(self, views: Sequence[torch.Tensor]) -> None:
        with torch.inference_mode(False):
            kept = [torch.empty_like(view, memory_format=torch.contiguous_format) for view in views]
        self._keep, self._bring_back = RepeatedCopy(kept, views, is_private=True), RepeatedCopy(views, kept)
        self.are_back = False

    @contextlib.contextmanager
    def held(self, threads: int, has_stepped: Callable[[], bool]) -> Iterator[None]:
        """Let states be as they were before where what runs within fails or is interrupted.

        Args:
            threads: Threads that may copy.
            has_stepped: Whether all has run, before there was an interrupt: states stay as they are.
        """
        self.are_back = False
        self._keep.copy(threads)
        try:
            yield
        except BaseException:
            if not has_stepped():
                self._bring_back.copy(threads)
                self.are_back = True
            raise


@contextlib.contextmanager
def undrawn_where_it_fails() -> Iterator[None]:
    """Let torch's default generator be as it was before where what runs within fails or is interrupted."""
    before = torch.get_rng_state()
    try:
        yield
    except BaseException:
        torch.set_rng_state(before)
        raise
