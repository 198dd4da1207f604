"""``torchipu.best_split``: how many replicas of how many IPUs each, and which stages, use a system best."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from torchipu.capture.captured import Captured
from torchipu.capture.repeated_layers import captured_once
from torchipu.errors import IpuError, OptionsError, OutOfTileMemoryError
from torchipu.estimation.workload import arguments_of
from torchipu.options import Options
from torchipu.partition.door import proposal_of
from torchipu.partition.proposal import Proposal
from torchipu.report import Profile, profile_of
from torchipu.target import lookup_target


@dataclass(frozen=True, slots=True)
class Split:
    """A way to use a system.

    Attributes:
        ipus: Of a replica, at most.
        replicas: How many there are.
        proposal: Stages and recomputation; None where nothing fits.
        profile: What they take of the machine; None where nothing fits.
        refusal: Why nothing does, in a line.
    """

    ipus: int
    replicas: int
    proposal: Proposal | None
    profile: Profile | None
    refusal: str = ""

    @property
    def samples_per_second(self) -> float:
        """Samples of all replicas a second; 0 where nothing fits."""
        return 0.0 if self.profile is None else self.profile.samples_per_second


@dataclass(frozen=True, slots=True)
class Splits:
    """Ways to use a system, the fastest first.

    Attributes:
        title: Of the system.
        rows: All that were tried.
    """

    title: str
    rows: tuple[Split, ...]

    @property
    def best(self) -> Split | None:
        """The fastest that fits, if any does."""
        first = self.rows[0] if self.rows else None
        return first if first is not None and first.proposal is not None else None

    def table(self) -> Table:
        """Return the table for a terminal."""
        table = Table(title=f"{self.title}: best split first, modelled", title_justify="left", box=SIMPLE_HEAD)
        for name in ("replicas", "IPUs each", "stages", "micro-batches", "samples/s", "fullest tile"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("recomputation", overflow="fold")
        for row in self.rows:
            table.add_row(*_cells(row))
        return table

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=140, color_system=None)
        console.print(self.table())
        assert isinstance(console.file, io.StringIO)
        return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def best_split(
    model: torch.nn.Module, example: Any, options: Options | None = None, *, num_ipus: int | None = None,
    optimizer: torch.optim.Optimizer | None = None, training: bool | None = None,
) -> Splits:
    """Weigh replicas against stages: for each power of two of IPUs a replica, what `autopipeline` proposes.

    An update has as many micro-batches in each replica as ``gradient_accumulation`` says, or as fill the pipeline. The
    model is captured once, and its weights need no values.

    Args:
        model: A module without blocks; it is left as it is until a proposal is accepted.
        example: Inputs of one micro-batch: a tensor, a tuple of arguments, or a dict of keyword arguments.
        options: Target and everything else; ``replicas`` is what is looked for.
        num_ipus: IPUs that may be used; None for all of the target.
        optimizer: What trains the model; None stands for plain SGD.
        training: Whether to place a training step; None takes the mode that the model is in.

    Returns:
        The table; ``best.proposal.accept()`` takes the best.

    Raises:
        CaptureError: The model cannot be captured as one graph.
        OptionsError: ``num_ipus`` is no number of IPUs of the target.
    """
    given = options or Options()
    target = lookup_target(given.target)
    most = target.num_ipus if num_ipus is None else num_ipus
    if not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= target.num_ipus:
        raise OptionsError(
            f"num_ipus must be a whole number from 1 to the {target.num_ipus} of {target.name}, got {num_ipus!r}",
            option="num_ipus", value=num_ipus, allowed=f"1 to {target.num_ipus}",
        )
    arguments, keywords = arguments_of(example)
    held: list[Captured] = []

    def once(capture: Callable[[], Captured]) -> Captured:
        if not held:
            held.append(captured_once(model, capture))
        return held[0]

    rows = []
    for ipus in _counts(most):
        chosen = replace(given, replicas=most // ipus, process_group="alone", allow_out_of_memory=False)
        rows.append(_tried(model, keywords or arguments, ipus, optimizer, chosen, training, once))
    return Splits(target.title, tuple(sorted(rows, key=lambda row: -row.samples_per_second)))


def _counts(most: int) -> Sequence[int]:
    """Return powers of two up to a number."""
    return [2**power for power in range(most.bit_length())]


def _tried(
    model: torch.nn.Module, example: Any, ipus: int, optimizer: torch.optim.Optimizer | None, options: Options,
    training: bool | None, capturing: Callable[[Callable[[], Captured]], Captured],
) -> Split:
    try:
        proposal = proposal_of(model, example, ipus, optimizer, options, training, capturing)
    except OutOfTileMemoryError as error:
        return Split(ipus, options.replicas, None, None, _line_of(error))
    compiled = proposal.trial.compiled
    return Split(ipus, options.replicas, proposal, profile_of(
        compiled.executable, compiled.cost, compiled.target, compiled.options.io_tiles,
    ))


def _line_of(error: IpuError) -> str:
    return str(error).partition("\n")[0]


def _cells(row: Split) -> tuple[str, ...]:
    if row.proposal is None or row.profile is None:
        return (str(row.replicas), str(row.ipus), "", "", "", "too full", row.refusal)
    share = row.profile.fullest_tile.total_bytes / row.profile.tile_memory_bytes
    return (
        str(row.replicas), str(row.ipus), str(len(row.proposal.stages)), str(row.proposal.trial.micro_batches),
        f"{row.samples_per_second:,.0f}", f"{share:.0%}", row.proposal.trial.words,
    )
