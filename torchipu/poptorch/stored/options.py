"""Options as JSON data and back, for executables in files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchipu.poptorch.enums import Liveness
from torchipu.poptorch.options import Options, strategies
from torchipu.poptorch.stored.values import from_data, to_data

GROUPS = ("Training", "Precision")
"""Not Distributed: who loads a file is told by its own launcher which of how many processes it is."""
SWITCHES = (
    "_module_namescope_enabled", "_relax_optimizer_checks", "_show_compilation_progress_bar",
    "_source_location_excludes",
)
"""Options that have no name of their own."""
STRATEGIES = {
    kind.__name__: kind for kind in (
        strategies.PipelinedExecution, strategies.ShardedExecution, strategies.SerialPhasedExecution,
        strategies.ParallelPhasedExecution,
    )
}


def options_to_data(options: Options) -> dict[str, Any]:
    """Return the values of options and of their groups."""
    return {
        "values": _storable(options._values),
        "groups": {name: _storable(getattr(options, name)._values) for name in GROUPS},
        "popart": _storable(options._popart.options),
        "locations": options.TensorLocations.toDict(),
        "switches": {name: getattr(options, name) for name in SWITCHES},
        "strategy": _strategy_to_data(options._execution_strategy),
    }


def _storable(values: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in values.items():
        try:
            found[name] = to_data(value)
        except Exception as error:
            if type(error).__name__ != "Error":
                raise
    return found


def options_from_data(data: Mapping[str, Any]) -> Options:
    """Return options with the values of a file, not frozen."""
    options = Options()
    for name, value in data["values"].items():
        options._values[name] = from_data(value)
    for group in GROUPS:
        for name, value in data["groups"][group].items():
            getattr(options, group)._values[name] = from_data(value)
    for name, value in data["popart"].items():
        options._popart.options[name] = from_data(value)
    for name, value in data["locations"].items():
        if isinstance(value, dict):
            getattr(options.TensorLocations, name).createOrSet(**value)
        else:
            options.TensorLocations.createOrSet(**{name: value})
    for name in SWITCHES:
        setattr(options, name, data["switches"][name])
    options._execution_strategy = _strategy_from_data(data["strategy"])
    return options


# ---------------------------------------------------------------------- strategies
def _strategy_to_data(strategy: strategies._IExecutionStrategy) -> dict[str, Any]:
    data: dict[str, Any] = {"kind": type(strategy).__name__, "parts": [_part(part) for part in strategy._parts()]}
    if isinstance(strategy, strategies._PhasedExecution):
        data |= {"separate_backward": strategy._separate_backward, "liveness": strategy._tensors_liveness.name}
    return data


def _part(part: Any) -> Any:
    if isinstance(part, strategies.Phase):
        return {"phase": [_part(stage) for stage in part.stages]}
    if isinstance(part, strategies.Stage):
        return {"stage": list(part.blocks), "ipu": part._ipu_id}
    return to_data(part)


def _strategy_from_data(data: Mapping[str, Any]) -> strategies._IExecutionStrategy:
    strategy = STRATEGIES[data["kind"]](*(_made(part) for part in data["parts"]))
    if isinstance(strategy, strategies._PhasedExecution):
        strategy._separate_backward = data["separate_backward"]
        strategy._tensors_liveness = Liveness[data["liveness"]]
    return strategy


def _made(part: Any) -> Any:
    if isinstance(part, dict) and "phase" in part:
        return strategies.Phase(*(_made(stage) for stage in part["phase"]))
    if isinstance(part, dict) and "stage" in part:
        stage = strategies.Stage(*part["stage"])
        return stage if part["ipu"] is None else stage.ipu(part["ipu"])
    return from_data(part)
