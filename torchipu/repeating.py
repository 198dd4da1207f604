"""Scripts that repeat a compilation that failed: what a report of a defect needs, whatever model it came from."""

from __future__ import annotations

import dataclasses
import json
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from torchipu.errors import InternalError, IpuError
from torchipu.ir.graph import Graph
from torchipu.ir.serial import graph_to_data
from torchipu.options import Options
from torchipu.target import Target

OF_THIS_PROCESS = ("process_group", "pipeline_group", "dump")
"""Options that mean nothing elsewhere."""
_SCRIPT = '''"""Repeats a failure of torchipu {version}: {failure}

Made with torch {torch}, Python {python}, {machine}. It holds the graph as captured, and no weights.
"""

import json

from torchipu import *
from torchipu.compiler import compile_graph
from torchipu.ir.serial import graph_from_data

GRAPH = json.loads(r"""
{graph}
""")
compile_graph(
    graph_from_data(GRAPH), Options({options}), {target}, micro_batches={micro_batches}, instances={instances},
)
'''


def script_of(
    graph: Graph, options: Options, target: Target, *, micro_batches: int, instances: int, failure: str = "",
) -> str:
    """Return a script that compiles a graph again.

    Args:
        graph: As captured.
        options: Those of the compilation.
        target: The machine.
        micro_batches: As of `torchipu.compiler.compile_graph`.
        instances: As there.
        failure: What went wrong, for the reader.
    """
    import torchipu

    return _SCRIPT.format(
        version=torchipu.__version__, failure=failure, torch=torch.__version__, python=platform.python_version(),
        machine=platform.machine(), graph=json.dumps(graph_to_data(graph)), options=_written(options, OF_THIS_PROCESS),
        target=f"Target({_written(target)})", micro_batches=micro_batches, instances=instances,
    )


def _written(value: Options | Target, left_out: Sequence[str] = ()) -> str:
    """Return the fields of a value as arguments, without those that have their default."""
    fields = [field for field in dataclasses.fields(value) if field.init and field.name not in left_out]
    given = [(field, getattr(value, field.name)) for field in fields]
    return ", ".join(f"{field.name}={held!r}" for field, held in given if held != field.default)


def internal_error(
    stage: str, error: Exception, graph: Graph, options: Options, target: Target, *, micro_batches: int,
    instances: int,
) -> IpuError:
    """Return the error for a stage that failed in a way that none should, and write a script that repeats it.

    Args:
        stage: Its name.
        error: What it raised.
        graph: As captured.
        options: Those of the compilation.
        target: The machine.
        micro_batches: As of `torchipu.compiler.compile_graph`.
        instances: As there.
    """
    failure = f"{stage}: {type(error).__name__}: {error}"
    try:
        script = script_of(
            graph, options, target, micro_batches=micro_batches, instances=instances, failure=failure,
        )
        path = Path(tempfile.mkdtemp(prefix="torchipu-")) / "repeat.py"
        path.write_text(script, encoding="utf-8")
    except Exception as other:  # whatever it is, the first error is the one to tell
        return InternalError(failure, script=None, reason=f"{type(other).__name__}: {other}")
    return InternalError(failure, script=str(path))
