"""What torch leaves to eager: refused under ``strict``, else told."""

from __future__ import annotations

import warnings

import torch
from torch._guards import CompileContext
from torch.fx import GraphModule

from torchipu.capture.fx_source import OUR_ROOT, TORCH_ROOT, source_of
from torchipu.errors import CaptureError, IpuError
from torchipu.ir.types import Source

_RESUMED = "torch_dynamo_resume_in_"
_UNBROKEN = "rewrite the line, or leave out strict and let torch run what lies between the graphs"


def refuse_eager(gm: GraphModule) -> None:
    """Raise CaptureError where Dynamo leaves code to eager, or is about to for lack of further recompilations."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    if reason is not None and reason.graph_break:
        lines = [line.strip() for line in str(reason.reason).splitlines() if line.strip()]
        mine = [frame for frame in reason.user_stack if not frame.filename.startswith((TORCH_ROOT, OUR_ROOT))]
        source = Source(mine[-1].filename, mine[-1].lineno or 0, mine[-1].line or "") if mine else ""
        raise CaptureError(
            f"strict: the model breaks into several graphs: {lines[0] if lines else 'graph break'}", source=source,
            remedy=_UNBROKEN,
        )
    resumed = next((node for node in gm.graph.nodes if _RESUMED in (node.meta.get("stack_trace") or "")), None)
    if resumed is not None:
        raise CaptureError(
            "strict: the model breaks into several graphs: torch ran what comes before this line in eager",
            source=source_of(resumed), remedy=_UNBROKEN,
        )
    limit = _last_compilation()
    if limit is not None:
        raise CaptureError(
            f"strict: this is compilation {limit} of the same code, after which torch runs it in eager",
            remedy="keep shapes and Python arguments the same, use torch.compile(dynamic=True), or raise "
            "torch._dynamo.config.recompile_limit",
        )


def warn_of_last_compilation(gm: GraphModule) -> None:
    """Warn where torch compiles the same code for the last time: sizes and numbers after these run in eager."""
    limit = _last_compilation()
    if limit is not None:
        warnings.warn(
            f"torchipu: this is compilation {limit} of the same code{_code_of(gm)}, torch's limit: further ones run in "
            "eager, and not as an IPU would. Keep shapes and Python arguments the same, use torch.compile(dynamic="
            "True), or raise torch._dynamo.config.recompile_limit; with strict=True it is refused",
            stacklevel=2,
        )


def warn_of_suppression(error: IpuError) -> None:
    """Warn that torch runs in eager what is refused here, where it is told to suppress errors."""
    if torch._dynamo.config.suppress_errors:
        warnings.warn(
            "torchipu: torch._dynamo.config.suppress_errors lets torch run this in eager, and not as an IPU would: "
            f"{error.message}", stacklevel=2,
        )


def _last_compilation() -> int | None:
    """Return torch's limit of compilations of the same code if this is the last one, else None."""
    current = CompileContext.current_compile_id()
    limit: int = torch._dynamo.config.recompile_limit
    is_last = current is not None and current.frame_compile_id is not None and current.frame_compile_id >= limit - 1
    return limit if is_last else None


def _code_of(gm: GraphModule) -> str:
    """Return ``, file:line``, where the first op of a graph stands, or nothing if it has none."""
    sources = (str(source_of(node)) for node in gm.graph.nodes if node.op.startswith("call_"))
    return next((f", {source}" for source in sources if source), "")
