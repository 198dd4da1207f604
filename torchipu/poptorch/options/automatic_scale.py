"""PopART's settings of automatic loss scaling: their values, those that exclude each other, and the core's options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchipu.poptorch.popart import GradientTensorTrackingMethod as Method
from torchipu.poptorch.poptorch_core import createPoptorchError

PREFIX = "automaticLossScalingSettings."
SETTINGS = {
    "binEdgeLocation": "loss_scale_bin_edge", "thresholdUpperCountProportion": "loss_scale_threshold",
    "updatePeriod": "loss_scale_period",
}
OTHERS = ("enabled", "gradientTensorTrackingMethod", "toTrackTensors")
TRACKED = {Method.AllNonViewChangingGradientTensors: "all", Method.ConvAndMatmulGradients: "products"}


def automatic_scale(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the core's options of automatic loss scaling.

    Args:
        settings: Options of the graph compiler by name.

    Raises:
        Error: A name or a value is unknown, or tensors are named without the method that tracks them, or it is chosen
            without tensors.
    """
    given = {name.removeprefix(PREFIX): value for name, value in settings.items() if name.startswith(PREFIX)}
    for name in given:
        if name not in SETTINGS and name not in OTHERS:
            raise createPoptorchError(
                f"Unknown option {PREFIX}{name}: there are {', '.join((*SETTINGS, *OTHERS))}"
            )
    named = {core: given[name] for name, core in SETTINGS.items() if name in given}
    return {"automatic_loss_scaling": bool(given.get("enabled", False)), **named, **_tracked(given)}


def _tracked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return which gradients are looked at."""
    tensors = given.get("toTrackTensors")
    method = _method(given.get("gradientTensorTrackingMethod"))
    if tensors is None:
        if method is Method.GradientsOfUserSpecifiedTensors:
            raise createPoptorchError(
                f"{PREFIX}gradientTensorTrackingMethod is GradientsOfUserSpecifiedTensors, but "
                f"{PREFIX}toTrackTensors does not say of which: set it to a list of names, such as those of "
                "model.named_parameters()"
            )
        return {} if method is None else {"loss_scale_gradients": TRACKED[method]}
    if method not in (None, Method.GradientsOfUserSpecifiedTensors):
        raise createPoptorchError(
            f"{PREFIX}toTrackTensors has been set, but {PREFIX}gradientTensorTrackingMethod is {method.name}: set it "
            "to GradientsOfUserSpecifiedTensors, or leave the tensors out"
        )
    names = sorted(tensors) if isinstance(tensors, (set, frozenset)) else tensors
    if not isinstance(names, (list, tuple)) or not names or not all(isinstance(name, str) for name in names):
        raise createPoptorchError(f"{PREFIX}toTrackTensors takes a list of names of tensors, not {tensors!r}")
    return {"loss_scale_tensors": tuple(dict.fromkeys(names))}


def _method(given: Any) -> Method | None:
    """Return a method from its name, with or without that of the enumeration before it, or from its number."""
    if given is None:
        return None
    if isinstance(given, int) and not isinstance(given, bool) and given in list(Method):
        return Method(given)
    name = str(given).rpartition("::")[2].rpartition(".")[2]
    if name not in Method.__members__:
        raise createPoptorchError(
            f"Unsupported value {given!r} of {PREFIX}gradientTensorTrackingMethod: it takes "
            f"{' or '.join(Method.__members__)}"
        )
    return Method[name]
