"""The process that runs samples and tells of each when it begins and when it ended."""

from __future__ import annotations

import gc
import logging
import os
import time
import warnings
from collections.abc import Set
from multiprocessing.connection import Connection
from typing import Any

import torch

from tests.opinfo.core_set import is_core
from tests.opinfo.doors import is_through_dynamo
from tests.opinfo.judge import judge
from tests.opinfo.pool import Settings
from tests.opinfo.samples import Call, Case, samples_of, spread


def work(pipe: Connection, settings: Settings, environment: dict[str, str]) -> None:
    """Run cases until the pipe closes."""
    os.environ.update(environment)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)  # Dynamo logs each graph break
    gc.collect()
    gc.freeze()  # nobody looks through what has been imported: to do so after each case took longer than its samples
    while True:
        try:
            case, first, ran = pipe.recv()
        except EOFError:
            return
        for result in results_of(case, settings, first, lambda index, core: pipe.send(("begin", (index, core))), ran):
            pipe.send(("end", result))
        pipe.send(("done", None))
        gc.collect()


def results_of(
    case: Case, settings: Settings, first: int = 0, begin: Any = lambda index, core: None, ran: Set[int] = frozenset(),
) -> Any:
    """Yield the results of a case's samples from ``first`` on less those that ran; call ``begin`` before each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        core = settings.classify and is_core(case.op)
        samples = samples_of(case)
    for index in spread(len(samples), settings.most):
        if index < first or index in ran or (settings.samples is not None and index not in settings.samples):
            continue
        begin(index, core)
        call = Call(case, samples[index])
        dynamo = is_through_dynamo(case, index, settings.dynamo)
        start = time.perf_counter()
        verdict = judge(case, call, dynamo=dynamo)
        yield {
            "op": case.name, "dtype": case.dtype, "index": index, "verdict": verdict.verdict, "line": verdict.line,
            "generic": verdict.generic, "core": core, "seconds": time.perf_counter() - start,
            "sample": call.describe()[:400], "door": "dynamo" if dynamo else "direct",
        }
