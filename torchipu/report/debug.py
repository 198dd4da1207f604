"""``debug.cbor``: where each op of a program comes from, in CBOR (RFC 8949), beside ``profile.pop``."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cbor2

from torchipu.errors import ReportError
from torchipu.report.facts import rows
from torchipu.report.facts.gather import Facts

FORMAT, VERSION = "torchipu.debug", 2
NO_OPERATION = -1
"""Number of an operation that there is not."""
LAYER = "torchipu"
"""Layer of software through which ops came that no other door has captured."""


class Context(NamedTuple):
    """Where an op comes from.

    Attributes:
        name: Of the op.
        type: What it computes.
        layer: Of the software that gave it: ``poptorch`` or ``torchipu``.
        module: Path of the module whose forward held it.
        operation: Its number in the profile; -1 where it takes no cycles.
        file: Of the user's line; empty where unknown, or left out.
        line: From 1; 0 where unknown.
        code: The line's text.
    """

    name: str
    type: str
    layer: str
    module: str
    operation: int
    file: str
    line: int
    code: str


def contexts_of(facts: Facts) -> Iterator[Context]:
    """Yield where the ops of a profile come from."""
    for one in facts.tables["operations"]:
        assert isinstance(one, rows.Operation)
        yield Context(one.name, one.kind, LAYER, one.module, one.number, one.file, one.line, one.code)


def debug_bytes(contexts: Sequence[Context]) -> bytes:
    """Return contexts as a file; their numbers are their places in it."""
    entries = [_entry(number, context) for number, context in enumerate(contexts)]
    return cbor2.dumps({"format": FORMAT, "version": VERSION, "contexts": entries})


def read_debug(path: Path) -> tuple[Context, ...]:
    """Return the contexts of a file.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: There is none.
        ReportError: It is empty, damaged, of another program, or of another version.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no debug file {path}")
    data = path.read_bytes()
    if not data:
        raise ReportError(f"{path} is empty", remedy="the run that wrote it was stopped: run it again")
    try:
        held = _decoded(data)
        if not isinstance(held, Mapping) or held.get("format") != FORMAT:
            raise ReportError(
                f"{path} is CBOR, but no debug file of torchipu", remedy="give the debug.cbor beside profile.pop; "
                "PopVision's files have a format of their own, which is not public",
            )
        if held.get("version") != VERSION:
            raise ReportError(
                f"{path} has version {held.get('version')!r} of the format, and this torchipu reads {VERSION}",
                remedy="use the torchipu that wrote it",
            )
        return tuple(_context(entry) for entry in held["contexts"])
    except (cbor2.CBORDecodeError, EOFError, KeyError, TypeError, ValueError, AttributeError) as error:
        told = f"{type(error).__name__}: {error}"
        raise ReportError(f"{path} is damaged: {told}", remedy="run the program again with its report on") from error


def _decoded(data: bytes) -> Any:
    """Return the one value of a file; bytes behind it are none of ours."""
    stream = io.BytesIO(data)
    held = cbor2.CBORDecoder(stream).decode()
    if cbor2.dumps(held) != data:
        raise ValueError("it is not what torchipu writes")
    return held


def _entry(number: int, context: Context) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "id": number, "name": context.name, "type": context.type, "layer": context.layer, "module": context.module,
        "operation": context.operation,
    }
    if context.file:
        entry["location"] = {"fileName": context.file, "lineNumber": context.line, "code": context.code}
    return entry


def _context(entry: Mapping[str, Any]) -> Context:
    place = entry.get("location", {})
    context = Context(
        entry["name"], entry["type"], entry["layer"], entry["module"], entry["operation"], place.get("fileName", ""),
        place.get("lineNumber", 0), place.get("code", ""),
    )
    numbers = ("operation", "line")
    if not all(isinstance(held, int if name in numbers else str) for name, held in context._asdict().items()):
        raise TypeError(f"a context holds {context}")
    return context
