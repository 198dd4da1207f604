"""What each of two processes runs: cases side by side, and a report of what became of them."""

from __future__ import annotations

import importlib
import json
import time
import traceback
import warnings

import torch
import torch.distributed as dist


def run_cases(rank: int, size: int, told: str) -> dict[str, dict[str, object]]:
    """Run cases of modules.

    Args:
        rank: Of this process.
        size: How many there are.
        told: Names of modules, and names of the cases, as JSON.

    Returns:
        For each case how long it took, and what went wrong on any process, if anything did.
    """
    warnings.simplefilter("ignore")
    found: dict[str, dict[str, object]] = {}
    modules, names = json.loads(told)
    cases = [case for module in modules for case in importlib.import_module(module).CASES if case.__name__ in names]
    for case in cases:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        began, wrong = time.perf_counter(), ""
        try:
            case()
        except Exception:
            wrong = traceback.format_exc()
        texts = [""] * size
        dist.all_gather_object(texts, wrong)
        said = "\n".join(f"rank {number}: {text}" for number, text in enumerate(texts) if text)
        seconds = time.perf_counter() - began
        if rank == 0:
            print(f"{case.__name__:48} {seconds:5.1f} s  {'failed' if said else 'ok'}", flush=True)
        found[case.__name__] = {"seconds": seconds, "wrong": said}
    return found
