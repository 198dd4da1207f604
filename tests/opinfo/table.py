"""Tables of results: one row for each operator, totals by element type, failures and generic targets."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

COUNTED = ("ok", "wrong", "refused", "error", "crash", "hang", "known", "no_type")
APART = ("known", "no_type")
"""Counted as not passed in one figure, left out of the other: differences listed with a reason, types the IPU lacks."""
CORE = "ops of the core ATen set"
ALL = "all ops"
FAILED = ("wrong", "refused", "error", "crash", "hang")


def rate(results: Sequence[dict[str, Any]]) -> str:
    """Return ``passed/counted (per cent)``."""
    passed, counted = counts(results)
    share = f" ({100 * passed / counted:.2f} %)" if counted else ""
    return f"{passed}/{counted}{share}"


def counts(results: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """Return how many samples passed, and how many count."""
    counted = [result for result in results if result["verdict"] in COUNTED]
    return sum(result["verdict"] == "ok" for result in counted), len(counted)


def without_apart(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the results that are neither listed differences nor in want of a type that the IPU lacks."""
    return [result for result in results if result["verdict"] not in APART]


def share(results: Sequence[dict[str, Any]]) -> float:
    """Return which share of the counted samples passed; 1 where none counts."""
    passed, counted = counts(results)
    return passed / counted if counted else 1.0


def by_op(results: Sequence[dict[str, Any]]) -> str:
    """Return one row for each operator: whether it counts, passed and counted samples by element type."""
    rows: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        rows[result["op"]][result["dtype"]].append(result)
    lines = []
    for op, columns in sorted(rows.items()):
        core = "core" if any(result["core"] for column in columns.values() for result in column) else "    "
        cells = "  ".join(f"{dtype} {rate(column)}" for dtype, column in columns.items())
        lines.append(f"{op:<48} {core}  {cells}")
    return "\n".join(lines)


def totals(results: Sequence[dict[str, Any]], *, classified: bool = True) -> str:
    """Return totals by element type, of the operators that count (where that was told) and of all."""
    lines = []
    for title, chosen in sets(results):
        if title != ALL and not classified:
            lines.append(f"{title}: not told apart (--fast)")
            continue
        lines.append(f"{title}: {len({result['op'] for result in chosen})} ops, {_both_rates(chosen)}")
        for dtype, mine in by_dtype(chosen):
            verdicts = Counter(result["verdict"] for result in mine)
            told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()) if verdict != "ok")
            lines.append(f"    {dtype:<8} {_both_rates(mine)}{'; ' if told else ''}{told}")
    return "\n".join(lines)


def sets(results: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the results of the operators that count, and of all, each under its title."""
    return [(CORE, [result for result in results if result["core"]]), (ALL, list(results))]


def by_dtype(results: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the results of each element type."""
    dtypes = dict.fromkeys(result["dtype"] for result in results)
    return [(dtype, [result for result in results if result["dtype"] == dtype]) for dtype in dtypes]


def _both_rates(results: Sequence[dict[str, Any]]) -> str:
    bare = without_apart(results)
    more = "" if len(bare) == len(results) else f", without known differences and types the IPU lacks {rate(bare)}"
    return rate(results) + more


def failures(results: Sequence[dict[str, Any]]) -> str:
    """Return each failing sample with the first line of its error."""
    return "\n".join(
        f"{result['verdict']:<8} {result['op']} {result['dtype']} #{result['index']} {result['sample'][:160]}\n"
        f"         {result['line'][:300]}"
        for result in results if result["verdict"] in FAILED
    )


def generic(results: Sequence[dict[str, Any]]) -> str:
    """Return the ATen overloads that ran through the generic codelet, with samples and operators."""
    samples: Counter[str] = Counter()
    ops: dict[str, set[str]] = defaultdict(set)
    for result in results:
        for target in result["generic"]:
            samples[target] += 1
            ops[target].add(result["op"])
    return "\n".join(
        f"{target:<56} {count:>6} samples of {', '.join(sorted(ops[target])[:4])}"
        for target, count in samples.most_common()
    )
