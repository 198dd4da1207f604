"""Programs that were seen to compile for the device, and to fit: lowering them once more would tell nothing new.

An entry says no more than that. Of a program that does not compile, or does not fit, there is none: it is compiled
again, and fails in the same words.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

from torchipu.cache.described import Describer, OpaqueError
from torchipu.cache.operators import refuse_foreign_operators
from torchipu.cache.store import Store
from torchipu.cache.versions import surroundings
from torchipu.ir.graph import Graph, Op, Tensor, walk_ops
from torchipu.ir.serial import plain
from torchipu.options import Options
from torchipu.target import Target

logger = logging.getLogger("torchipu.cache")

SOURCES = ("device", "_kernels/table", "ir", "ops", "optable", "fp8", "options", "target", "compiler.py")
"""Our own folders on which a device program depends, once its graph has gone through all graph passes."""
OF_THE_HOST = ("seed", "host_threads", "process_group", "pipeline_group", "dump", "verify", "executor")
"""Options that no device program depends on."""
PREFIX = "fits-"
LEAST_OPS = 16
"""Smaller graphs are lowered in less time than it takes to write an entry."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a program is known to compile, and to fit.

    Attributes:
        store: Where that is kept.
        name: Of the entry.
        what: The program, in words.
    """

    store: Store
    name: str
    what: str

    @property
    def is_known(self) -> bool:
        """Whether it was found before, by this process or another."""
        return self.store.read(self.name) is not None

    def note(self) -> None:
        """Remember that it was found now."""
        self.store.write(self.name, {}, {"what": self.what}, is_told=False)


def verdict_on(
    graph: Graph, options: Options, target: Target, micro_batches: int, instances: int,
) -> Verdict | None:
    """Return what is known of a program; None where none is kept: without a cache, or of what it does not tell.

    Args:
        graph: After all graph passes.
        options: Of the compilation.
        target: The machine.
        micro_batches: As of `torchipu.compiler.compile_graph`.
        instances: As there.
    """
    store = None if sum(1 for _ in walk_ops(graph.ops)) < LEAST_OPS else Store.usable()
    if store is None:
        return None
    try:
        refuse_foreign_operators(graph)
        parts = (surroundings(SOURCES), target, micro_batches, instances, _of_options(options))
        digest = hashlib.sha256(repr(parts).encode("utf-8", "backslashreplace"))
        for text in _told(graph, _Numbers()):
            digest.update(text.encode("utf-8", "backslashreplace"))
    except (OpaqueError, TypeError) as reason:
        logger.debug("whether %s fits is not cached: %s", graph.name, reason)
        return None
    return Verdict(store, f"{PREFIX}{digest.hexdigest()}", f"{graph.name} fits, {len(graph.ops)} ops")


def _of_options(options: Options) -> str:
    """Return the options that a device program depends on.

    Raises:
        OpaqueError: One of them cannot be told from another.
    """
    names = (field.name for field in fields(options) if field.name not in OF_THE_HOST)
    return Describer().deep({name: getattr(options, name) for name in names})


class _Numbers:
    """Numbers of tensors by which a graph is told; each is described where it first occurs."""

    def __init__(self) -> None:
        self._known: dict[Tensor, str] = {}

    def of(self, tensor: Tensor) -> str:
        """Return the number of a tensor, at first with all that there is to it."""
        known = self._known.get(tensor)
        if known is not None:
            return known
        number = self._known[tensor] = f"#{len(self._known)}"
        return f"{number}={tensor.name!r}{tensor.shape}{tensor.dtype.name} {tensor.role.name}"


def _told(graph: Graph, numbers: _Numbers) -> Iterator[str]:
    """Yield what a graph says, but for its name and the lines of the user's, which stand in texts alone.

    Raises:
        TypeError: An attribute is no data.
    """
    number = numbers.of
    yield f"graph {list(map(number, graph.inputs))}"
    for op in graph.ops:
        yield _op_told(op, number)
        for body in op.bodies:
            yield from _told(body, numbers)
    yield f"{list(map(number, graph.outputs))} {[(number(state), number(value)) for state, value in graph.updates]}"


def _op_told(op: Op, number: Callable[[Tensor], str]) -> str:
    inputs, outputs = list(map(number, op.inputs)), list(map(number, op.outputs))
    attrs = {name: plain(value) for name, value in op.attrs.items()}
    return (
        f"{op.kind} {op.target} {op.operands} {inputs} {outputs} {attrs} {op.leg.name} {op.block} {op.placement} "
        f"{len(op.bodies)}"
    )
