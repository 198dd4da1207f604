"""Where the user wrote what an FX node does: source line, block, checkpointed region, module."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import torch
from torch.fx import Node
from torch.utils.checkpoint import CheckpointPolicy

from torchipu.capture.block import (
    ATTRIBUTES_KEY,
    BLOCK_KEY,
    PARTIALS_KEY,
    SCOPE_KEY,
    SIDE_BY_SIDE_KEY,
    check_block,
    check_partials,
)
from torchipu.ir.types import UNKNOWN_SOURCE, Source

FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in .*?(?:\n\s*(?P<code>(?!\s*File ").+))?$', re.M)
TORCH_ROOT = str(Path(torch.__file__).parent)
OUR_ROOT = str(Path(__file__).parents[1])
WITHIN_BLOCK = ".forward.__wrapped__.__self__"
"""How Dynamo comes from a module at which a block begins to that module itself, whose forward is a `BlockForward`."""


def block_of(node: Node) -> tuple[str, int | None] | None:
    """Return the block annotation of a node.

    Raises:
        PlacementError: The annotation is not valid (Dynamo cannot raise it where it was written).
    """
    found = (node.meta.get("custom") or {}).get(BLOCK_KEY)
    if found is None:
        return None
    name, ipu = found
    check_block(name, ipu)
    return name, ipu


def attributes_of(node: Node) -> dict[str, str]:
    """Return what the user attached to a node."""
    return dict((node.meta.get("custom") or {}).get(ATTRIBUTES_KEY, {}))


def partials_of(node: Node) -> str | None:
    """Return the type of partials that the region of a node asks for.

    Raises:
        OptionsError: It is none.
    """
    found = (node.meta.get("custom") or {}).get(PARTIALS_KEY)
    if found is not None:
        check_partials(found)
    return found


def side_by_side_of(node: Node) -> dict[str, object]:
    """Return the attributes of an op that runs beside others; none if it runs alone."""
    found = (node.meta.get("custom") or {}).get(SIDE_BY_SIDE_KEY)
    return {} if found is None else dict(zip(("side_by_side", "reserved_tiles"), found, strict=True))


def checkpoint_region_of(node: Node) -> int | None:
    """Return the number of the call of torch.utils.checkpoint under which a node ran and is to be computed again."""
    if node.meta.get("recompute") in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE):
        return int(node.meta.get("ac_graph_id", 0))
    return None


def source_of(node: Node) -> Source:
    """Return the user's line of a node: its last frame outside torch and torchipu."""
    return line_in(node.meta.get("stack_trace") or "", _module_path(node))


def line_in(trace: str, module: str = "") -> Source:
    """Return the last line outside torch and torchipu of a stack trace as text, with those that led there."""
    frames = _frames(trace)
    if not frames:
        return Source(module=module) if module else UNKNOWN_SOURCE
    return Source(*frames[-1], module, frames[:-1])


@lru_cache(maxsize=1024)  # nodes of a line have the same trace, and share what is found of it
def _frames(trace: str) -> tuple[tuple[str, int, str], ...]:
    """Return file, line and code of the frames of a trace: those outside torch and torchipu, or else all."""
    frames = [
        (frame["file"], int(frame["line"]), (frame["code"] or "").strip()) for frame in FRAME.finditer(trace)
    ]
    return tuple(frame for frame in frames if not frame[0].startswith((TORCH_ROOT, OUR_ROOT))) or tuple(frames)


def _module_path(node: Node) -> str:
    """Return the dotted path of the innermost module, such as ``encoder.layers.0``, named scopes within it."""
    parts = [part for part in _module_of(node).split(".") if part]
    for outer, name in reversed((node.meta.get("custom") or {}).get(SCOPE_KEY, ())):
        parts.insert(len(outer.split(".")) if outer else 0, name)
    return ".".join(parts)


def _module_of(node: Node) -> str:
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path = next(reversed(stack.values()))[0]
    path = re.sub(r"^L\[[^\]]*\]", "", path)  # the local variable that holds the model
    path = re.sub(r"\[['\"]?([^'\"\]]+)['\"]?\]", r".\1", path)
    return path.replace("._modules.", ".").replace(WITHIN_BLOCK, "").removeprefix(".")
