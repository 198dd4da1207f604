"""A graph whose sizes torch does not know: captured and taken through the graph passes once, planned for each size."""

from __future__ import annotations

import logging
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes

from torchipu import forks
from torchipu.backend.counts import COUNTS
from torchipu.backend.program import Program, Recipe
from torchipu.backend.results import inputs_shown
from torchipu.backend.symbolic import SymbolicGraph
from torchipu.capture.process_wide import capturing
from torchipu.capture.symbols import NoFormula
from torchipu.host.border import as_type
from torchipu.ir.garbage import seldom_collected

_RECOMPILES = torch._logging.getArtifactLogger("torch._dynamo.ipu", "recompiles")  # type: ignore[attr-defined]
"""Beside Dynamo's own reasons to compile again, under ``TORCH_LOGS=recompiles``."""


def placeholders(gm: GraphModule) -> list[Node]:
    """Return the nodes of what a graph is given, in order."""
    return [node for node in gm.graph.nodes if node.op == "placeholder"]


def has_unknown_sizes(gm: GraphModule) -> bool:
    """Whether any input is a number, or has a size that is not fixed."""
    for node in placeholders(gm):
        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return True
        if isinstance(value, torch.Tensor) and any(not isinstance(size, int) for size in value.shape):
            return True
    return False


@contextmanager
def alone() -> Iterator[None]:
    """Run without the modes under which AOT autograd compiles: constants have values, buffers memory.

    No other thread captures meanwhile. A forward has torch's lock already; a backward is compiled when it first runs.
    """
    with capturing(), _disable_current_modes():
        yield

_LOG = logging.getLogger("torchipu.sizes")


class AnySize:
    """A graph of unknown sizes, and the programs of those that it was called with.

    Args:
        gm: ATen graph with symbolic sizes.
        recipe: How a graph becomes a program.
    """

    def __init__(self, gm: GraphModule, recipe: Recipe) -> None:
        self.gm = gm
        self.recipe = recipe
        self.shown = inputs_shown(gm)
        self.programs: OrderedDict[tuple[object, ...], Program] = OrderedDict()
        self.num_bytes: dict[tuple[object, ...], int] = {}
        self.lock = forks.lock()
        self.warned = False
        self.symbolic: SymbolicGraph | None = None
        try:
            with alone():
                self.symbolic = SymbolicGraph(gm, recipe, self.shown)
        except NoFormula as error:
            self._tell_of_captures(error)

    def run(self, arguments: list[Any]) -> list[Any]:
        """Run on a list of arguments, which is emptied."""
        key = tuple([
            (value.shape, value.dtype, value.stride(), value.storage_offset() if place in self.shown else 0)
            if isinstance(value, torch.Tensor) else value for place, value in enumerate(arguments)
        ])
        program = self._kept(key)
        if program is not None:
            return program.run(arguments)
        program = self._planned(key, arguments)
        results = program.run(arguments)
        with self.lock:
            self._make_room(key)  # its memory is known only now
        return results

    def _kept(self, key: tuple[object, ...]) -> Program | None:
        """Return the program for a set of sizes, which becomes the most recent one."""
        with self.lock:
            program = self.programs.get(key)
            if program is not None:
                self.programs.move_to_end(key)
            return program

    def _planned(self, key: tuple[object, ...], arguments: Sequence[Any]) -> Program:
        """Make the program for a set of sizes, unless another thread has done so meanwhile."""
        with alone(), seldom_collected():
            program = self._kept(key)
            if program is None:
                if self.programs:
                    sizes = ", ".join(str(list(one[0])) if isinstance(one, tuple) else str(one) for one in key)
                    _RECOMPILES.debug("Recompiling for the IPU, in a graph of any size, for inputs %s", sizes)
                program = self._from_symbols(arguments)
                if program is None:
                    program = self.recipe.program(specialise(self.gm, arguments), is_dynamic=True)
            with self.lock:
                self.programs.setdefault(key, program)
            return program

    def _from_symbols(self, arguments: Sequence[Any]) -> Program | None:
        """Return the program for these arguments; None where the graph has to be captured with their sizes."""
        if self.symbolic is None:
            return None
        try:
            return self.symbolic.program(arguments)
        except (NoFormula, TypeError) as error:  # the latter where something takes nothing but an int
            self.symbolic = None
            self._tell_of_captures(error)
            return None

    def _tell_of_captures(self, error: Exception) -> None:
        """Tell torch's logs why each set of sizes is captured by itself; where a defect may be why, with its place."""
        is_known = isinstance(error, NoFormula)
        _LOG.info(
            "%s: each set of sizes is captured by itself: %s: %s", self.recipe.name, type(error).__name__, error,
            exc_info=None if is_known else error,
        )

    def _make_room(self, key: tuple[object, ...]) -> None:
        """Drop the least recent programs until the others keep within the bound; the most recent one stays.

        Args:
            key: Of a program that has run for the first time.
        """
        bound = self.recipe.options.plan_cache_bytes
        if key in self.programs:
            self.num_bytes[key] = self.programs[key].num_bytes
        while sum(self.num_bytes.values()) > bound and len(self.programs) > 1:
            dropped, _ = self.programs.popitem(last=False)
            self.num_bytes.pop(dropped, None)
            COUNTS.evicted += 1
            if not self.warned:
                self.warned = True
                warnings.warn(
                    f"torchipu: plans for {len(self.programs) + 1} sets of sizes take more than plan_cache_bytes="
                    f"{bound}; the least recent are made anew when they return (pad inputs to fewer sizes; in "
                    'generate(), cache_implementation="static" keeps one size; or raise plan_cache_bytes)',
                    stacklevel=2,
                )


def specialise(gm: GraphModule, arguments: Sequence[Any]) -> GraphModule:
    """Return a graph with the sizes and numbers of these arguments fixed, source lines and blocks kept.

    Args:
        gm: ATen graph with symbolic sizes.
        arguments: Values of its placeholders.
    """
    mode = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        fakes = [
            _stand_in(mode, value, node.meta.get("val"))
            for value, node in zip(arguments, placeholders(gm), strict=True)
        ]

    def interpret(*values: Any) -> Any:
        with torch.fx.traceback.preserve_node_meta():
            return torch.fx.Interpreter(gm).run(*values)

    with torch.no_grad(), mode:
        fixed: GraphModule = make_fx(interpret, tracing_mode="real")(*fakes)
    fixed.graph.eliminate_dead_code()
    return fixed


def _stand_in(mode: torch._subclasses.FakeTensorMode, value: Any, known: Any) -> Any:
    """Return a fake tensor for an argument: the graph knows the type of what a forward saved as the device holds it."""
    if not isinstance(value, torch.Tensor):
        return value
    fake = mode.from_tensor(value, static_shapes=True)
    return as_type(fake, known.dtype) if isinstance(known, torch.Tensor) else fake
