"""A graph in symbols: imported and taken through the graph passes once, then numbers for each set of sizes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchipu import artifacts
from torchipu.backend.counts import COUNTS
from torchipu.backend.expected import held_as_pairs
from torchipu.backend.fitting import AHEAD, Checked, larger, looked_ahead
from torchipu.backend.program import PlansOfResults, Program, Recipe, matters_at_border
from torchipu.backend.results import Piece, Shown, handed_back, kept_apart
from torchipu.capture.complex_numbers import complex_placeholders, with_complex_results, without_complex
from torchipu.capture.control import is_control
from torchipu.capture.fx_import import Imported
from torchipu.capture.strides import READERS, WRITERS
from torchipu.capture.symbols import NoFormula, Symbols
from torchipu.capture.written_state import WRAPPER
from torchipu.compiler import dump_directory, is_verifying, place_graph, try_graph
from torchipu.ir.graph import Graph
from torchipu.ir.guards import Guards, Numbers
from torchipu.ir.settling import Settling
from torchipu.ir.sizes import settled
from torchipu.ir.types import Role
from torchipu.ir.verify import verify_graph
from torchipu.report.recorder import is_heard

MOST_CHECKED = 8
"""Sizes for which a device program is known to fit, by which others are judged."""
MOST_PLACED = 16
"""Outcomes of the graph passes that are kept: one for all sizes, unless a pass has decided something by a size."""


@dataclass(frozen=True, slots=True)
class Placed:
    """What import and graph passes have made of the graph.

    Attributes:
        guards: What they have decided by sizes.
        imported: The graph as imported.
        graph: After all passes.
        shown: How torch expects each result to lie.
        border: What a program looks at of the graph as imported.
        num_bytes: Of each of its tensors on the device.
        plans: Host plans for all sizes that decide alike.
    """

    guards: Guards
    imported: Imported
    graph: Graph
    shown: Sequence[Shown | None]
    border: Graph
    num_bytes: Sequence[Any]
    plans: PlansOfResults


class SymbolicGraph:
    """A graph of symbolic sizes that makes programs for those of a call.

    Args:
        gm: ATen graph with symbolic sizes.
        recipe: How a graph becomes a program.
        offsets: Places of placeholders whose offset in their memory counts.

    Raises:
        NoFormula: It holds something that has to be captured for each set of sizes; so may `program`.
    """

    def __init__(self, gm: GraphModule, recipe: Recipe, offsets: frozenset[int]) -> None:
        real = _of_real_numbers(gm)
        _refuse_what_is_captured_by_size(real)
        self.recipe, self.complexes = recipe, complex_placeholders(gm)
        # Between our forward and backward lies what was saved as the forward made it, and not as torch would have.
        self.saved = frozenset(place for place, what in enumerate(recipe.given) if what.role is Role.ACTIVATION)
        self.offsets = offsets - self.saved
        # The import changes nodes.
        self.module = GraphModule(gm, copy.deepcopy(gm.graph)) if real is gm else real
        given = [node for node in self.module.graph.nodes if node.op == "placeholder"]
        self.symbols = Symbols(given)
        values = [node.meta.get("val") for node in given]
        self.expected = [
            Shown.of(value, self.symbols.read) if isinstance(value, torch.Tensor) else None for value in values
        ]
        self.kinds = handed_back(self.module, is_dynamic=True)
        self.apart = kept_apart(gm, recipe.num_results)
        self.pieces = recipe.pieces(gm)
        self.placed: list[Placed] = []
        self.checked: list[Checked] = []

    def program(self, arguments: Sequence[Any]) -> Program | None:
        """Return the program for the sizes of these arguments; None where they do not lie as the capture had them."""
        with self.symbols.sizes.lock:
            given = self.symbols.of_call(arguments)
            numbers = self.symbols.sizes.numbers(given)
            if not all(self._lies_as_captured(place, value, numbers) for place, value in enumerate(arguments)):
                return None
            placed = next((one for one in self.placed if one.guards.hold(numbers)), None)
            if placed is None:
                placed = self._placed(given)
                self.placed[:] = [placed, *self.placed[: MOST_PLACED - 1]]
                numbers = self.symbols.sizes.numbers(given)
            COUNTS.programs += 1
            return self._settled(placed, Settling(numbers), given)

    def _lies_as_captured(self, place: int, value: Any, numbers: Numbers) -> bool:
        """Whether an argument has the sizes of the capture, and the strides that results may depend on."""
        expected = self.expected[place]
        if expected is None or value is None:  # torch hands None for the token of effects
            return True
        lies = expected.settled(numbers)
        if value.is_complex():
            if value.is_conj():
                return False
            value = torch.view_as_real(value)
        if place in self.saved:
            return bool(value.shape == lies.shape)
        is_there = place not in self.offsets or lies.offset == value.storage_offset()
        return is_there and lies.is_that_of(value)

    def _placed(self, given: Sequence[int]) -> Placed:
        """Import the graph and run the graph passes; what they decide by sizes, they decide by these."""
        sizes = self.symbols.sizes
        sizes.set(given)
        with sizes.watched() as guards:
            imported = with_complex_results(self.recipe.imported(self.module, self.symbols), self.module)
            shown = [None if fake is None else Shown.of(fake, self.symbols.read) for fake in imported.result_values]
            graph = place_graph(imported.graph, self.recipe.options, self.recipe.target)
            tensors = (*graph.inputs, *(tensor for op in graph.ops for tensor in op.outputs))
            num_bytes = [tensor.device_bytes for tensor in tensors]
        COUNTS.passes += 1
        border = replace(imported.graph, ops=tuple(filter(matters_at_border, imported.graph.ops)))
        return Placed(guards, imported, graph, shown, border, num_bytes, PlansOfResults(graph, sizes))

    def _settled(self, placed: Placed, settling: Settling, given: Sequence[Any]) -> Program:
        imported, graph = placed.imported, settling.border(placed.graph)
        if is_verifying(self.recipe.options):
            verify_graph(settling.graph(placed.graph), "sizes")
        self._check_device(placed, settling, given)
        captured = settling.graph(placed.border)
        plain = replace(
            imported, graph=captured,
            placeholders=tuple(None if one is None else settling.tensor(one) for one in imported.placeholders),
            results=tuple(map(settling.value, imported.results)),
            constants={settling.tensor(tensor): value for tensor, value in imported.constants.items()},
            awaited=frozenset(map(settling.tensor, imported.awaited)),
        )
        shown = [None if one is None else one.settled(settling.numbers) for one in placed.shown]
        pieces = {}
        for place, argument in self.pieces.items():
            base, lies = self.expected[argument], shown[place]
            if base is not None and lies is not None:
                pieces[place] = Piece(argument, base.settled(settling.numbers), lies)
        return Program(
            plain, graph, self.recipe, shown, self.kinds, self.apart, pieces=pieces,
            sized=(placed.plans, given, settling), complexes=held_as_pairs(plain, self.complexes),
        )

    def _check_device(self, placed: Placed, settling: Settling, given: Sequence[Any]) -> None:
        """Compile the device program where somebody wants to know of it, or it might not fit.

        Raises:
            OutOfTileMemoryError: The program does not fit.
        """
        options, graph = self.recipe.options, placed.imported.graph
        num_bytes = settled(placed.num_bytes, settling.numbers)
        is_wanted = is_heard() or artifacts.is_wanted() or dump_directory(options) is not None
        if not is_wanted and any(checked.covers(num_bytes) for checked in self.checked):
            return
        found = [Checked.of(self.recipe.compiled(settling.graph(graph)), num_bytes)]
        if not self.checked:
            found.append(self._looked_ahead(placed, given))
        self.checked[:] = [*filter(None, found), *self.checked][:MOST_CHECKED]

    def _looked_ahead(self, placed: Placed, given: Sequence[Any]) -> Checked | None:
        """Compile the device program for larger sizes, the largest for which it fits; None where there are none."""
        options, target = self.recipe.options, self.recipe.target

        def needed(growth: int) -> Checked | None:
            numbers = self.symbols.sizes.numbers(larger(given, self.symbols.most, growth))
            if not placed.guards.hold(numbers):
                return None
            ahead = Settling(numbers)
            return looked_ahead(
                lambda: try_graph(ahead.graph(placed.imported.graph), options, target),
                settled(placed.num_bytes, numbers),
            )

        return next(filter(None, map(needed, AHEAD)), None)


def _of_real_numbers(gm: GraphModule) -> GraphModule:
    """Return a graph with pairs of floats for complex numbers; that one, if it has none.

    Raises:
        NoFormula: Something on the way depends on a size, as a Fourier transform on its length.
    """
    try:
        return without_complex(gm)
    except Exception as error:  # a capture with the sizes known succeeds, or tells what is wrong
        raise NoFormula(f"complex numbers: {type(error).__name__}: {error}") from error


def _refuse_what_is_captured_by_size(gm: GraphModule) -> None:
    """Raise NoFormula for what depends on sizes or strides in ways of its own."""
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        values = value if isinstance(value, (list, tuple)) else [value]
        if any(isinstance(one, torch.Tensor) and one.is_complex() for one in values):  # torch before 2.10
            raise NoFormula(f"{node.name} is complex")
        is_read_by_strides = str(node.target) in READERS | WRITERS
        if is_control(node.target) or node.target is WRAPPER or is_read_by_strides or _is_module(gm, node):
            raise NoFormula(f"{node.name} is {node.target}")


def _is_module(gm: GraphModule, node: Node) -> bool:
    return node.op == "get_attr" and isinstance(getattr(gm, str(node.target), None), GraphModule)
