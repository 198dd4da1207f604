"""Files of tensors and text in the safetensors format: nothing in them is executed when they are read."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

NAMES = {
    torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}
DTYPES = {name: dtype for dtype, name in NAMES.items()}
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 1 << 30


def write(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write a file; until all of it is written there is none, or the one of before.

    Args:
        path: Where to.
        tensors: By name.
        metadata: Texts by name.
    """
    header: dict[str, Any] = {}
    parts, offset = [], 0
    for name, tensor in tensors.items():
        data = _bytes(tensor)
        header[name] = {
            "dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, offset + len(data)],
        }
        parts.append(data)
        offset += len(data)
    header["__metadata__"] = {**metadata, "sha256": _digest(metadata, parts)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            for part in (len(text).to_bytes(LENGTH_BYTES, "little"), text, *parts):
                file.write(part)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors and the texts of a file.

    Raises:
        ValueError: It is no such file, or it is damaged.
        OSError: It cannot be read.
    """
    data = path.read_bytes()
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    if len(data) < LENGTH_BYTES or not 0 < length <= min(MAX_HEADER_BYTES, len(data) - LENGTH_BYTES):
        raise ValueError("it has no header")
    try:
        header = json.loads(data[LENGTH_BYTES : LENGTH_BYTES + length])
        metadata = dict(header.pop("__metadata__"))
        digest = metadata.pop("sha256")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError("its header is not readable") from None
    body = memoryview(data)[LENGTH_BYTES + length :]
    tensors, parts = {}, []
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        if not 0 <= begin <= end <= len(body):
            raise ValueError("it is cut short")
        part = bytes(body[begin:end])
        parts.append(part)
        flat = torch.frombuffer(bytearray(part), dtype=torch.uint8) if part else torch.empty(0, dtype=torch.uint8)
        tensors[name] = flat.view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    if digest != _digest(metadata, parts):
        raise ValueError("its checksum is wrong")
    return tensors, metadata


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _digest(metadata: Mapping[str, str], parts: list[bytes]) -> str:
    digest = hashlib.sha256()
    for name, text in sorted(metadata.items()):
        digest.update(f"{name}={text};".encode())
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
