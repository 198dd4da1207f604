"""The page ``docs/models.md``: what became of every architecture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tests.models.architectures.catalogue import ALL, PACKAGES
from tests.models.architectures.comparison import EAGER_TIMES, Finding

HEADINGS = (
    "model", "parameters", "ops", "generic", "programs", "graph breaks", "forward", "loss", "gradient", "compile s", "",
)


def page(findings: Sequence[Finding], versions: str) -> str:
    """Return the page for these findings, made with these versions of the libraries."""
    num_ops = sum(finding.num_ops for finding in findings)
    generic: Counter[str] = Counter()
    for finding in findings:
        generic.update(finding.generic)
    passed = sum(finding.passed for finding in findings)
    share = 100 * sum(generic.values()) / max(1, num_ops)
    parts = [
        "# Models",
        "Architectures of timm and transformers, small and with random weights, through "
        '`torch.compile(model, backend="ipu")`: a training step with the loss compiled too, then an inference step. '
        f"Written by `make models` ({versions}); do not edit.",
        f"**{passed} of {len(findings)} models match eager; {sum(generic.values())} of {num_ops:,} ops "
        f"({share:.2f} %) run through the generic codelet.**",
        "- *ops*: those of all programs of the model, after canonicalisation; *generic*: those among them that have no "
        "record of their own, and run through ATen.\n"
        "- *forward*, *loss*, *gradient*: error of ours against eager in float64 over the error of eager float32 "
        "(the largest of several runs on data one rounding apart), all tensors together: below 1, ours is nearer. "
        f"Each tensor by itself must be within {EAGER_TIMES:.0f} times eager's error; "
        "`tests/models/architectures/comparison.py` states the rule.\n"
        "- *compile s*: CPU seconds of the first steps less those of the second ones, Dynamo and AOT autograd "
        "included.",
    ]
    for package in PACKAGES:
        of_package = [finding for finding in findings if finding.package == package]
        parts.append(f"## {package}: {len(of_package)} models")
        parts.append("\n".join([_line(HEADINGS), _line(["---", *["---:"] * 9, "---"]), *map(_row, of_package)]))
    found = {finding.name for finding in findings}
    rest = [architecture.name for architecture in ALL if architecture.name not in found]
    if rest:
        parts += ["## Not compared yet", ", ".join(rest) + "."]
    if generic:
        rows = [_line((f"`{target}`", str(count))) for target, count in sorted(generic.items())]
        parts += ["## Generic ops", "\n".join([_line(("op", "calls")), _line(("---", "---:")), *rows])]
    return "\n\n".join(parts) + "\n"


def _row(finding: Finding) -> str:
    verdict = "" if finding.passed else finding.failure or f"{len(finding.beyond)} tensors beyond: {finding.beyond[0]}"
    return _line([
        finding.name, f"{finding.num_parameters:,}", str(finding.num_ops), str(sum(finding.generic.values())),
        str(finding.programs), str(finding.graph_breaks), *_errors(finding.errors), f"{finding.compile_s:.1f}", verdict,
    ])


def _errors(errors: Mapping[str, float]) -> list[str]:
    return [f"{errors[kind]:.2f}" if kind in errors else "" for kind in ("forward", "loss", "gradient")]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
