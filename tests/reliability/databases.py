"""PyTorch's own databases beside eager: all samples of OpInfo, its wrong arguments, modules and optimisers.

``python -m tests.reliability opinfo error_inputs modules``. The samples of OpInfo are kept as they are judged, so that
a run of hours can be broken off and gone on with: ``--size`` then says how many are judged in all.
"""

from __future__ import annotations

import copy
import json
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.opinfo import known
from tests.opinfo.__main__ import read
from tests.opinfo.doors import directly, traced_by_torch
from tests.opinfo.pool import Settings, run_cases
from tests.opinfo.samples import OPS, Call, Case, cases, seed
from tests.raised import our_error
from torchipu.errors import InternalError

JUDGED = Path(__file__).parents[2] / "build" / "reliability" / "opinfo" / "results.jsonl"
WORKERS = 2
NEAR = 2e-5
"""What a result may be off beyond twice eager's own error, both held to float64, relative to the largest element."""
OF_TORCH = ("breaks", "torchs", "skipped")
REFUSED = ("refused", "no_type", "known")


# ---------------------------------------------------------------------- operators
def opinfo(size: int, path: Path = JUDGED) -> dict[str, int]:
    """Judge float32 samples, forward and backward, until so many are judged; operators come in a mixed order.

    Returns:
        samples: Of which ``right`` are as eager's, ``refused`` refused in words, ``of torch`` what torch itself cannot
            trace or run. Others are ``wrong``, an ``error``, a ``crash`` or a ``hang``.
        operators: With a sample, and ``whole``: all of whose samples are right or torch's.
    """
    results = read([path], classify=False) if path.exists() else []
    ran: dict[Case, set[int]] = defaultdict(set)
    for result in results:
        ran[Case(result["op"], result["dtype"])].add(result["index"])
    mixed = sorted(cases(lambda name: True, ["float32"]), key=lambda case: zlib.crc32(case.op.encode()))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as lines:
        for result in run_cases(mixed, Settings(classify=False), WORKERS, ran=ran) if len(results) < size else ():
            results.append(result)
            lines.write(json.dumps(result) + "\n")
            lines.flush()
            if len(results) >= size:
                break
    return tally(results)


def tally(results: list[dict[str, Any]]) -> dict[str, int]:
    """Count what came of samples; see `opinfo`."""
    known.mark(results, known.read())
    words = Counter(result["verdict"] for result in results)
    by_op: dict[str, set[str]] = defaultdict(set)
    for result in results:
        by_op[result["op"]].add(result["verdict"])
    return {
        "samples": len(results), "right": words["ok"], "refused": sum(words[word] for word in REFUSED),
        "of torch": sum(words[word] for word in OF_TORCH),
        **{word: words[word] for word in ("wrong", "error", "crash", "hang")},
        "operators": len(by_op), "whole": sum(not verdicts - {"ok", *OF_TORCH} for verdicts in by_op.values()),
    }


# ---------------------------------------------------------------------- wrong arguments
def error_inputs(size: int) -> dict[str, int]:
    """Call operators with arguments that eager refuses, as many as asked for.

    Returns:
        inputs: Of which ``same`` raise what eager raises or an error of ours, ``other`` something else, ``accepted``
            nothing, and ``of torch`` one of these two in the graph that torch traces, whoever runs it.
    """
    words = Counter[str]()
    for name, op in sorted(OPS.items(), key=lambda pair: zlib.crc32(pair[0].encode())):
        if op.error_inputs_func is None:
            continue
        seed(0)
        for number, wrong in enumerate(op.error_inputs("cpu")):
            if words.total() == size:
                break
            word = _refusal(Call(Case(name, "float32"), wrong.sample_input), wrong.error_type)
            words[word] += 1
            if word in ("other", "accepted"):
                print(f"{name}, wrong arguments {number}: {word}", flush=True)
    del words["eager accepts"]
    return {"inputs": words.total(), **{word: words[word] for word in ("same", "other", "accepted", "of torch")}}


def _refusal(call: Call, kind: type[BaseException]) -> str:
    """Say what a compiled operator does with arguments that eager refuses."""
    try:
        call(*call.tensors())
        return "eager accepts"
    except kind:
        pass
    word = _what_comes(call, lambda tensors: directly(call, tensors), kind)
    if word != "same" and _what_comes(call, lambda tensors: traced_by_torch(call), kind) != "same":
        return "of torch"
    return word


def _what_comes(call: Call, compiled: Callable[[Sequence[torch.Tensor]], Any], kind: type[BaseException]) -> str:
    try:
        tensors = call.tensors()
        compiled(tensors)(*tensors)
    except Exception as error:
        ours = our_error(error)
        is_refusal = ours is not None and not isinstance(ours, InternalError)
        return "same" if is_refusal or (ours is None and isinstance(error, kind)) else "other"
    return "accepted"


# ---------------------------------------------------------------------- modules and optimisers
def modules(size: int) -> dict[str, int]:
    """Train modules for a step and optimisers for three, with so many samples of each at most, beside eager.

    Returns:
        modules, optimisers: How many, and of how many all samples are right. What is not is printed.
    """
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import optim_db

    kinds = {"modules": (_modules, len(module_db)), "optimisers": (_optimisers, len(optim_db))}
    found = dict[str, int]()
    for kind, (samples, count) in kinds.items():
        failed = set[str]()
        for name, judge in samples(size):
            torch._dynamo.reset()
            try:
                words = judge()
            except Exception as error:
                words = f"{type(error).__name__}: {re.sub(chr(10) + '.*', '', str(error), flags=re.DOTALL)}"
            if words:
                failed.add(name)
                print(f"{kind} {name}: {words}", flush=True)
        found |= {kind: count, f"{kind} right": count - len(failed)}
    return found


