"""``debug.cbor``: beside a profile, where each op of the program was written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchipu.compiler import Compiled
from torchipu.poptorch.reports.anchors import op_names, op_type

FORMAT, VERSION = "torchipu.debug", 1
NAME = "debug.cbor"
UNSIGNED, TEXT, ARRAY, MAP = 0, 3, 4, 5
"""Major types of CBOR. Source: RFC 8949, section 3.1."""


def write_debug_file(compiled: Compiled, folder: Path, excludes: Sequence[str]) -> Path:
    """Write name, type, module and the user's line of each op.

    The file is CBOR and its content this package's own: PopVision's is not public.

    Args:
        compiled: The program.
        folder: Where to.
        excludes: Lines of files whose path holds one of these are left out.

    Returns:
        The file.
    """
    ops = []
    for name, op in op_names(compiled.graph):
        source = op.source
        entry: dict[str, Any] = {"name": name, "type": op_type(op), "module": source.module}
        if source.file and not any(part in source.file for part in excludes):
            entry["location"] = {"fileName": source.file, "lineNumber": source.line, "code": source.code}
        ops.append(entry)
    path = folder / NAME
    path.write_bytes(encoded({"format": FORMAT, "version": VERSION, "ops": ops}))
    return path


def encoded(value: Any) -> bytes:
    """Return texts, numbers from 0 on, lists and dictionaries as CBOR.

    Raises:
        TypeError: It is something else.
    """
    if isinstance(value, str):
        data = value.encode()
        return _head(TEXT, len(data)) + data
    if isinstance(value, int) and value >= 0:
        return _head(UNSIGNED, value)
    if isinstance(value, Mapping):
        return _head(MAP, len(value)) + b"".join(encoded(key) + encoded(member) for key, member in value.items())
    if isinstance(value, (list, tuple)):
        return _head(ARRAY, len(value)) + b"".join(encoded(member) for member in value)
    raise TypeError(f"{value!r} is no text, number from 0 on, list or dictionary")


def _head(major: int, count: int) -> bytes:
    """Return a type with a count, in as few bytes as hold it. Source: RFC 8949, section 3."""
    if count < 24:
        return bytes([major << 5 | count])
    size = next(size for size in (1, 2, 4, 8) if count < 1 << 8 * size)
    return bytes([major << 5 | 23 + size.bit_length()]) + count.to_bytes(size, "big")
