"""The page of ``torchipu poptorch``: what PopTorch has, and what of it is here, as Markdown."""

from __future__ import annotations

import tomllib
from collections import Counter
from importlib import resources

STATUSES = {
    "there": "as in PopTorch",
    "partly": "something is different or lacking: the last column says what",
    "accepted": "taken and checked, without effect on values, cycles and memory",
    "missing": "no such name",
}

_OPENING = """\
# PopTorch

Written by `python -m torchipu poptorch > docs/poptorch.md`; do not edit: the table is
`torchipu/poptorch/compatibility.toml`. It compares `import poptorch` with PopTorch 3.3, name by name. Names begin
behind `poptorch.`; arguments stand in brackets, environment variables behind a `$`.

"""
TESTS = "What of PopTorch's own tests cannot pass"
"""The table that holds kinds of test and reasons, and no names."""

_OPERATORS = """\
## Operators of PyTorch

Those that have a record are in [operators.md](operators.md); the others run through ATen, with estimated cycles. What
PopTorch refuses by an error of its own, such as an LSTM of several layers or a loss with weights, is refused here in
the same words; `torch.compile(model, backend="ipu")` and `torchipu.TrainStep` take it.
"""


def compatibility() -> dict[str, dict[str, tuple[str, str]]]:
    """Return status and difference of each name, section by section.

    Raises:
        ValueError: A status is none of `STATUSES`.
    """
    return {
        title: {name: _parted(name, entry) for name, entry in names.items()}
        for title, names in _tables().items() if title != TESTS
    }


def failing_tests() -> dict[str, str]:
    """Return why tests of PopTorch's own cannot pass here, by what they are about."""
    return dict(_tables()[TESTS])


def _tables() -> dict[str, dict[str, str]]:
    text = resources.files("torchipu.poptorch").joinpath("compatibility.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _parted(name: str, entry: str) -> tuple[str, str]:
    status, _, difference = entry.partition(": ")
    if status not in STATUSES:
        raise ValueError(f"{name}: {status!r} is none of {', '.join(STATUSES)}")
    return status, difference


def page() -> str:
    """Return the page, one table for each section."""
    sections = compatibility()
    counts = Counter(status for names in sections.values() for status, _ in names.values())
    legend = "\n".join(f"- *{status}* ({counts[status]}): {meaning}." for status, meaning in STATUSES.items())
    parts = [f"{_OPENING}{legend}\n"]
    for title, names in sections.items():
        rows = ["| name | status | difference |", "| --- | --- | --- |"]
        rows += [f"| `{name}` | {status} | {difference} |" for name, (status, difference) in names.items()]
        parts.append(f"## {title}\n\n" + "\n".join(rows) + "\n")
    reasons = [f"| {subject} | {reason} |" for subject, reason in failing_tests().items()]
    tests = "\n".join([f"## {TESTS}\n", "| tests of | reason |", "| --- | --- |", *reasons])
    return "\n".join([*parts, _OPERATORS, f"{tests}\n"])
