"""``torchipu estimate script.py``: what every program of a script would take; the script runs, and no program does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchipu.compiler import try_graph
from torchipu.errors import IpuError, OptionsError
from torchipu.estimation.figures import Estimate, Refused, estimate_of
from torchipu.estimation.sweeps import MICRO_BATCH, Row, Sweep, changed, check_names, combinations, with_settings
from torchipu.estimation.workload import Workload
from torchipu.host.resident import Returned
from torchipu.host.resting import resting, zeros_of
from torchipu.report import profile_of
from torchipu.report.recorder import Recorded, recording
from torchipu.script import refuse_missing, run_script
from torchipu.step.base import ProgramStep
from torchipu.step.watching import standing_in_for_steps
from torchipu.target import lookup_target

MOST_CALLS = 1000
"""Calls of a step after which a script is ended: it may wait for a loss to fall that is always 0 here."""
OF_STEPS = ("replicas", "gradient_accumulation", "device_iterations")
"""Options that a program which is compiled already does not change: the loop is the user's, or a Trainer's."""


class EndOfScript(BaseException):
    """Ends a script of which all is known that can be; no error, so that no handler of the script's catches it."""


@dataclass(slots=True)
class Estimated:
    """What has become of the programs of a script.

    Attributes:
        found: An estimate, a table of them, or why there is none, for each program.
        ended_at: Why the script was ended before its end, if it was.
        error: What ended it early.
    """

    found: list[Estimate | Sweep | Refused] = field(default_factory=list)
    ended_at: str = ""
    error: BaseException | None = None

    @property
    def is_complete(self) -> bool:
        """Whether there was a program, all were estimated, and nothing went wrong."""
        refused = any(isinstance(one, Refused) for one in self.found)
        return bool(self.found) and self.error is None and not refused

    def __str__(self) -> str:
        lines = [str(one) for one in self.found]
        if not self.found:
            lines.append(
                "no model was compiled: estimate looks at torchipu.TrainStep and InferenceStep, at PopTorch's models, "
                'and at torch.compile(model, backend="ipu"), when they are first called'
            )
        if self.ended_at:
            lines.append(self.ended_at)
        if self.error is not None:
            lines.append(f"the script ended early: {type(self.error).__name__}: {self.error}")
        return "\n\n".join(lines)


def estimate_script(
    path: str, arguments: Sequence[str] = (), over: Mapping[str, Sequence[Any]] | None = None, *, on_meta: bool = False,
) -> Estimated:
    """Run a script as ``python path arguments...`` would, and estimate its programs when they are first called.

    No program runs: calls of steps give zeros. With a model of PopTorch's the script ends at its first call.

    Args:
        path: Of the script.
        arguments: Handed on to it.
        over: Values by option, which replace those of the script; where any has several, a table comes of it.
        on_meta: Whether parameters that the script makes go to the meta device, where they take no memory.

    Raises:
        FileNotFoundError: There is no such script.
        OptionsError: An option is unknown.
    """
    refuse_missing(path)
    over = over or {}
    check_names(over)
    taker = _Taker(over)
    try:
        with (
            standing_in_for_steps(taker), resting(), recording() as recorded,
            _parameters_on_meta() if on_meta else contextlib.nullcontext(),
        ):
            try:
                run_script(path, arguments)
            finally:
                taker.estimated.found += [_of_recorded(program, over) for program in recorded]
    except EndOfScript as end:
        taker.estimated.ended_at = str(end)
    except SystemExit as end:
        if end.code not in (None, 0):
            taker.estimated.error = end
    except Exception as error:  # whatever the user's code raises: what was found before it is still of use
        if not _is_told(error, taker.estimated.found):
            taker.estimated.error = error
    return taker.estimated


