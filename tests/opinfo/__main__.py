"""``python -m tests.opinfo``: run samples of OpInfo through the backend and print what fails."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.opinfo import document, known, table
from tests.opinfo.core_set import is_core
from tests.opinfo.pool import Settings, run_cases
from tests.opinfo.samples import ALL_DTYPES, DTYPES, IN_PLACE, Case, cases

LEAST_SHARE = 0.99
"""Share of the samples of the core ATen set's ops that must pass."""


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.opinfo", description=__doc__)
    parser.add_argument("--ops", default="", help="regular expression that the whole name of an operator must match")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="element types, by commas")
    parser.add_argument("--max-samples", type=int, default=None, help="samples of each operator and type, spread")
    parser.add_argument("--samples", default=None, help="numbers of samples, by commas: only these")
    parser.add_argument("--in-place", action="store_true", help="run in-place variants too")
    parser.add_argument("--shard", default="1/1", help="k/n: the k-th of n parts")
    parser.add_argument("--workers", type=int, default=1, help="worker processes")
    parser.add_argument("--dynamo", type=float, default=0.03, help="fraction that goes through torch.compile")
    parser.add_argument("--seconds", type=float, default=30.0, help="time limit of a sample (processor time)")
    parser.add_argument("--write", type=Path, default=None, help="folder for results.jsonl and table.txt")
    parser.add_argument("--resume", action="store_true", help="go on with what an earlier run wrote to that folder")
    parser.add_argument("--read", type=Path, nargs="+", help="tell of earlier runs by their results.jsonl; run nothing")
    parser.add_argument("--document", type=Path, default=None, help="file for the page of figures and differences")
    parser.add_argument("--fast", action="store_true", help="do not tell which operators count (saves their tracing)")
    parser.add_argument("--quiet", action="store_true", help="print totals only")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    """Run; return 1 where a sample crashes or hangs, an entry is stale, or too few samples pass."""
    options = arguments(given)
    os.environ.setdefault("TORCHIPU_VERIFY", "1")
    results = read(options.read) if options.read else run(options)
    entries = known.read()
    known.mark(results, entries)
    is_complete = options.max_samples is None and options.samples is None and options.shard == "1/1"
    stale = known.stale(results, entries, complete=is_complete and not options.read)
    results.sort(key=lambda result: (result["op"], list(ALL_DTYPES).index(result["dtype"]), result["index"]))
    totals = table.totals(results, classified=not options.fast)
    parts = [table.by_op(results), table.failures(results), f"run by the generic codelet:\n{table.generic(results)}"]
    text = "\n\n".join([*parts, totals])
    if options.write is not None:
        options.write.mkdir(parents=True, exist_ok=True)
        (options.write / "table.txt").write_text(text + "\n", encoding="utf-8")
    if options.document is not None:
        read_from = {str(file): file.name for file in options.read or ()}
        told = [read_from.get(word, word) for word in (sys.argv[1:] if given is None else given)]
        page = document.page(results, entries, most=options.max_samples, arguments=told)
        options.document.write_text(page, encoding="utf-8")
    print(totals if options.quiet else text)
    for entry in stale:
        print(f"stale: the known difference of {entry.op} {entry.dtypes or ''} {entry.samples or ''} no longer differs")
    is_lost = any(result["verdict"] in ("crash", "hang") for result in results)
    core = table.without_apart([result for result in results if result["core"]])
    return int(is_lost or bool(stale) or table.share(core) < LEAST_SHARE)


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the samples that are asked for, and write each result at once where a folder is given."""
    pattern = re.compile(options.ops or ".*")
    shard, num_shards = (int(part) for part in options.shard.split("/"))
    chosen = cases(pattern.fullmatch, options.dtypes.split(","), in_place=options.in_place)[shard - 1 :: num_shards]
    samples = None if options.samples is None else tuple(int(number) for number in options.samples.split(","))
    settings = Settings(
        options.max_samples, options.dynamo, options.seconds, samples=samples, classify=not options.fast,
    )
    if options.write is None:
        return list(run_cases(chosen, settings, options.workers))
    options.write.mkdir(parents=True, exist_ok=True)
    written = options.write / "results.jsonl"
    results = read([written], classify=not options.fast) if options.resume and written.exists() else []
    ran: dict[Case, set[int]] = defaultdict(set)
    for result in results:
        op = result["op"].removesuffix(IN_PLACE)
        ran[Case(op, result["dtype"], in_place=op != result["op"])].add(result["index"])
    most = options.max_samples
    chosen = [case for case in chosen if most is None or len(ran[case]) < most]  # without listing the samples again
    with written.open("a" if options.resume else "w", encoding="utf-8") as file:
        for result in run_cases(chosen, settings, options.workers, ran=ran):
            results.append(result)
            file.write(json.dumps(result) + "\n")
            file.flush()
    return results


def read(files: Iterable[Path], *, classify: bool = True) -> list[dict[str, Any]]:
    """Read what earlier runs wrote, the latest result of each sample, and tell which operators count."""
    latest: dict[tuple[str, str, int], dict[str, Any]] = {}
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            result = json.loads(line)
            latest[result["op"], result["dtype"], result["index"]] = result
    for result in latest.values():
        result["core"] = classify and is_core(result["op"].removesuffix(IN_PLACE))
    return list(latest.values())


if __name__ == "__main__":
    sys.exit(main())
