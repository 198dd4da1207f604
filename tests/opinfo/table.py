"""Tables of results: one row for each operator, totals by element type, failures and generic targets."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

COUNTED = ("ok", "wrong", "refused", "error", "crash", "hang", "known", "no_type")
FAILED = ("wrong", "refused", "error", "crash", "hang")


def rate(results: Sequence[dict[str, Any]]) -> str:
    """Return ``passed/counted (per cent)``."""
    counted = [result for result in results if result["verdict"] in COUNTED]
    passed = sum(result["verdict"] == "ok" for result in counted)
    share = f" ({100 * passed / len(counted):.2f} %)" if counted else ""
    return f"{passed}/{len(counted)}{share}"


def share(results: Sequence[dict[str, Any]]) -> float:
    """Return which share of the counted samples passed; 1 where none counts."""
    counted = [result for result in results if result["verdict"] in COUNTED]
    return sum(result["verdict"] == "ok" for result in counted) / len(counted) if counted else 1.0


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


def totals(results: Sequence[dict[str, Any]]) -> str:
    """Return totals by element type, of the operators that count and of all."""
    lines = []
    for title, chosen in (
        ("ops of the core ATen set", [result for result in results if result["core"]]), ("all ops", results),
    ):
        lines.append(f"{title}: {len({result['op'] for result in chosen})} ops, {rate(chosen)}")
        for dtype in dict.fromkeys(result["dtype"] for result in chosen):
            mine = [result for result in chosen if result["dtype"] == dtype]
            verdicts = Counter(result["verdict"] for result in mine)
            told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()) if verdict != "ok")
            lines.append(f"    {dtype:<8} {rate(mine)}{'; ' if told else ''}{told}")
    return "\n".join(lines)


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
