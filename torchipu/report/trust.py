"""How far the score card says to trust a number, from the kinds of op that it is made of.

``trust.csv`` holds what the score card found of each kind of row: ``torchipu score --write`` writes it.
"""

from __future__ import annotations

import csv
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from functools import cache
from pathlib import Path

from torchipu.device.cost import Cost
from torchipu.report.figures import Figures
from torchipu.target import Target

FILE = Path(__file__).with_name("trust.csv")
LABEL_WIDTH = 20
LEAST_SHARE = 0.005  # of cycles, below which a family is not named

KIND_OF_FAMILY: Mapping[str, str] = {
    "products": "gemm",
    "convolutions": "conv",
    "gather": "gather",
    "scatter": "scatter",
    "pooling": "pooling",
    "reductions": "reduction",
    "recurrent": "lstm",
}
"""By which kind of row of the score card a family of ops is judged."""
TRAINING, INFERENCE, MEMORY, FITS = "train", "infer", "tile", "fits"
"""Kinds of row by which whole programs are judged."""

_FAMILY_OF_OP: Mapping[str, tuple[str, ...]] = {
    "products": ("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "attention", "attention_backward", "grouped_mm",
                 "grouped_mm_backward"),
    "convolutions": ("convolution", "convolution_backward"),
    "gather": ("embedding", "index_select", "gather", "index", "take", "embedding_bag"),
    "scatter": ("embedding_grad", "embedding_bag_grad", "scatter", "scatter_add", "scatter_reduce", "index_add",
                "index_copy", "index_put", "index_reduce", "put"),
    "pooling": ("max_pool2d", "max_pool2d_backward", "max_pool3d", "max_pool3d_backward"),
    "reductions": ("sum", "mean", "prod", "amax", "amin", "max", "min", "sum_squares"),
    "recurrent": ("recurrence", "recurrence_backward"),
}
FAMILY_BY_OP = {op: family for family, ops in _FAMILY_OF_OP.items() for op in ops}
GENERIC, UNSCORED = "generic", "others"
"""Families without rows: ops that have no record, and ops whose records no row judges."""

MEASURED_IPUS = 256  # the most in a row of the kind train: "training, 1 to 256 IPUs"


@dataclass(frozen=True, slots=True)
class Judged:
    """What the score card found of a kind of row.

    Attributes:
        kind: Its name.
        source: Silicon, or Graphcore's IPU Model.
        rows: How many there are.
        median: Of the errors: the factor between prediction and measurement, less 1. Of a yes or no, the share that is
            wrong.
        p90: What nine of ten errors do not exceed.
        bias: Geometric mean of prediction over measurement, less 1.
    """

    kind: str
    source: str
    rows: int
    median: float
    p90: float
    bias: float


@dataclass(frozen=True, slots=True)
class Part:
    """A family in a program.

    Attributes:
        family: Its name.
        share: Of the cycles of all ops, 0 to 1.
        judged: What the score card found; None where no row judges these ops.
    """

    family: str
    share: float
    judged: Judged | None


@dataclass(frozen=True, slots=True)
class Trust:
    """How far to trust an estimate.

    Attributes:
        rate: What was found of whole programs that train, or that infer; None where nothing was.
        memory: What was found of the fullest tile.
        fits: What was found of whether programs fit.
        parts: Families of ops, of most cycles first.
        extrapolations: In what this program lies beyond anything that was measured.
    """

    rate: Judged | None
    memory: Judged | None
    fits: Judged | None
    parts: tuple[Part, ...]
    extrapolations: tuple[str, ...]

    @property
    def unscored_share(self) -> float:
        """Share of the cycles of ops that no row judges, 0 to 1."""
        return sum(part.share for part in self.parts if part.judged is None)

    @property
    def generic_share(self) -> float:
        """Share of the cycles of ops without a record, 0 to 1."""
        return sum(part.share for part in self.parts if part.family == GENERIC)

    @property
    def rate_cell(self) -> str:
        """What nine of ten rates are off by at most, for a table; with a star beyond what was measured."""
        return ("?" if self.rate is None else f"{self.rate.p90:.0%}") + "*" * bool(self.extrapolations)

    def rate_range(self, rate: float) -> tuple[float, float] | None:
        """Return between what nine of ten programs like this would lie, by the score card.

        Args:
            rate: Samples a second.
        """
        return None if self.rate is None else (rate / (1 + self.rate.p90), rate * (1 + self.rate.p90))

    def text(self) -> str:
        """Return the judgement in lines."""
        lines = [_line("trust in rate", _words(self.rate)), _line("trust in memory", _words(self.memory))]
        if self.fits is not None:
            lines.append(_line("trust in fits", _right(self.fits)))
        for part in self.parts:
            if part.share < LEAST_SHARE:
                continue
            what = "estimated: no record" if part.family == GENERIC else _words(part.judged)
            lines.append(_line(f"  {part.family}", f"{part.share:4.0%} of cycles; {what}"))
        lines += [_line("extrapolated", words) for words in self.extrapolations]
        return "\n".join(lines)


