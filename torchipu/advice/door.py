"""A report with advice: rules look at it, and changes nearby are compiled, within a time."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

from torchipu.advice.changes import Change
from torchipu.advice.nearby import nearby
from torchipu.advice.rules import RULES
from torchipu.advice.situation import Situation, told
from torchipu.advice.trials import AS_IT_IS, Trials, Tried, subject_of, tried_of
from torchipu.compiler import Compiled
from torchipu.report.facts import rows
from torchipu.report.facts.gather import Facts
from torchipu.report.recorder import Recorded
from torchipu.target import lookup_target

WHAT_IF_SECONDS = 3.0
"""For advice and alternatives of one program, unless asked for more."""
LEAST_TRIED = 6
"""Changes that are tried even if that takes longer, where each is quick; none where less time was asked for."""
Advised = tuple[tuple[rows.Fact, ...], dict[str, tuple[NamedTuple, ...]]]
"""What advice adds to a report: arguments of `Facts.extended`."""


def advised(recorded: Recorded, seconds: float = WHAT_IF_SECONDS) -> Facts:
    """Return what a report tells of a program, with advice and alternatives.

    The fact ``what_if_seconds`` is the time that was given, and ``what_if_left_out`` names what it did not suffice for.

    Args:
        recorded: The program.
        seconds: For compiling changes; 0 for neither advice nor alternatives.
    """
    facts = recorded.facts()
    compiled = recorded.program
    if seconds <= 0 or not isinstance(compiled, Compiled):
        return facts.extended([rows.Fact("what_if_seconds", "0", "s", "exact")])
    owner = recorded.owner
    subject = subject_of(
        compiled, lookup_target(compiled.options.target), None if owner is None else owner.graph_again,
        0.0 if owner is None else owner.capture_seconds,
    )
    least = LEAST_TRIED if seconds >= WHAT_IF_SECONDS else 0
    trials = Trials(subject, tried_of(AS_IT_IS, compiled, compiled.executable), seconds, least)
    situation = Situation(facts, trials)
    advice = told((name, found) for name, rule in RULES.items() for found in rule(situation))
    for change in nearby(subject, trials.base):
        trials.of(change)
    said = {"what_if_seconds": seconds, "what_if_left_out": [change.words for change in trials.left_out]}
    return facts.extended(
        [rows.Fact(name, json.dumps(value), "s" * (name == "what_if_seconds"), "exact")
         for name, value in said.items()],
        {"advice": advice, "alternatives": _alternatives(trials)},
    )


def advice_in(facts: Facts) -> Advised:
    """Return what `advised` has added to a report, for a later report of the same program."""
    told = tuple(one for one in facts.tables["facts"] if isinstance(one, rows.Fact) and one.name.startswith("what_if_"))
    return told, {name: facts.tables[name] for name in ("advice", "alternatives")}


def _alternatives(trials: Trials) -> tuple[rows.Alternative, ...]:
    """Return the program and its changes: what fits first, the fastest first."""
    order = sorted(
        trials.found, key=lambda one: (bool(one.refusal), not one.fits, -one.samples_per_second),
    )
    return tuple(_alternative(number, one) for number, one in enumerate((trials.base, *order)))


def _alternative(number: int, tried: Tried) -> rows.Alternative:
    return rows.Alternative(
        number, tried.change.words, tried.change.option, tried.fits, tried.fullest_bytes, tried.cycles,
        tried.samples_per_second, tried.refusal or _command(tried.change),
    )


def _command(change: Change) -> str:
    """Return the command that predicts a change of the script that runs; empty where none does."""
    if not change.flags:
        return ""
    script = Path(sys.argv[0]).name if sys.argv and sys.argv[0].endswith(".py") else "script.py"
    return f"torchipu estimate {change.flags} {script}"