class _Taker:
    """Takes the calls of steps.

    Args:
        over: Values by option.
    """

    def __init__(self, over: Mapping[str, Sequence[Any]]) -> None:
        self.over = over
        self.estimated = Estimated()
        self.workloads: dict[ProgramStep, Workload] = {}
        self.calls: dict[ProgramStep, int] = {}

    def __call__(self, step: ProgramStep, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Estimate a step at its first call; return zeros in the place of its results."""
        if step not in self.workloads:
            keywords = {name: value for name, value in keywords.items() if name != "progress"}
            cut_arguments, cut_keywords = pytree.tree_map(step._slice, (arguments, keywords))
            workload = self.workloads[step] = Workload(step, cut_arguments, cut_keywords)
            found = _found(workload, self.over)
            self.estimated.found.append(found)
            if isinstance(found, Refused):
                raise found.error
        if not step.gives_zeros:
            raise EndOfScript(
                f"the script was ended here: what follows the first call of {type(step.model).__name__} is not known"
            )
        self.calls[step] = self.calls.get(step, 0) + 1
        if self.calls[step] > MOST_CALLS:
            raise EndOfScript(f"the script was ended after {MOST_CALLS} calls of {type(step.model).__name__}")
        return _zeros(step, self.workloads[step])


def _found(workload: Workload, over: Mapping[str, Sequence[Any]]) -> Estimate | Sweep | Refused:
    rows: list[Row] = []
    options = workload.step.options
    for settings in combinations(over):
        try:
            rows.append(Row(settings, with_settings(workload, settings).estimate(changed(options, settings))))
        except IpuError as error:
            if _is_one(over):
                return Refused(workload.name, error)
            rows.append(Row(settings, None, str(error).partition("\n")[0]))
    return _of_rows(workload.name, over, rows)


def _is_one(over: Mapping[str, Sequence[Any]]) -> bool:
    return all(len(values) == 1 for values in over.values())


def _of_rows(name: str, over: Mapping[str, Sequence[Any]], rows: list[Row]) -> Estimate | Sweep:
    if _is_one(over) and rows[0].estimate is not None:
        return rows[0].estimate
    swept = tuple(option for option, values in over.items() if len(values) > 1)
    return Sweep(name, swept, tuple(sorted(rows, key=lambda row: row.rank)))


def _of_recorded(program: Recorded, over: Mapping[str, Sequence[Any]]) -> Estimate | Sweep | Refused:
    """Return the estimate of a program of torch.compile or of a Trainer, which is compiled already."""
    name, rows = f"{'Trainer' if program.is_step else 'torch.compile'}, {program.graph.name}", []
    for settings in combinations(over):
        try:
            rows.append(Row(settings, _recompiled(name, program, settings)))
        except IpuError as error:
            if _is_one(over):
                return Refused(name, error)
            rows.append(Row(settings, None, str(error).partition("\n")[0]))
    return _of_rows(name, over, rows)


def _recompiled(name: str, program: Recorded, settings: Mapping[str, Any]) -> Estimate:
    _refuse_of_steps(program, settings)
    # The graph has the forward ops that are computed again already.
    given = replace(
        program.options, process_group="alone", allow_out_of_memory=True, verify=False, dump=None, recompute="none",
    )
    options = replace(changed(given, settings), recompute="none") if program.is_step else changed(given, settings)
    micro_batches = program.profile.micro_batches
    compiled = try_graph(program.graph, options, lookup_target(options.target), micro_batches=micro_batches)
    return estimate_of(name, compiled, profile_of(
        compiled.executable, compiled.cost, compiled.target, compiled.options.io_tiles,
    ), 0.0)


def _refuse_of_steps(program: Recorded, settings: Mapping[str, Any]) -> None:
    """Refuse what the calls of a program that is compiled already have decided."""
    if MICRO_BATCH in settings:
        raise OptionsError(
            f"{MICRO_BATCH}={settings[MICRO_BATCH]} needs a step that is captured here", option=MICRO_BATCH,
            value=settings[MICRO_BATCH], allowed="what the script's loader gives",
            remedy="change the batches of the script",
        )
    for option in OF_STEPS:
        held = getattr(program.options, option) if program.is_step else 1
        if settings.get(option, held) == held:
            continue
        if program.is_step:
            raise OptionsError(
                f"{option}={settings[option]}, but the Trainer has compiled for {held}", option=option,
                value=settings[option], allowed=f"{held} here",
                remedy="set devices, accumulate_grad_batches or device_iterations in the script",
            )
        raise OptionsError(
            f"{option}={settings[option]} needs a whole step as one program", option=option, value=settings[option],
            allowed="1 with torch.compile", remedy="use torchipu.TrainStep or torchipu.InferenceStep",
        )


def _zeros(step: ProgramStep, workload: Workload) -> Any:
    """Return what a call would return, of zeros."""
    captured = workload.captured(step.options)
    rule = Returned(step.output_mode, step.options.output_period)
    replicas = step.options.replicas
    count = replicas if rule.mode == "final" else replicas * step.micro_batches * step.iterations
    iterations = step.iterations if step.iterations > 1 else step.options.device_iterations
    values = [
        rule.join(value.expand(count, *value.shape), iterations, replicas)
        for value in zeros_of(captured.graph.outputs)
    ]
    return captured.restore([value.clone() for value in values])


def _is_told(error: BaseException, found: Sequence[object]) -> bool:
    """Whether an error is the reason why a program was not estimated."""
    seen: BaseException | None = error
    while seen is not None:
        if any(isinstance(one, Refused) and one.error is seen for one in found):
            return True
        seen = seen.__cause__
    return False


@contextlib.contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Put parameters on the meta device as modules take them."""
    register = torch.nn.Module.register_parameter

    def on_meta(self: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
        register(self, name, param)
        held = self._parameters[name]
        if held is not None and not held.is_meta:
            self._parameters[name] = torch.nn.Parameter(held.detach().to("meta"), requires_grad=held.requires_grad)

    torch.nn.Module.register_parameter = on_meta  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]
