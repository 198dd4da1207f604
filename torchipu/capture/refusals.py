"""What an importer of graphs says where it cannot go on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Node

from torchipu.capture.control import REMEDIES
from torchipu.capture.fx_source import source_of
from torchipu.errors import CaptureError, UnsupportedOpError
from torchipu.ir.graph import Op
from torchipu.ir.types import Source


def is_number(value: object) -> bool:
    """Whether a value is a number of Python's or of torch's symbols."""
    return isinstance(value, (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool))


def unsupported(ops: Sequence[Op]) -> UnsupportedOpError:
    """Return the error of ``strict_ops``: the first op in full, then all of them."""
    lines: dict[str, Source] = {}
    for op in ops:
        lines.setdefault(f"{op.target} ({', '.join(t.dtype.text for t in op.inputs)})", op.source)
    first = ops[0]
    detail = "\n".join(f"{what}  {source}" for what, source in lines.items())
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    return UnsupportedOpError(
        f"{first.target} has no lowering for the IPU{more}", op=text_of(first), source=first.source,
        block=block_text_of(first), detail=f"all unsupported ops:\n{detail}",
        remedy='leave out options={"strict_ops": True} to run them generically, move them out of the compiled region, '
        'or see CONTRIBUTING, "Add an op"',
    )


def text_of(op: Op) -> str:
    """Return an op in a line, as errors show it."""
    outputs = ", ".join(f"%{t.name}: {t.dtype.text}[{','.join(map(str, t.shape))}]" for t in op.outputs)
    inputs = ", ".join(f"%{t.name}" for t in op.inputs)
    attrs = ", ".join(f"{key}={value}" for key, value in op.attrs.items())
    return f"{outputs} = {op.target}({inputs}) {{{attrs}}}"


def block_text_of(op: Op) -> str:
    """Return block, IPU and leg of an op, as errors show them; nothing where it has no block."""
    if op.block is None:
        return ""
    name, ipu = op.block
    return f"{name} ({op.leg.name.lower()})" if ipu is None else f"{name} (ipu {ipu}, {op.leg.name.lower()})"


def uncapturable(node: Node, name: str) -> UnsupportedOpError:
    """Return the error for a call of torch's that no program has."""
    return UnsupportedOpError(
        f"{name} cannot be captured into the program", op=node.format_node(), source=source_of(node),
        remedy=REMEDIES.get(name, "write it with torch.cond, while_loop, scan or map, or move it out of the compiled "
        "region"),
    )


def unknown_size(node: Node) -> CaptureError:
    """Return the error for a value or a size that depends on data."""
    if is_number(node.meta.get("val")):
        return CaptureError(
            f"the value of {node.name} is not known before the program runs", op=node.format_node(),
            source=source_of(node),
            remedy="keep .item(), int() and float() of tensors out of the compiled region: compute with the tensor",
        )
    return CaptureError(
        f"the size of {node.name} is not known before the program runs", op=node.format_node(), source=source_of(node),
        remedy="avoid calls whose result's shape depends on values, such as nonzero, unique and masked_select: "
        "use torch.where, or pad to a fixed size",
    )
