"""The results of a run as a page of documentation; nothing in it is written by hand."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from tests.opinfo import table
from tests.opinfo.known import Difference
from tests.opinfo.samples import ALL_DTYPES, IN_PLACE, OPS, cases

HEAD = """# Operators compared with eager PyTorch

Written by `make opinfo OPINFO_ARGS="{arguments}"`, torch {torch}. {samples} of each operator of PyTorch's OpInfo
database and element type are compiled with `backend="ipu"`, run forward and (floating types) backward, and compared
with eager PyTorch: values, gradients, element types and shapes, at the tolerances of `torch.testing.assert_close`.

An operator is of the core ATen set when the graphs that torch makes of its samples with
`torch._decomp.core_aten_decompositions()` hold only ops tagged `torch.Tag.core`. *Passed* is the share of all samples
that eager itself runs and torch can trace; *of what the IPU can hold* leaves out samples in element types or layouts
that the IPU lacks (complex, sparse) and the differences listed below.
"""


def page(
    results: Sequence[dict[str, Any]], known: Sequence[Difference], *, most: int | None, arguments: Sequence[str],
) -> str:
    """Return the page.

    Args:
        results: What came of the samples, known differences marked.
        known: The list of known differences.
        most: Samples of each operator and type; None for all.
        arguments: The command line, as it was given.
    """
    samples = "All samples" if most is None else f"At most {most} samples, evenly spread,"
    head = HEAD.format(arguments=" ".join(arguments), torch=torch.__version__, samples=samples)
    sections = [head, _figures(results), _listed(results, known)]
    sections.append(_not_run(results))
    for verdicts, title, words in (
        (table.FAILED, "Samples that fail", "Defects: each is to be mended, or listed above with its reason."),
        (("no_type",), "Types that the IPU lacks", "Refused at compile time, with the line and a remedy."),
        (("breaks",), "No single graph", "torch traces these with no backend under `fullgraph=True` (their results' "
         "shapes depend on values, or they ask for a value on the host); with graph breaks they agree with eager."),
        (("torchs",), "Traces that differ", "The graphs that torch itself traces, run by eager, differ from eager."),
    ):
        sections.append(_named(results, verdicts, title, words))
    return "\n".join(section for section in sections if section)


def _figures(results: Sequence[dict[str, Any]]) -> str:
    lines = [
        "## Figures", "", "| operators | element type | operators run | passed | of what the IPU can hold |",
        "|---|---|---:|---:|---:|",
    ]
    for title, chosen in table.sets(results):
        for dtype, mine in [*table.by_dtype(chosen), ("all", chosen)]:
            num_ops = len({result["op"] for result in mine})
            lines.append(
                f"| {title} | {dtype} | {num_ops} | {table.rate(mine)} | {table.rate(table.without_apart(mine))} |"
            )
    return "\n".join([*lines, ""])


def _listed(results: Sequence[dict[str, Any]], known: Sequence[Difference]) -> str:
    """Return the known differences, those with the same reason together."""
    counted = Counter(result["op"] for result in results if result["verdict"] == "known")
    by_reason: dict[str, list[str]] = defaultdict(list)
    for entry in known:
        dtypes = f" ({', '.join(entry.dtypes)})" if entry.dtypes else ""
        by_reason[entry.reason].append(f"`{entry.op}`{dtypes}")
    lines = [
        "## Known differences", "", f"{sum(counted.values())} samples of {len(counted)} operators.", "",
        *(f"- {', '.join(ops)}: {reason}." for reason, ops in by_reason.items()),
    ]
    return "\n".join([*lines, ""])


def _not_run(results: Sequence[dict[str, Any]]) -> str:
    """Return the operators that the run did not come to, and those that eager itself lacks there."""
    offered = {case.op for case in cases(lambda op: True, list(ALL_DTYPES))}
    lines = []
    if lacking := sorted(set(OPS) - offered):
        title = "## Not offered in these element types on the CPU"
        lines += [title, "", f"{len(lacking)} operators: {_listing(lacking)}.", ""]
    if rest := sorted(offered - {result["op"].removesuffix(IN_PLACE) for result in results}):
        words = f"The run ended before it came to {len(rest)} of {len(offered)} operators, of which no figure speaks"
        lines += ["## Not run", "", f"{words}: {_listing(rest)}.", ""]
    return "\n".join(lines)


def _listing(ops: Iterable[str]) -> str:
    return ", ".join(f"`{op}`" for op in ops)


def _named(results: Sequence[dict[str, Any]], verdicts: Iterable[str], title: str, words: str) -> str:
    chosen = Counter(result["op"] for result in results if result["verdict"] in tuple(verdicts))
    if not chosen:
        return ""
    ops = ", ".join(f"`{op}` ({count})" for op, count in sorted(chosen.items()))
    return "\n".join([f"## {title}", "", words, "", f"{sum(chosen.values())} samples: {ops}", ""])
