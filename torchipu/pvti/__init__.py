"""libpvti's names: trace points and graphs of a host program, written to a ``.pvti``.

``import pvti`` gives this module, unless Graphcore's is installed. Nothing is written unless ``PVTI_OPTIONS`` asks for
it: ``PVTI_OPTIONS='{"enable":"true", "directory":"traces"}'``.
"""

from __future__ import annotations

from torchipu.pvti.points import Graph, Series, TraceChannel, Tracepoint, createTraceChannel, instrument
from torchipu.pvti.recorder import flush

__all__ = ["Graph", "Series", "TraceChannel", "Tracepoint", "createTraceChannel", "flush", "instrument"]
