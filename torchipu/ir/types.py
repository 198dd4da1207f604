"""Element types, roles, legs and source positions: the words that every level of the IR shares."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class DType(Enum):
    """Element type of a tensor: name in text, bytes on the host, bytes on the device.

    The IPU has no 64-bit integers: ``LONG`` holds torch's int64 exactly on the host and is counted as a
    32-bit word in tile memory. Nor has it ``BFLOAT``, torch's bfloat16: graphs hold floats, and only memory of the
    caller's that a host plan reads or writes is of that type.
    """

    HALF = ("half", 2, 2)
    FLOAT = ("float", 4, 4)
    INT = ("int", 4, 4)
    LONG = ("long", 8, 4)
    SHORT = ("short", 2, 2)
    CHAR = ("char", 1, 1)
    UNSIGNED_CHAR = ("uchar", 1, 1)
    BOOL = ("bool", 1, 1)
    BFLOAT = ("bfloat", 2, 4)

    def __init__(self, text: str, host_bytes: int, device_bytes: int) -> None:
        self.text = text
        self.host_bytes = host_bytes
        self.device_bytes = device_bytes

    @property
    def is_floating(self) -> bool:
        """Whether the type is half, float or bfloat."""
        return self in (DType.HALF, DType.FLOAT, DType.BFLOAT)


class Role(Enum):
    """What a tensor is to the model; decides its lifetime and where it lives."""

    INPUT = "input"
    WEIGHT = "weight"
    BUFFER = "buffer"
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    ACCUMULATOR = "accumulator"
    OPTIMISER_STATE = "optimiser_state"
    HYPERPARAMETER = "hyperparameter"
    CONSTANT = "constant"

    @property
    def is_state(self) -> bool:
        """Whether the tensor outlives one run of the program."""
        return self in (Role.WEIGHT, Role.BUFFER, Role.ACCUMULATOR, Role.OPTIMISER_STATE)


class Leg(Enum):
    """Part of a training step that an op belongs to."""

    FORWARD = "F"
    BACKWARD = "B"
    UPDATE = "U"


@dataclass(frozen=True, slots=True)
class Source:
    """Where the user wrote an op.

    Attributes:
        file: Path of the file, empty when unknown.
        line: Line number from 1, or 0 when unknown.
        code: The line's text.
        module: Dotted path of the ``nn.Module`` whose forward held it.
        callers: File, line and code of the lines that led there, the outermost first.
    """

    file: str = ""
    line: int = 0
    code: str = ""
    module: str = ""
    callers: tuple[tuple[str, int, str], ...] = ()

    def __str__(self) -> str:
        if not self.file:
            return self.module
        return f"{self.file}:{self.line}  {self.code}".rstrip()


UNKNOWN_SOURCE = Source()
