"""Where each op of a program comes from, under the names that PopART would give them, for ``debug.cbor``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchipu.ir.graph import Graph
from torchipu.poptorch.reports.anchors import op_names, op_type
from torchipu.report.debug import Context

LAYER = "poptorch"


def contexts_of(graph: Graph, excludes: Sequence[str]) -> Iterator[Context]:
    """Yield name, type, module and the user's line of each op.

    Args:
        graph: The program.
        excludes: Lines of files whose path holds one of these are left out.
    """
    for name, op in op_names(graph):
        source, result = op.source, op.outputs[0].name if op.outputs else op.kind
        is_shown = bool(source.file) and not any(part in source.file for part in excludes)
        place = (source.file, source.line, source.code) if is_shown else ("", 0, "")
        yield Context(name, op_type(op), LAYER, source.module, result, *place)
