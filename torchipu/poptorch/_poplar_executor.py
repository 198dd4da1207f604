"""The name under which PopTorch keeps its executor, and under which pickled ones are looked for."""

from __future__ import annotations

from torchipu.poptorch.executor.poplar_executor import PoplarExecutor, _restored

__all__ = ["PoplarExecutor", "_restored"]
