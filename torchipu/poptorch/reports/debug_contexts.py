"""Where each op of a program comes from, under the names that PopART would give them, for ``debug.cbor``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchipu.ir.graph import Graph
from torchipu.poptorch.reports.anchors import op_names, op_type
from torchipu.report import debug
from torchipu.report.debug import Context
from torchipu.report.facts.gather import Facts

LAYER = "poptorch"


def contexts_of(graph: Graph, facts: Facts, excludes: Sequence[str]) -> Iterator[Context]:
    """Yield name, type, module and the user's line of each op.

    Args:
        graph: The program.
        facts: Its tables; what they hold beside the ops of the graph, such as those within loops, comes last.
        excludes: Lines of files whose path holds one of these are left out.
    """
    left = {one.name: one for one in debug.contexts_of(facts)}
    for name, op in op_names(graph):
        source, result = op.source, op.outputs[0].name if op.outputs else op.kind
        known = left.pop(result, None)
        number = debug.NO_OPERATION if known is None else known.operation
        context = Context(name, op_type(op), LAYER, source.module, number, source.file, source.line, source.code)
        yield _shown(context, excludes)
    for context in left.values():
        yield _shown(context._replace(layer=LAYER), excludes)


def _shown(context: Context, excludes: Sequence[str]) -> Context:
    """Return a context without its line where that is left out."""
    is_shown = bool(context.file) and not any(part in context.file for part in excludes)
    return context if is_shown else context._replace(file="", line=0, code="")
