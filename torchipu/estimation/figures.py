"""An estimate: what a model takes of a machine, what holds it up, and how far to trust that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchipu.compiler import Compiled
from torchipu.device.memory import TileMemory, lacking_bytes, lacking_off_chip_bytes, off_chip_bytes
from torchipu.errors import IpuError
from torchipu.options import Options
from torchipu.report import Profile
from torchipu.report.trust import Trust, trust_in
from torchipu.target import lookup_target

LABEL_WIDTH = 20  # that of profiles
LARGEST = 3  # categories of the fullest tile that are told
AGAIN = ".again"  # in names of what is computed again


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What an iteration waits for most.

    Attributes:
        ipu: The IPU that is busy longest.
        category: What it is busy with: ``compute``, ``exchange``, ``host`` ...
        share: Of the time of the iteration, 0 to 1.
        op: The op that takes most cycles, with the user's line; empty where there is none.
    """

    ipu: int
    category: str
    share: float
    op: str

    def __str__(self) -> str:
        slowest = f"; slowest op {self.op}" if self.op else ""
        return f"{self.category} of ipu {self.ipu}, {self.share:.0%} of the time{slowest}"


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a program would take; nothing of it has been run.

    Attributes:
        name: What is done, to which model.
        options: What for.
        profile: Cycles and memory in full.
        off_chip_bytes: Of each IPU in Streaming Memory.
        bottleneck: What an iteration waits for most.
        trust: How far the score card says to trust cycles, rates and bytes.
        seconds: That the estimate took.
        compiled: The program.
    """

    name: str
    options: Options
    profile: Profile
    off_chip_bytes: tuple[int, ...]
    bottleneck: Bottleneck
    trust: Trust
    seconds: float
    compiled: Compiled = field(repr=False)

    @property
    def cycles(self) -> int:
        """Cycles of a weight update, or of an inference run."""
        return self.profile.cycles_per_update

    @property
    def samples_per_second(self) -> float:
        """Samples of all replicas a second."""
        return self.profile.samples_per_second

    @property
    def ipus(self) -> int:
        """IPUs that all replicas use."""
        return self.profile.num_ipus * self.profile.replicas

    @property
    def memory_by_ipu(self) -> tuple[TileMemory, ...]:
        """The fullest tile of each IPU of a replica."""
        return self.profile.memory_by_ipu

    @property
    def overflow_bytes(self) -> int:
        """Bytes that the fullest tile, or its region for code, lacks; 0 where all fits."""
        return lacking_bytes(self.memory_by_ipu, self.compiled.target)

    @property
    def off_chip_overflow_bytes(self) -> int:
        """Bytes of Streaming Memory that the fullest machine lacks; 0 where all fits."""
        return lacking_off_chip_bytes(self.compiled.executable, self.compiled.target)

    @property
    def fits(self) -> bool:
        """Whether every tile holds what it needs, and Streaming Memory what is off chip."""
        return self.overflow_bytes == 0 and self.off_chip_overflow_bytes == 0

    def text(self) -> str:
        """Return the figures for people: some lines of summary, then what may be trusted."""
        limit = self.compiled.target.tile_memory_bytes
        tiles = "  ".join(f"ipu{m.ipu} {m.total_bytes / limit:.1%}" for m in self.memory_by_ipu)
        lines = [
            f"{self.name}: estimated in {self.seconds:.1f} s, not run", self.profile.summary(),
            _line("fullest tiles", tiles), _line("fits", self._verdict()),
        ]
        if self.overflow_bytes:
            lines.append(_line("filled by", self._filling()))
        if any(self.off_chip_bytes):
            each = "  ".join(f"ipu{ipu} {count / 2**20:,.0f} MiB" for ipu, count in enumerate(self.off_chip_bytes))
            lines.append(_line("off chip", each))
        lines.append(_line("bottleneck", str(self.bottleneck)))
        for choice in self.profile.choices:
            lines.append(_line(
                "depends on data", f"{choice.kind}: {' or '.join(f'{n:,}' for n in choice.cycles)} cycles, the dearest "
                f"branch and one trip are counted; {choice.source}",
            ))
        return "\n".join([*lines, self.trust.text()])

    def _verdict(self) -> str:
        lacking = []
        if self.overflow_bytes:
            lacking.append(f"the fullest tile lacks {self.overflow_bytes:,} B")
        if self.off_chip_overflow_bytes:
            lacking.append(f"a machine lacks {self.off_chip_overflow_bytes / 2**20:,.0f} MiB of Streaming Memory")
        return f"no: {', and '.join(lacking)}" if lacking else "all tiles"

    def _filling(self) -> str:
        """Return what is on the fullest tile, and when."""
        fullest = self.profile.fullest_tile
        held = sorted(fullest.bytes_by_category.items(), key=lambda pair: -pair[1])
        parts = ", ".join(f"{name} {count / fullest.total_bytes:.0%}" for name, count in held[:LARGEST] if count)
        again = ""
        names = (fullest.at, *(name for name, _ in fullest.largest))
        if self.options.recompute in ("auto", "stage") and any(AGAIN in name for name in names):
            again = "; what a stage computes again is there at once: recompute its blocks one by one (recompute=names)"
        return f"{parts}{f' during {fullest.at}' if fullest.at else ''}{again}"

    def __str__(self) -> str:
        return self.text()


@dataclass(frozen=True, slots=True)
class Refused:
    """Stands for an estimate where there is none.

    Attributes:
        name: What was to be done, to which model.
        error: Why not.
    """

    name: str
    error: IpuError

    def __str__(self) -> str:
        return f"{self.name}: not estimated: {self.error}"


def estimate_of(name: str, compiled: Compiled, profile: Profile, seconds: float) -> Estimate:
    """Return the estimate of a program.

    Args:
        name: What it does, to which model.
        compiled: The program.
        profile: Of it.
        seconds: That compiling took.
    """
    trust = trust_in(compiled.cost, lookup_target(compiled.options.target), profile)
    return Estimate(
        name, compiled.options, profile, off_chip_bytes(compiled.executable), _bottleneck(profile), trust, seconds,
        compiled,
    )


def _bottleneck(profile: Profile) -> Bottleneck:
    spent = profile.cycles_by_category_by_ipu
    ipu = min(range(len(spent)), key=lambda number: spent[number].get("idle", 0))
    busy: Mapping[str, int] = {name: cycles for name, cycles in spent[ipu].items() if name != "idle"}
    category = max(busy, key=lambda name: busy[name]) if busy else "compute"
    share = busy.get(category, 0) / profile.cycles_per_update if profile.cycles_per_update else 0.0
    slowest = profile.slowest_ops[0] if profile.slowest_ops else None
    words = f"{slowest.kind} {slowest.source}".strip() if slowest is not None else ""
    return Bottleneck(ipu, category, share, words)


def _line(label: str, value: str) -> str:
    return f"{label:<{LABEL_WIDTH}} {value}"
