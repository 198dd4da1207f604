"""Which operators PyTorch decomposes to the core ATen set, told from the graphs of their samples."""

from __future__ import annotations

import functools
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch._functorch.aot_autograd import aot_function, make_boxed_func

from tests.opinfo.doors import flat
from tests.opinfo.samples import DTYPES, OPS, Call, Case, samples_of, spread, takes_gradients

TRACED_SAMPLES = 4
CACHE = Path(__file__).parents[2] / "build" / "opinfo" / "core"


@functools.cache
def others_than_core(op: str) -> frozenset[str] | None:
    """Return the overloads outside the core set in the graphs of an operator, or None if torch cannot trace it.

    What was found is kept in files: it depends on the version of torch alone, and costs as much as running samples.
    """
    file = CACHE / torch.__version__ / f"{op}.json"
    if file.exists():
        kept = json.loads(file.read_text(encoding="utf-8"))
    else:
        others = _trace(op)
        kept = None if others is None else sorted(others)
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(kept), encoding="utf-8")
        part.replace(file)
    return None if kept is None else frozenset(kept)


def _trace(op: str) -> set[str] | None:
    dtype = next((name for name in DTYPES if OPS[op].supports_dtype(DTYPES[name], "cpu")), None)
    if dtype is None:
        return None
    case = Case(op, dtype)
    samples = samples_of(case)
    found: set[str] = set()
    traced = 0
    for index in spread(len(samples), TRACED_SAMPLES):
        call = Call(case, samples[index])
        try:
            graphs = _graphs(call, takes_gradients(case))
        except Exception:  # whatever stops torch from tracing the sample
            continue
        traced += 1
        for graph in graphs:
            for node in graph.graph.nodes:
                if isinstance(node.target, torch._ops.OpOverload):
                    if torch.Tag.core not in node.target.tags:
                        found.add(str(node.target))
                elif isinstance(node.target, torch._ops.HigherOrderOperator):
                    found.add(str(node.target))
    return found if traced else None


def is_core(op: str) -> bool:
    """Whether an operator counts; the definition is that of the package."""
    return others_than_core(op) == frozenset()


def _graphs(call: Call, with_gradients: bool) -> list[torch.fx.GraphModule]:
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return make_boxed_func(graph)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = aot_function(
            lambda *given: flat(call(*given)), fw_compiler=keep, bw_compiler=keep, inference_compiler=keep,
            decompositions=core_aten_decompositions(),
        )
        results = compiled(*call.tensors())
        if with_gradients:
            floating = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
            if floating:
                torch.autograd.backward(floating, [torch.ones_like(r) for r in floating])
    return graphs