Samples = list[tuple[str, Callable[[], str]]]


def _modules(most: int) -> Samples:
    found: Samples = []
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        seed(0)
        inputs = info.module_inputs_func(info, "cpu", torch.float32, True, True)
        found += [(info.name, lambda info=info, one=one: _judge_module(info, one)) for one in inputs[:most]]
    return found


def _judge_module(info: Any, one: Any) -> str:
    """Compare results and gradients of a module with eager's, both held to float64; return what differs."""
    seed(0)
    made = info.module_cls(*one.constructor_input.args, **one.constructor_input.kwargs)
    given = (one.forward_input.args, one.forward_input.kwargs)
    try:
        eager = _outcome(copy.deepcopy(made), given)
    except RuntimeError:  # eager itself refuses the sample
        return ""
    if any(not _close(a, b, b) for a, b in zip(eager, _outcome(copy.deepcopy(made), given, 1), strict=True)):
        return ""  # a random one
    exact = _outcome(copy.deepcopy(made).double(), pytree.tree_map(_doubled, given))
    module = copy.deepcopy(made)
    ours = _outcome(module, given, call=torch.compile(module, backend="ipu"))
    pairs = zip(ours, eager, exact, strict=True)
    differ = [str(place) for place, (a, b, c) in enumerate(pairs) if not _close(a, b, c)]
    return f"results and gradients {', '.join(differ)} differ" if differ else ""


def _outcome(module: torch.nn.Module, given: Any, number: int = 0, call: Any = None) -> list[torch.Tensor]:
    """Return results, and gradients of weights and inputs."""
    args, kwargs = pytree.tree_map(_fresh, given)
    seed(number)
    returned = module(*args, **kwargs) if call is None else call(*args, **kwargs)
    results = [leaf for leaf in pytree.tree_leaves(returned) if isinstance(leaf, torch.Tensor)]
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    asking = [leaf for leaf in (*leaves, *module.parameters()) if leaf.requires_grad]
    reached = [result for result in results if result.requires_grad]
    if not asking or not reached:
        return [result.detach() for result in results]
    gradients = torch.autograd.grad([result.float().square().sum() if result.dtype is not torch.float64
                                     else result.square().sum() for result in reached], asking, allow_unused=True)
    return [*(result.detach() for result in results), *(g for g in gradients if g is not None)]


def _fresh(leaf: Any) -> Any:
    return leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf


def _doubled(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
        return leaf
    return leaf.detach().double().requires_grad_(leaf.requires_grad)


def _close(ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether a result is as near to that in float64 as eager's is, and a little more."""
    if ours.shape != eager.shape or ours.dtype != eager.dtype:
        return False
    if not ours.is_floating_point():
        return torch.equal(ours, eager)
    exact, eager, ours = (torch.nan_to_num(value.double(), 0.5, 1e30, -1e30) for value in (exact, eager, ours))
    if not ours.numel():
        return True
    floor = NEAR * max(1.0, float(exact.abs().max()))
    return float((ours - exact).abs().max()) <= 2 * float((eager - exact).abs().max()) + floor


def _optimisers(most: int) -> Samples:
    found: Samples = []
    from torch.testing._internal.common_optimizers import optim_db

    for info in optim_db:
        inputs = [one for one in info.optim_inputs_func("cpu") if not one.kwargs.get("fused")]
        found += [(info.optim_cls.__name__, lambda info=info, one=one: _judge_optimiser(info.optim_cls, one.kwargs))
                  for one in inputs[:most]]
    return found


def _judge_optimiser(kind: type[torch.optim.Optimizer], kwargs: dict[str, Any]) -> str:
    """Compare three updates of weights with eager's."""
    weights = []
    for is_compiled in (False, True):
        seed(0)
        is_sparse = kind is torch.optim.SparseAdam
        linear = torch.nn.Linear(5, 3, bias=kind is not torch.optim.Muon)  # which takes matrices alone
        model = torch.nn.Embedding(5, 3, sparse=True) if is_sparse else linear
        x = torch.tensor([1, 3, 3]) if is_sparse else torch.randn(4, 5)
        optimiser = kind(model.parameters(), **kwargs)

        def loss(model: Any = model, x: torch.Tensor = x, optimiser: Any = optimiser) -> torch.Tensor:
            optimiser.zero_grad()
            value: torch.Tensor = model(x).square().sum()
            value.backward()
            return value

        def update(optimiser: Any = optimiser, loss: Any = loss) -> None:
            optimiser.step(loss) if isinstance(optimiser, torch.optim.LBFGS) else optimiser.step()

        step = torch.compile(update, backend="ipu") if is_compiled else update
        for _ in range(3):
            loss()
            step()
        weights.append([value.detach().clone() for value in model.state_dict().values()])
    differ = [not torch.allclose(a, b, rtol=2e-5, atol=2e-6) for a, b in zip(*weights, strict=True)]
    return "weights differ" if any(differ) else ""
