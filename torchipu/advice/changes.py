"""A change of a program: of options, of blocks, or of the micro-batch, with the words in which it is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torchipu.errors import OptionsError
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.modules import with_blocks
from torchipu.ir.types import DType, Leg, Role
from torchipu.options import Options

Again = Callable[[Options, int | None], Graph]
"""Is given options and the samples of a micro-batch, None for as many as before; returns the graph that they make."""

IN_THE_GRAPH = frozenset({"gradient_accumulation", "accumulator_type", "first_moment_type", "second_moment_type"})
"""Options that ops outside the model depend on: another graph is needed."""
HALVED = (Role.WEIGHT, Role.INPUT, Role.ACTIVATION, Role.GRADIENT, Role.ACCUMULATOR, Role.OPTIMISER_STATE)


@dataclass(frozen=True, slots=True)
class Change:
    """What is done otherwise.

    Attributes:
        words: What it is.
        option: What to set, as it is written.
        settings: Values by option.
        samples: Of a micro-batch; None for as many as before.
        blocks: Name and IPU of a block by the paths of modules that it then begins at.
        moved: Names of first results of forward ops that go into the last of these blocks too.
        is_half: Whether floats become halves, as by ``model.half()``.
        flags: Of ``torchipu estimate``, which predicts it for a script; empty where none does.
    """

    words: str
    option: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    samples: int | None = None
    blocks: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    moved: frozenset[str] = frozenset()
    is_half: bool = False
    flags: str = ""

    @property
    def is_anew(self) -> bool:
        """Whether the model has to be captured again."""
        return self.samples is not None

    def joined(self, other: Change) -> Change | None:
        """Return both changes as one; None where they set the same.

        Args:
            other: Another change.
        """
        clash = set(self.settings) & set(other.settings) or (self.blocks and other.blocks)
        if clash or (self.is_anew and other.is_anew):
            return None
        return Change(
            f"{self.words}; {other.words}", f"{self.option}, {other.option}", {**self.settings, **other.settings},
            self.samples or other.samples, self.blocks or other.blocks, self.moved or other.moved,
            self.is_half or other.is_half,
        )

    def options(self, given: Options) -> Options:
        """Return the options with the change.

        Args:
            given: Those of the program.

        Raises:
            OptionsError: They do not go together.
        """
        return replace(given, allow_out_of_memory=True, verify=False, dump=None, **self.settings)

    def graph(self, captured: Graph, options: Options, before: Options, again: Again | None) -> Graph:
        """Return the graph with the change.

        Args:
            captured: The graph without it.
            options: With the change.
            before: Without it.
            again: Captures the model under other options; None where nothing can.

        Raises:
            OptionsError: The change needs another graph, and nothing makes it.
        """
        graph = captured
        if self.is_anew or self._needs_another(before, options):
            if again is None:
                raise OptionsError(
                    f"{self.words}: the program is compiled already", option=self.option,
                    remedy="use torchipu.TrainStep or torchipu.InferenceStep, which capture the model again",
                )
            graph = again(options, self.samples)
        if self.blocks:
            graph = with_blocks(graph, self.blocks)
            last = list(self.blocks.values())[-1]
            graph = replace(graph, ops=tuple(
                replace(op, block=last) if op.outputs and op.outputs[0].name in self.moved else op for op in graph.ops
            ))
        return in_half(graph) if self.is_half else graph

    def _needs_another(self, before: Options, options: Options) -> bool:
        changed = {name for name in IN_THE_GRAPH if getattr(before, name) != getattr(options, name)}
        # From two micro-batches on only the factor on gradients is another, which no cycle depends on.
        if before.gradient_accumulation > 1 and options.gradient_accumulation > 1:
            changed.discard("gradient_accumulation")
        return bool(changed)


def in_half(graph: Graph) -> Graph:
    """Return a graph whose floats are halves, as it would be captured from ``model.half()``.

    Hyper-parameters and constants stay floats.

    Args:
        graph: As captured.
    """
    halves: dict[Tensor, Tensor] = {}

    def half(tensor: Tensor) -> Tensor:
        if tensor.dtype is not DType.FLOAT or tensor.role not in HALVED:
            return tensor
        if tensor not in halves:
            halves[tensor] = replace(tensor, dtype=DType.HALF)
        return halves[tensor]

    def halved(op: Op) -> Op:
        bodies = tuple(
            replace(
                body, inputs=tuple(map(half, body.inputs)), outputs=tuple(map(half, body.outputs)),
                ops=tuple(map(halved, body.ops)),
            ) for body in op.bodies
        )
        return replace(op, inputs=tuple(map(half, op.inputs)), outputs=tuple(map(half, op.outputs)), bodies=bodies)

    return replace(
        graph, inputs=tuple(map(half, graph.inputs)), outputs=tuple(map(half, graph.outputs)),
        ops=tuple(map(halved, graph.ops)), updates=tuple((half(state), half(value)) for state, value in graph.updates),
    )


def has_float_weights(graph: Graph) -> bool:
    """Whether any weight is a float."""
    return any(tensor.role is Role.WEIGHT and tensor.dtype is DType.FLOAT for tensor in graph.inputs)


def is_training(graph: Graph) -> bool:
    """Whether a graph has a backward."""
    return graph.has_leg(Leg.BACKWARD)
