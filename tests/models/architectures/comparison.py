"""Runs an architecture through ``torch.compile(backend="ipu")`` and eager, and says how far each is from float64.

What passes is stated here and nowhere else. With the norm of a difference as the error of a tensor, ours must not
exceed the largest of

- ``EAGER_TIMES`` times the largest error of ``EAGER_RUNS`` runs of eager float32: one as it is, the others with every
  parameter and input moved by at most one unit in the last place, at random. The latter say how far rounding alone
  carries: a value near zero before a ReLU may come out on its other side, and many gradients then change at once;
- for a gradient, ``EAGER_TIMES`` times the largest relative error of any gradient in these runs, of those that are at
  least ``NOTABLE`` of all gradients together, for the same reason: which tensors are next to such a ReLU is chance;
- ``FLOOR`` times the norm of the tensor: eager now and then gets a value right by chance, the loss above all;
- for a gradient or a buffer, ``SHARE`` of the norm of all gradients or buffers together: some are zero but for
  rounding, such as the gradient of a bias that normalisation takes away again, or the mean of random images.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from torch import nn
from torch._dynamo.utils import counters

from tests.models.architectures.architecture import Architecture, Inputs
from tests.models.architectures.precise import in_float64
from torchipu.report.recorder import recording

EAGER_RUNS = 4
EAGER_TIMES = 4.0
FLOOR = 2.0**-20  # eight units in the last place
SHARE = 2.0**-24  # one rounding
NOTABLE = 2.0**-12

Values = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Run:
    """What one way of computing gave, by kind: forward (training and inference), loss, gradients, buffers."""

    forward: Values
    loss: Values
    gradient: Values
    buffer: Values


KINDS = ("forward", "loss", "gradient", "buffer")


@dataclass(slots=True)
class Finding:
    """What became of one architecture.

    Attributes:
        name: Of the architecture.
        package: Of the architecture.
        num_parameters: Elements of all parameters.
        num_ops: Ops of its programs: forward, backward and inference.
        generic: Ops among them that ran through the generic codelet, by ATen overload.
        graph_breaks: Seen by Dynamo.
        programs: Compiled.
        errors: By kind, our norm of the error of all tensors together over eager's.
        beyond: A line for each tensor whose error is beyond the limit.
        compile_s: CPU seconds of the first training and inference step less those of the second.
        failure: What was raised, if anything was.
    """

    name: str
    package: str
    num_parameters: int = 0
    num_ops: int = 0
    generic: dict[str, int] = field(default_factory=dict)
    graph_breaks: int = 0
    programs: int = 0
    errors: dict[str, float] = field(default_factory=dict)
    beyond: list[str] = field(default_factory=list)
    compile_s: float = 0.0
    failure: str = ""

    @property
    def passed(self) -> bool:
        """Whether it ran, and all values are within the limit."""
        return not self.failure and not self.beyond


def compare(architecture: Architecture) -> Finding:
    """Compile one architecture for the IPU, train and infer one step, and compare."""
    finding = Finding(architecture.name, architecture.package)
    module, inputs = architecture.new()
    finding.num_parameters = sum(parameter.numel() for parameter in module.parameters())
    exact = run(copy.deepcopy(module).double(), _doubled(inputs), precisely=True)
    eager = [run(copy.deepcopy(module), inputs)]
    eager += [run(*_moved(module, inputs, seed)) for seed in range(1, EAGER_RUNS)]
    ours = _compiled(module, inputs, finding)
    judge(finding, ours, eager, exact)
    return finding


def _compiled(module: nn.Module, inputs: Inputs, finding: Finding) -> Run:
    """Run through the backend, and note what was compiled."""
    torch._dynamo.reset()
    counters.clear()
    options = {"allow_out_of_memory": True, "host_threads": torch.get_num_threads()}
    compiled = torch.compile(module, backend="ipu", options=options)
    before = copy.deepcopy(module.state_dict())
    # Dynamo else draws what a model draws from NumPy, such as BigBird its random blocks, from torch's own generator.
    with recording() as programs, quiet(), torch._dynamo.config.patch(use_numpy_random_stream=True):
        began = time.process_time()
        ours = run(module, inputs, compiled)
        first_s = time.process_time() - began
        module.load_state_dict(before)
        began = time.process_time()
        run(module, inputs, compiled)
        finding.compile_s = first_s - (time.process_time() - began)
    finding.programs = len(programs)
    finding.num_ops = sum(len(program.graph.ops) for program in programs)
    generic = Counter(op.target for program in programs for op in program.graph.ops if op.kind == "generic")
    finding.generic = dict(generic.most_common())
    finding.graph_breaks = sum(counters["graph_break"].values())
    return ours


def run(
    module: nn.Module, inputs: Inputs, call: Callable[..., Any] | None = None, *, precisely: bool = False,
) -> Run:
    """Train one step, then infer.

    Args:
        module: Changed: its buffers move, and its parameters get gradients.
        inputs: Of the module.
        call: What to call instead of the module, such as what ``torch.compile`` made of it.
        precisely: Whether to compute in float64.
    """
    call = module if call is None else call
    module.zero_grad(set_to_none=True)
    with torch.random.fork_rng(devices=[]), _numpy_seeded(), _precision(precisely):
        torch.manual_seed(0)
        module.train()
        loss, results = call(**inputs)
        loss.backward()
        forward = {f"training result {number}": result.detach() for number, result in enumerate(results)}
        gradients = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
        buffers = {name: b.clone() for name, b in module.named_buffers() if b.is_floating_point()}
        module.eval()
        with torch.no_grad():
            inferred_loss, results = call(**inputs)
    forward |= {f"inference result {number}": result for number, result in enumerate(results)}
    return Run(forward, {"training loss": loss.detach(), "inference loss": inferred_loss}, gradients, buffers)


@contextmanager
def _numpy_seeded() -> Iterator[None]:
    """Let what a model draws from NumPy be the same in each run."""
    state = numpy.random.get_state()
    numpy.random.seed(0)
    try:
        yield
    finally:
        numpy.random.set_state(state)


@contextmanager
def _precision(precisely: bool) -> Iterator[None]:
    if precisely:
        with in_float64():
            yield
    else:
        yield


def _moved(module: nn.Module, inputs: Inputs, seed: int) -> tuple[nn.Module, Inputs]:
    """Return a copy with each number in it moved to a neighbouring one, or left as it is."""
    generator = torch.Generator().manual_seed(seed)

    def moved(value: torch.Tensor) -> torch.Tensor:
        steps = torch.randint(-1, 2, value.shape, generator=generator)
        return value + value * steps * torch.finfo(value.dtype).eps

    module = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(moved(parameter))
    return module, {name: moved(value) if value.is_floating_point() else value for name, value in inputs.items()}


def _doubled(inputs: Inputs) -> Inputs:
    return {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}


@contextmanager
def quiet() -> Iterator[None]:
    """Hide warnings: those of the libraries are theirs, and ours on tile memory are expected of large models."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# ---------------------------------------------------------------------- judgement
