"""Enumerations of libpva."""

from __future__ import annotations

from enum import Enum, IntEnum


class TargetType(Enum):
    """What a program was compiled for; torchipu's is a model of the IPU."""

    Ipu = 0
    IpuModel = 1
    Cpu = 2
    Unknown = 3


class Architecture(Enum):
    """Generations of the IPU: Mk1, Mk2 and Bow, C600."""

    Ipu1 = 1
    Ipu2 = 2
    Ipu21 = 21
    Unknown = 0


class ComputeInstrumentationLevel(IntEnum):
    """How finely cycles of compute sets are told."""

    Off = 0
    Vertex = 1
    Tile = 2
    Ipu = 3
    Device = 4
    Unknown = 5


class ExternalExchangeInstrumentationLevel(IntEnum):
    """How finely cycles of exchanges with other IPUs are told."""

    Off = 0
    Tile = 1
    Unknown = 2


class ProgramType(Enum):
    """Kinds of programs, under Poplar's names.

    Those of torchipu are ``Call``, ``DoExchange``, ``GlobalExchange``, ``If``, ``OnTileExecute``, ``Repeat``,
    ``RepeatWhile``, ``Sequence``, ``StreamCopyMid`` and ``Sync``; the others are there for programs that name them.
    """

    Unknown = 0
    Call = 1
    DoExchange = 2
    GlobalExchange = 3
    If = 4
    OnTileExecute = 5
    Repeat = 6
    RepeatWhile = 7
    Sequence = 8
    StreamCopyBegin = 9
    StreamCopyMid = 10
    StreamCopyEnd = 11
    Switch = 12
    Sync = 13
    SyncExternal = 14


class IPU:
    """Names that belong to an IPU."""

    Architecture = Architecture


ARCHITECTURES = {
    "mk1": Architecture.Ipu1, "mk2": Architecture.Ipu2, "pod": Architecture.Ipu2, "bow": Architecture.Ipu2,
    "c600": Architecture.Ipu21,
}
"""By how the names of machines begin."""


def architecture_of(target: str) -> Architecture:
    """Return the generation of a machine."""
    return next((kind for begin, kind in ARCHITECTURES.items() if target.startswith(begin)), Architecture.Unknown)
