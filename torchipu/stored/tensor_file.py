"""Files of tensors and text in the safetensors format: nothing in them is executed when they are read."""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

NAMES = {
    torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}
DTYPES = {name: dtype for dtype, name in NAMES.items()}
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 1 << 27
"""Longer headers are refused unread: they hold a graph as text, some megabytes of it."""
_KINDS = (
    (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_OTHERS = (
    (b"PK", ": it is an archive, such as torch.save writes and torch.load(path, weights_only=True) reads"),
    (b"\x80", ": it is a pickle"), (b"\x1f\x8b", ": it is compressed by gzip"),
    (b"\x89HDF", ": it is an HDF5 file"),
)
"""What files of others begin with, and what is said of them."""


def write(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write a file; until all of it is on the disk there is none, or the one of before.

    Args:
        path: Where to.
        tensors: By name.
        metadata: Texts by name.

    Raises:
        OSError: It cannot be written; the path is named.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    parts, offset = [], 0
    for name, tensor in tensors.items():
        data = _bytes(tensor)
        header[name] = {
            "dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, offset + len(data)],
        }
        parts.append(data)
        offset += len(data)
    header["__metadata__"]["sha256"] = _digest(header, parts)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            for part in (len(text).to_bytes(LENGTH_BYTES, "little"), text, *parts):
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:
            raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from error
        raise


def read_texts(path: Path) -> dict[str, str]:
    """Return the texts of a file without reading its tensors, and so without their checksum.

    Raises:
        ValueError: It is no such file, or its header is damaged.
        OSError: It cannot be read.
    """
    with _opened(path) as file:
        metadata = _header(file)[0]["__metadata__"]
    return {name: str(text) for name, text in metadata.items() if name != "sha256"}


def read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors and the texts of a file.

    Raises:
        ValueError: It is no such file, or it is damaged.
        OSError: It cannot be read.
    """
    with _opened(path) as file:
        header, at = _header(file)
        described = {name: entry for name, entry in header.items() if name != "__metadata__"}
        size, expected = os.fstat(file.fileno()).st_size, at + _body_bytes(described)
        if size != expected:
            raise ValueError(f"it is {'cut short' if size < expected else 'too long'}: {size} bytes, not {expected}")
        parts = [file.read(end - begin) for begin, end in (entry["data_offsets"] for entry in described.values())]
    digest = header["__metadata__"].pop("sha256", None)
    if digest != _digest(header, parts):
        raise ValueError("its checksum is wrong")
    tensors = {name: _tensor(entry, part) for (name, entry), part in zip(described.items(), parts, strict=True)}
    return tensors, header["__metadata__"]


def _opened(path: Path) -> BinaryIO:
    """Open a file; what is none, and might never end, is refused unopened."""
    mode = path.stat().st_mode
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), None)
    if kind is not None:
        raise ValueError(f"it is {kind}")
    return path.open("rb")


def _header(file: BinaryIO) -> tuple[dict[str, Any], int]:
    """Return the header of a file, and where its tensors begin."""
    length = int.from_bytes(file.read(LENGTH_BYTES), "little")
    rest = os.fstat(file.fileno()).st_size - LENGTH_BYTES
    if not 0 < length <= min(MAX_HEADER_BYTES, rest):
        head = length.to_bytes(LENGTH_BYTES, "little")
        raise ValueError("it has no header" + next((text for begin, text in _OTHERS if head.startswith(begin)), ""))
    try:
        header = json.loads(file.read(length))
        if all(isinstance(text, str) for text in header["__metadata__"].values()):
            return header, LENGTH_BYTES + length
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise ValueError("its header is not readable")


def _body_bytes(described: Mapping[str, Any]) -> int:
    """Return how many bytes the tensors of a header take, having seen that each follows the one before."""
    at = 0
    for entry in described.values():
        try:
            begin, end = entry["data_offsets"]
            sizes, item = entry["shape"], DTYPES[entry["dtype"]].itemsize
            is_sound = begin == at and all(type(size) is int and size >= 0 for size in sizes)
            is_sound = is_sound and end - begin == item * math.prod(sizes)
        except (ValueError, KeyError, TypeError):
            is_sound = False
        if not is_sound:
            raise ValueError("its header describes no tensors")
        at = end
    return at


def _tensor(entry: Mapping[str, Any], data: bytes) -> torch.Tensor:
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return flat.view(DTYPES[entry["dtype"]]).reshape(entry["shape"])


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _digest(header: Mapping[str, Any], parts: list[bytes]) -> str:
    """Return the checksum of a header, without the checksum itself, and of the tensors."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