def judge(finding: Finding, ours: Run, eager: list[Run], exact: Run) -> None:
    """Enter the errors of each kind, and every tensor beyond the limit."""
    for kind in KINDS:
        reference: Values = getattr(exact, kind)
        mine: Values = getattr(ours, kind)
        theirs: list[Values] = [getattr(each, kind) for each in eager]
        if mine.keys() != reference.keys():
            finding.beyond.append(f"{kind}: other tensors than eager's: {sorted(mine.keys() ^ reference.keys())}")
            continue
        limits = _limits(kind, theirs, reference)
        for name, value in reference.items():
            error = _error(mine[name], value)
            if not error <= limits[name]:  # also a NaN
                finding.beyond.append(f"{kind} {name}: error {error:.2e} is above {limits[name]:.2e}")
        finding.errors[kind] = _ratio(mine, theirs, reference)


def _limits(kind: str, theirs: list[Values], reference: Values) -> dict[str, float]:
    """Return the largest error that passes, for each tensor of a kind."""
    norms = {name: _norm(value) for name, value in reference.items()}
    whole = math.hypot(*norms.values())
    share = SHARE * whole if kind in ("gradient", "buffer") else 0.0
    errors = {name: max(_error(each[name], value) for each in theirs) for name, value in reference.items()}
    relative = 0.0
    if kind == "gradient":
        relative = max(error / norms[name] for name, error in errors.items() if norms[name] >= NOTABLE * whole)
    return {
        name: max(EAGER_TIMES * max(errors[name], relative * norms[name]), FLOOR * norms[name], share)
        for name in reference
    }


def _ratio(mine: Values, theirs: list[Values], reference: Values) -> float:
    """Return our error over eager's largest, all tensors of a kind together; zero where both are exact."""
    total = math.hypot(*(_error(mine[name], value) for name, value in reference.items()))
    eager = max(math.hypot(*(_error(each[name], value) for name, value in reference.items())) for each in theirs)
    return total / eager if eager else (math.inf if total else 0.0)


def _error(value: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the norm of the difference; infinities, as of masked scores, must be where they are in the reference."""
    value, exact = value.double(), exact.double()
    if value.shape != exact.shape:
        return math.nan
    finite = exact.isfinite()
    if not torch.equal(value[~finite].nan_to_num(nan=0.5), exact[~finite].nan_to_num(nan=0.5)):
        return math.nan
    return _norm(value[finite] - exact[finite])


def _norm(value: torch.Tensor) -> float:
    value = value.double()
    return float(torch.linalg.vector_norm(value[value.isfinite()])) if value.isfinite().all() else math.nan


def failed(architecture: Architecture, error: BaseException) -> Finding:
    """Return the finding of an architecture that raised."""
    lines: Mapping[int, str] = dict(enumerate(line for line in str(error).splitlines() if line.strip()))
    return Finding(architecture.name, architecture.package, failure=f"{type(error).__name__}: {lines.get(0, '')}")
