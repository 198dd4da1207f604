"""libpva on torchipu's profiles: ``import pva`` gives this module, unless Graphcore's is installed.

It reads ``profile.pop`` and ``debug.cbor`` of a report, and the ``.pvti`` of a host trace, as `torchipu.report` and
`torchipu.pvti` write them; Graphcore's own files have formats that are not public.
"""

from __future__ import annotations

from torchipu.errors import ReportError
from torchipu.pva.compilation import Compilation, Graph
from torchipu.pva.enums import IPU
from torchipu.pva.execution import Execution, ExecutionStep, Run
from torchipu.pva.liveness import LivenessProgramStep
from torchipu.pva.memory import Tile
from torchipu.pva.operations import DebugContext, Operation, OperationAnalysis, SourceLocation
from torchipu.pva.programs import ComputeSet, Program, ProgramVisitor, VertexInstances, VertexType
from torchipu.pva.report import InstrumentationSettings, Report, openReport
from torchipu.pva.target import Target
from torchipu.pva.traces import Event, Process, Thread, Trace, openTrace
from torchipu.pva.variables import LoweredVariable, Variable

__all__ = [
    "IPU", "Compilation", "ComputeSet", "DebugContext", "Event", "Execution", "ExecutionStep", "Graph",
    "InstrumentationSettings", "LivenessProgramStep", "LoweredVariable", "Operation", "OperationAnalysis", "Process",
    "Program", "ProgramVisitor", "Report", "ReportError", "Run", "SourceLocation", "Target", "Thread", "Tile", "Trace",
    "Variable", "VertexInstances", "VertexType", "openReport", "openTrace",
]

