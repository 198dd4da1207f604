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
from torchipu.errors import CaptureError, IpuError, OptionsError, OutOfTileMemoryError
from torchipu.estimation.workload import arguments_of
from torchipu.options import Options, given_or_default
from torchipu.partition.door import proposal_of
from torchipu.partition.proposal import Proposal
from torchipu.report import Profile, profile_of
from torchipu.report.figures import rate_words
from torchipu.report.trust import Trust, notes_of, trust_in
from torchipu.target import lookup_target

_WIDE = 170  # columns of a table that is printed to no terminal
MOST_TRIALS = 16
"""Numbers of IPUs a replica that are tried: all that matter up to 64 IPUs, which have 15."""


@dataclass(frozen=True, slots=True)
class Split:
    """A way to use a system.

    Attributes:
        ipus: Of a replica, at most.
        replicas: How many there are, of all processes.
        left_over: IPUs of the system that no replica has.
        proposal: Stages and recomputation; None where nothing fits.
        profile: What they take of the machine; None where nothing fits.
        trust: How far the score card says to trust that; None where nothing fits.
        refusal: Why nothing does, in a line.
        lacking_bytes: Where nothing fits, what the fullest tile of the best try lacks.
    """

    ipus: int
    replicas: int
    left_over: int
    proposal: Proposal | None = None
    profile: Profile | None = None
    trust: Trust | None = None
    refusal: str = ""
    lacking_bytes: int = 0

    @property
    def samples_per_second(self) -> float:
        """Samples of all replicas a second; 0 where nothing fits."""
        return 0.0 if self.profile is None else self.profile.samples_per_second

    def against(self, best: Split | None) -> str:
        """Return why another split is better, or that none is.

        Args:
            best: The fastest that fits, if any does.
        """
        if self.profile is None:
            return f"too full by {self.lacking_bytes:,} B a tile" if self.lacking_bytes else self.refusal
        if best is None or best is self:
            return "best"
        return f"slower by {best.samples_per_second / self.samples_per_second - 1:.1%}"


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
        names = ("replicas", "IPUs each", "left over", "stages", "micro-batches", "samples/s", "p90", "fullest tile")
        for name in names:
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("recomputation", overflow="fold")
        table.add_column("verdict", overflow="fold")
        for row in self.rows:
            table.add_row(*_cells(row, self.best))
        table.caption = notes_of(row.trust for row in self.rows if row.trust is not None)
        table.caption_justify = "left"
        return table

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=_WIDE, color_system=None)
        console.print(self.table())
        assert isinstance(console.file, io.StringIO)
        return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def best_split(
    model: torch.nn.Module, example: Any, options: Options | None = None, *, num_ipus: int | None = None,
    instances: int = 1, optimizer: torch.optim.Optimizer | None = None, training: bool | None = None,
) -> Splits:
    """Weigh replicas against stages: for each number of IPUs that a replica may have, what `autopipeline` proposes.

    An update has as many micro-batches in each replica as ``gradient_accumulation`` says, or as fill the pipeline. The
    model is captured once, and its weights need no values.

    Of the numbers of IPUs that leave a system equally many replicas only the largest is tried, since a proposal uses
    fewer IPUs where that is faster: of 16 these are 1, 2, 3, 4, 5, 8 and 16. That is about twice the square root of a
    system's IPUs, 15 for 64. Of larger systems those `MOST_TRIALS` that leave fewest IPUs over are tried: each takes as
    long as an `autopipeline`, and one that leaves IPUs idle rarely wins. A replica of more IPUs than the model has
    modules is not tried either, since it could not use them.

    Args:
        model: A module without blocks; it is left as it is until a proposal is accepted.
        example: Inputs of one micro-batch: a tensor, a tuple of arguments, or a dict of keyword arguments.
        options: Target and everything else; ``replicas`` is what is looked for.
        num_ipus: IPUs that may be used, by all processes together; None for all of the target.
        instances: Processes, as poprun starts them: each has an equal number of whole replicas. Sums over replicas are
            counted by the links that lie between their IPUs, of whichever process they are.
        optimizer: What trains the model; None stands for plain SGD.
        training: Whether to place a training step; None takes the mode that the model is in.

    Returns:
        The table; ``best.proposal.accept()`` takes the best, with the replicas of one process.

    Raises:
        CaptureError: The model cannot be captured as one graph.
        OptionsError: ``num_ipus`` is no number of IPUs of the target, ``instances`` no number of processes for them, or
            the options refuse every split.
    """
    given = given_or_default(options)
    target = lookup_target(given.target)
    most = target.num_ipus if num_ipus is None else num_ipus
    _check_number("num_ipus", most, target.num_ipus, f"the {target.num_ipus} of {target.name}")
    _check_number("instances", instances, most, f"the {most} IPUs that may be used")
    arguments, keywords = arguments_of(example)
    held: list[Captured] = []

    def once(capture: Callable[[], Captured]) -> Captured:
        if not held:
            held.append(captured_once(model, capture))
        return held[0]

    rows, errors = [], []
    for ipus in ipus_to_try(most // instances, _modules(model)):
        replicas = most // instances // ipus * instances
        try:
            proposal = _proposed(model, keywords or arguments, ipus, optimizer, given, training, once, replicas)
        except CaptureError:
            raise
        except IpuError as error:
            errors.append(error)
            rows.append(_refused(ipus, replicas, most, error))
        else:
            rows.append(_judged(proposal, ipus, replicas, most))
            _hand_on(proposal, given, replicas // instances)
    if len(errors) == len(rows) and not any(isinstance(error, OutOfTileMemoryError) for error in errors):
        raise errors[0]
    return Splits(target.title, tuple(sorted(rows, key=lambda row: (-row.samples_per_second, row.lacking_bytes))))


def ipus_to_try(ipus: int, most: int) -> Sequence[int]:
    """Return the numbers of IPUs a replica that are worth a try: of those that make equally many replicas the largest.

    Args:
        ipus: That the replicas of a process share.
        most: That a replica can use.
    """
    counts = sorted({min(ipus // (ipus // count), most) for count in range(1, min(ipus, most) + 1)})
    chosen = sorted(counts, key=lambda count: (ipus % count, count))[:MOST_TRIALS]
    return sorted(chosen)


def _check_number(name: str, value: Any, most: int, words: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise OptionsError(
            f"{name} must be a whole number from 1 to {words}, got {value!r}", option=name, value=value,
            allowed=f"1 to {most}",
        )


def _modules(model: torch.nn.Module) -> int:
    """Return how many modules could each be a stage at most."""
    return max(1, sum(1 for _ in model.modules())) if isinstance(model, torch.nn.Module) else 1


def _proposed(
    model: torch.nn.Module, example: Any, ipus: int, optimizer: torch.optim.Optimizer | None, given: Options,
    training: bool | None, capturing: Callable[[Callable[[], Captured]], Captured], replicas: int,
) -> Proposal:
    # A collective takes what the links between its IPUs allow: replicas of several processes cost what those of one do.
    options = replace(given, replicas=replicas, process_group="alone", allow_out_of_memory=False)
    return proposal_of(model, example, ipus, optimizer, options, training, capturing)


def _refused(ipus: int, replicas: int, most: int, error: IpuError) -> Split:
    lacking = error.needed_bytes - error.available_bytes if isinstance(error, OutOfTileMemoryError) else 0
    return Split(
        ipus, replicas, most - ipus * replicas, refusal=str(error).partition("\n")[0], lacking_bytes=max(0, lacking),
    )


def _judged(proposal: Proposal, ipus: int, replicas: int, most: int) -> Split:
    compiled = proposal.trial.compiled
    profile = profile_of(compiled.executable, compiled.cost, compiled.target, compiled.options.io_tiles)
    trust = trust_in(compiled.cost, lookup_target(compiled.options.target), profile)
    return Split(ipus, replicas, most - ipus * replicas, proposal, profile, trust)


def _hand_on(proposal: Proposal, given: Options, replicas: int) -> None:
    """Let a proposal have what the user's own options say of processes, and the replicas of one of them."""
    proposal.trial = replace(proposal.trial, options=replace(
        proposal.trial.options, replicas=replicas, process_group=given.process_group,
        allow_out_of_memory=given.allow_out_of_memory,
    ))


def _cells(row: Split, best: Split | None) -> tuple[str, ...]:
    counts = (str(row.replicas), str(row.ipus), str(row.left_over))
    verdict = row.against(best)
    if row.proposal is None or row.profile is None:
        return (*counts, "", "", "", "", "too full" if row.lacking_bytes else "refused", "", verdict)
    share = row.profile.fullest_tile.total_bytes / row.profile.tile_memory_bytes
    return (
        *counts, str(len(row.proposal.stages)), str(row.proposal.trial.micro_batches),
        rate_words(row.samples_per_second),
        "?" if row.trust is None else row.trust.rate_cell, f"{share:.0%}", row.proposal.trial.words, verdict,
    )