def notes_of(trusts: Iterable[Trust]) -> str:
    """Return what stands below a table of estimates: how far to trust what its rows say beside rates.

    Args:
        trusts: Of its rows.
    """
    found = list(trusts)
    memory = next((one.memory for one in found if one.memory is not None), None)
    fits = next((one.fits for one in found if one.fits is not None), None)
    generic = max((one.generic_share for one in found), default=0.0)
    lines = [] if memory is None else [f"fullest tile: {_words(memory)}"]
    lines += [] if fits is None else [f"fits: {_right(fits)}"]
    lines += [f"generic: ops without a record are up to {generic:.0%} of a row's cycles"] * (generic >= LEAST_SHARE)
    beyond = dict.fromkeys(words for one in found for words in one.extrapolations)
    lines += [f"* extrapolated: {words}" for words in beyond]
    return "\n".join(lines)


def trust_in(cost: Cost, target: Target, profile: Figures) -> Trust:
    """Return how far to trust the figures of a program.

    Args:
        cost: Its cycles.
        target: The machine, with all its tiles.
        profile: Of the program.
    """
    known = read(FILE)
    spent: dict[str, int] = {}
    for name, function in cost.functions.items():
        for step in function.supersteps:
            family = GENERIC if step.op.kind == "generic" else FAMILY_BY_OP.get(step.op.kind, UNSCORED)
            spent[family] = spent.get(family, 0) + step.cycles * cost.runs_by_function.get(name, 0)
    total = sum(spent.values()) or 1
    parts = [
        Part(family, cycles / total, known.get(KIND_OF_FAMILY.get(family, ""))) for family, cycles in spent.items()
    ]
    return Trust(
        known.get(TRAINING if profile.is_training else INFERENCE), known.get(MEMORY), known.get(FITS),
        tuple(sorted(parts, key=lambda part: -part.share)), tuple(_extrapolations(target, profile)),
    )


def _extrapolations(target: Target, profile: Figures) -> Iterable[str]:
    """Yield in what a program lies beyond what was measured."""
    if target.is_hypothetical:
        yield f"{target.title}: no such machine was measured"
    ipus = profile.num_ipus * profile.replicas
    if ipus > MEASURED_IPUS:
        yield f"{ipus} IPUs: the most that was measured is {MEASURED_IPUS}"
    if profile.micro_batch_size == 0:
        yield "inputs without samples: their number depends on data, and programs that do not run give zeros"
    if profile.choices:
        yield "branches and loops whose cycles depend on data"


def read(path: Path) -> Mapping[str, Judged]:
    """Return what a file says of each kind; nothing where there is none."""
    return _read(path, path.stat().st_mtime_ns) if path.is_file() else {}


@cache
def _read(path: Path, changed: int) -> Mapping[str, Judged]:
    with path.open(encoding="utf-8", newline="") as file:
        return {
            row["kind"]: Judged(
                row["kind"], row["source"], int(row["rows"]), float(row["median"]), float(row["p90"]),
                float(row["bias"]),
            ) for row in csv.DictReader(file)
        }


def write(found: Sequence[Judged], path: Path = FILE, *, unseen: Container[str] = ()) -> None:
    """Write what the score card has found; of what the file had, only kinds that were not looked at stay.

    Args:
        found: Kinds.
        path: File.
        unseen: Kinds that the score card has, and that were not looked at.
    """
    before = {name: one for name, one in read(path).items() if name in unseen}
    kept = {**before, **{one.kind: one for one in found}}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([item.name for item in fields(Judged)])
        for one in kept.values():
            writer.writerow([f"{value:.4g}" if isinstance(value, float) else value for value in astuple(one)])


def _words(judged: Judged | None) -> str:
    if judged is None:
        return "no row judges it"
    return (
        f"off by {judged.median:.1%} in the median of {judged.rows} rows, nine of ten by at most {judged.p90:.0%} "
        f"({judged.kind}, {judged.source})"
    )


def _right(judged: Judged) -> str:
    return f"{1 - judged.median:.0%} of {judged.rows} rows are right"


def _line(label: str, value: str) -> str:
    return f"{label:<{LABEL_WIDTH}} {value}"
