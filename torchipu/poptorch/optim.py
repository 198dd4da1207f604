"""Optimisers with PopTorch's arguments: loss scaling, types of accumulators, and states that travel with the device."""

from __future__ import annotations

import math
import weakref
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from torchipu import optim as core
from torchipu.poptorch._impl import createPoptorchError
from torchipu.poptorch._logging import logger
from torchipu.poptorch.optim_attributes import VariableAttributes

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Optimizer", "RMSprop", "VariableAttributes"]

MOMENTS = {
    "momentum_buffer": "Accl1", "exp_avg": "Accl1", "exp_avg_sq": "Accl2", "square_avg": "Accl2", "grad_avg": "Accl3",
}
"""PopART's names of states, by torch's."""
SCALE_FACTOR = "lossScaleUpdateFactor"
"""PopART's name of how far automatic loss scaling has come from the loss scale of the constructor."""
ADAM_ATTRIBUTES = ("lr", "betas", "eps", "weight_decay", "amsgrad")
SUPPORTED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, core.LAMB)


class Executor(Protocol):
    """What an optimiser asks of the executor that it belongs to."""

    _executable: Any
    _user_model: Any
    _was_compiled: bool

    def _pull_optimiser(self) -> bool:
        """Bring the states to the host; return whether those of the device were newer."""
        ...

    def setOptimizer(self, optimizer: Any) -> None:
        """Let the device use the optimiser's values."""
        ...


class Optimizer:
    """What the optimisers of PopTorch have besides torch's: see the classes below."""

    variable_attrs: VariableAttributes
    loss_scaling: float
    accum_type: torch.dtype
    param_groups: list[dict[str, Any]]
    state: defaultdict[torch.Tensor, Any]
    _executor: weakref.ref[Executor] | None = None
    _waiting: Mapping[str, torch.Tensor] | None = None
    ipu_state_is_dirty = False
    _scale_factor: float | None = None

    def _begin(self, given: Mapping[str, Any], attributes: Sequence[str], loss_scaling: float | None,
               accum_type: torch.dtype | None, **types: torch.dtype | None) -> None:
        """Note what the constructor was given; what is left to its default is a constant."""
        self.loss_scaling = 1.0 if loss_scaling is None else float(loss_scaling)
        self.accum_type = _checked_type("accum_type", accum_type)
        for name, dtype in types.items():
            setattr(self, name, _checked_type(name, dtype))
        allowed = [*attributes, "loss_scaling"]
        variable = [name for name, value in {**given, "loss_scaling": loss_scaling}.items() if value is not None]
        self.variable_attrs = VariableAttributes(variable, allowed)

    def _attach(self, executor: Executor) -> None:
        """Belong to an executor, whose device holds the newest states from now on."""
        self._executor = weakref.ref(executor)
        if self._waiting:
            self._take(self._waiting)
            self._waiting = None

    def _attached(self) -> Executor | None:
        return None if self._executor is None else self._executor()

    # ------------------------------------------------------------------ states
    def state_dict(self) -> dict[str, Any]:
        """Return torch's state, after bringing what the device has to the host, and the same by PopART's names.

        Returns:
            ``state`` and ``param_groups`` as of torch; ``ipu_state``, moments and steps by name, and ``ipu_param``,
            the variable numbers, or None where no program has been compiled.
        """
        executor = self._attached()
        compiled = executor is not None and executor._was_compiled
        if executor is not None and compiled and not executor._pull_optimiser():
            logger.debug("Using cached optimiser state dict")
        found: dict[str, Any] = super().state_dict()  # type: ignore[misc]
        names = _names(executor) if executor is not None and compiled else None
        return {
            "ipu_state": None if names is None else self._moments(names),
            "ipu_param": None if names is None else self._numbers(names), **found,
        }

    def _moments(self, names: Mapping[torch.Tensor, str]) -> dict[str, torch.Tensor]:
        moments = {}
        for parameter, state in self.state.items():
            name = names.get(parameter)
            for key, value in state.items():
                if name is not None and isinstance(value, torch.Tensor):
                    prefix = MOMENTS.get(key, "Step" if key == "step" else key)
                    moments[f"{prefix}___{name}"] = value.detach().clone()
        return moments

    def _numbers(self, names: Mapping[torch.Tensor, str]) -> dict[str, torch.Tensor]:
        numbers = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                for key, name, value in self._group_numbers(group):
                    if parameter in names and not self.variable_attrs.isConstant(key):
                        numbers[f"{name}___specific___{names[parameter]}"] = torch.tensor(value)
        if not self.variable_attrs.isConstant("loss_scaling"):
            numbers["lossScaling_FLOAT"] = torch.tensor(self.loss_scaling)
        session = self._session()
        if session is not None and session.options.automatic_loss_scaling:
            numbers[SCALE_FACTOR] = torch.tensor(session.loss_scale / self.loss_scaling)
        return numbers

    def _session(self) -> Any:
        """Return the program that this optimiser is in, or None."""
        executor = self._attached()
        return None if executor is None else executor._executable

    def _go_on_from_scale(self) -> None:
        """Let automatic loss scaling go on from where a loaded state has been."""
        session = self._session()
        if self._scale_factor is not None and session is not None and session.options.automatic_loss_scaling:
            session.set_loss_scale(self.loss_scaling * self._scale_factor)
            self._scale_factor = None

    def _group_numbers(self, group: Mapping[str, Any]) -> list[tuple[str, str, float]]:
        """Return the numbers of a group that the device reads: attribute, PopART's name, value."""
        return [("lr", "learningRate", float(group["lr"])),
                ("weight_decay", "weightDecay", float(group["weight_decay"]))]

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` has given, onto the device too where there is one.

        Args:
            state_dict: Its result; ``ipu_state`` may be None, and may hold some of the states.

        Raises:
            RuntimeError: It is empty, or comes from an optimiser of torch.
        """
        if not state_dict:
            raise RuntimeError("Cannot load optimizer state dictionary because it is empty.")
        if not {"ipu_state", "ipu_param"} <= set(state_dict):
            raise RuntimeError("Only IPU optimizer states can be loaded onto the IPU.")
        executor = self._attached()
        if executor is not None:
            executor._pull_optimiser()  # what the dictionary lacks stays as the device has it
        if "state" in state_dict and "param_groups" in state_dict:
            plain = {key: value for key, value in state_dict.items() if key not in ("ipu_state", "ipu_param")}
            super().load_state_dict(plain)  # type: ignore[misc]
        factor = (state_dict["ipu_param"] or {}).get(SCALE_FACTOR)
        self._scale_factor = None if factor is None else float(factor)
        self._go_on_from_scale()
        moments = state_dict["ipu_state"]
        self.ipu_state_is_dirty = moments is not None
        if moments is not None and executor is None:
            self._waiting = moments
        elif moments is not None:
            self._take(moments)
        if executor is not None:
            executor.setOptimizer(self)

    def _take(self, moments: Mapping[str, torch.Tensor]) -> None:
        """Set states by PopART's names; unknown ones are ignored, as PopTorch does."""
        executor = self._attached()
        assert executor is not None
        names = {name: parameter for parameter, name in _names(executor).items()}
        for long_name, value in moments.items():
            prefix, _, name = long_name.partition("___")
            parameter = names.get(name)
            if parameter is None:
                logger.debug("Ignoring the unknown optimizer state %s", long_name)
                continue
            keys = [key for key, known in MOMENTS.items() if known == prefix and key in self._keys(parameter)]
            key = "step" if prefix == "Step" else keys[0] if keys else prefix
            self.state[parameter][key] = value.detach().clone()

    def _keys(self, parameter: torch.Tensor) -> tuple[str, ...]:
        """Return the states that a parameter has or would get."""
        by_kind: tuple[tuple[type, tuple[str, ...]], ...] = (
            (torch.optim.SGD, ("momentum_buffer",)),
            (torch.optim.RMSprop, ("square_avg", "grad_avg", "momentum_buffer")),
        )
        kinds = [keys for kind, keys in by_kind if isinstance(self, kind)]
        return kinds[0] if kinds else ("exp_avg", "exp_avg_sq")

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[assignment]
        own = {key: value for key, value in vars(self).items() if key not in state and key != "_executor"}
        return {**own, **state}


class SGD(Optimizer, torch.optim.SGD):
    """`torch.optim.SGD` with PopTorch's arguments; the three variants of PopTorch compute the same here.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate, as the arguments after it those of torch.
        momentum: Of the velocity.
        dampening: Of the gradient in the velocity.
        weight_decay: Added to the gradient.
        nesterov: Whether the velocity looks ahead.
        maximize: Whether to climb.
        foreach: Of no effect.
        differentiable: Must be False.
        loss_scaling: Factor on the loss and its gradients, divided out before the update.
        velocity_scaling: Of no effect on values.
        use_combined_accum: One tensor for accumulator and velocity; of no effect on values.
        accum_type: Type of gradient accumulators, float32 or float16.
        velocity_accum_type: Type of velocities.
        max_grad_norm: Norm of all gradients together to which they are clipped; infinity not to clip.

    Raises:
        AssertionError: A type is neither float32 nor float16.
    """

    def __init__(
        self, params: Any, lr: float | None = None, momentum: float | None = None, dampening: float | None = None,
        weight_decay: float | None = None, nesterov: bool | None = None, maximize: bool | None = None,
        foreach: bool | None = None, differentiable: bool | None = None, loss_scaling: float | None = None,
        velocity_scaling: float | None = None, use_combined_accum: bool | None = None,
        accum_type: torch.dtype | None = None, velocity_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        given = {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov,
            "maximize": maximize, "foreach": foreach, "differentiable": differentiable,
        }
        super().__init__(params, **_present(given))
        self._begin(
            {**given, "velocity_scaling": velocity_scaling},
            ("lr", "momentum", "dampening", "weight_decay", "nesterov", "velocity_scaling"), loss_scaling, accum_type,
            velocity_accum_type=velocity_accum_type,
        )
        self.use_combined_accum = bool(use_combined_accum)
        self.velocity_scaling = 1.0 if velocity_scaling is None else velocity_scaling
        if velocity_scaling is not None and not self.use_combined_accum:
            logger.warning("velocity_scaling is ignored unless use_combined_accum is True")
        self.max_grad_norm = _checked_norm(max_grad_norm)

    def _group_numbers(self, group: Mapping[str, Any]) -> list[tuple[str, str, float]]:
        rate = float(group["lr"]) * (1.0 - float(group["dampening"]))
        return [("lr", "scaledLearningRate0", rate / self.loss_scaling),
                ("weight_decay", "weightDecayScaleFactor0", 1.0 - rate * float(group["weight_decay"]))]


class Adam(Optimizer, torch.optim.Adam):
    """`torch.optim.Adam` with PopTorch's arguments.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate, as the arguments after it those of torch.
        betas: Decays of the two moments.
        eps: Added to the root of the second moment.
        weight_decay: Added to the gradient.
        amsgrad: Must be False in a training model.
        foreach: Of no effect.
        maximize: Whether to climb.
        capturable: Of no effect.
        differentiable: Must be False.
        fused: Of no effect.
        loss_scaling: Factor on the loss and its gradients, divided out before the update.
        accum_type: Type of gradient accumulators, float32 or float16.
        first_order_momentum_accum_type: Type of first moments.
        second_order_momentum_accum_type: Type of second moments.
        max_grad_norm: Norm of all gradients together to which they are clipped; infinity not to clip.

    Raises:
        AssertionError: A type is neither float32 nor float16.
    """

    def __init__(
        self, params: Any, lr: float | None = None, betas: tuple[float, float] | None = None, eps: float | None = None,
        weight_decay: float | None = None, amsgrad: bool | None = None, foreach: bool | None = None,
        maximize: bool | None = None, capturable: bool | None = None, differentiable: bool | None = None,
        fused: bool | None = None, loss_scaling: float | None = None, accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None, max_grad_norm: float | None = None,
    ) -> None:
        given = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad, "foreach": foreach,
            "maximize": maximize, "capturable": capturable, "differentiable": differentiable, "fused": fused,
        }
        super().__init__(params, **_present(given))
        types = _moments(first_order_momentum_accum_type, second_order_momentum_accum_type)
        self._begin(given, ADAM_ATTRIBUTES, loss_scaling, accum_type, **types)
        self.max_grad_norm = _checked_norm(max_grad_norm)


class AdamW(Optimizer, torch.optim.AdamW):
    """`torch.optim.AdamW` with PopTorch's arguments.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate, as the arguments after it those of torch.
        betas: Decays of the two moments.
        eps: Added to the root of the second moment.
        weight_decay: Taken from the weights apart from the gradient.
        amsgrad: Must be False in a training model.
        maximize: Whether to climb.
        foreach: Of no effect.
        capturable: Of no effect.
        differentiable: Must be False.
        fused: Of no effect.
        loss_scaling: Factor on the loss and its gradients, divided out before the update.
        bias_correction: Of no effect, as in PopTorch 3.3: moments are always corrected.
        accum_type: Type of gradient accumulators, float32 or float16.
        first_order_momentum_accum_type: Type of first moments.
        second_order_momentum_accum_type: Type of second moments.
        max_grad_norm: Norm of all gradients together to which they are clipped; infinity not to clip.

    Raises:
        AssertionError: A type is neither float32 nor float16.
    """

    def __init__(
        self, params: Any, lr: float | None = None, betas: tuple[float, float] | None = None, eps: float | None = None,
        weight_decay: float | None = None, amsgrad: bool | None = None, maximize: bool | None = None,
        foreach: bool | None = None, capturable: bool | None = None, differentiable: bool | None = None,
        fused: bool | None = None, loss_scaling: float | None = None, bias_correction: bool | None = None,
        accum_type: torch.dtype | None = None, first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None, max_grad_norm: float | None = None,
    ) -> None:
        given = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad,
            "maximize": maximize, "foreach": foreach, "capturable": capturable, "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, **_present(given))
        types = _moments(first_order_momentum_accum_type, second_order_momentum_accum_type)
        self._begin(given, ADAM_ATTRIBUTES, loss_scaling, accum_type, **types)
        self.bias_correction = bias_correction is not False
        self.max_grad_norm = _checked_norm(max_grad_norm)


class RMSprop(Optimizer, torch.optim.RMSprop):
    """`torch.optim.RMSprop` with PopTorch's arguments.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate, as the arguments after it those of torch.
        alpha: Decay of the mean square.
        eps: Added to its root.
        weight_decay: Added to the gradient.
        momentum: Of the update.
        centered: Whether the mean gradient is taken off; the same in all groups.
        foreach: Of no effect.
        maximize: Whether to climb.
        differentiable: Must be False.
        loss_scaling: Factor on the loss and its gradients, divided out before the update.
        accum_type: Type of gradient accumulators, float32 or float16.
        first_order_momentum_accum_type: Type of mean gradients.
        second_order_momentum_accum_type: Type of mean squares.
        use_tf_variant: TensorFlow's arithmetic: mean squares begin at 1, ``eps`` is added under the root, and the rate
            is within the momentum. On the host `step` has torch's.

    Raises:
        AssertionError: A type is neither float32 nor float16, or groups differ in ``centered``.
    """

    def __init__(
        self, params: Any, lr: float | None = None, alpha: float | None = None, eps: float | None = None,
        weight_decay: float | None = None, momentum: float | None = None, centered: bool | None = None,
        foreach: bool | None = None, maximize: bool | None = None, differentiable: bool | None = None,
        loss_scaling: float | None = None, accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None, use_tf_variant: bool | None = None,
    ) -> None:
        given = {
            "lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay, "momentum": momentum,
            "centered": centered, "foreach": foreach, "maximize": maximize, "differentiable": differentiable,
        }
        super().__init__(params, **_present(given))
        self._begin(
            given, ("lr", "momentum", "weight_decay", "alpha", "eps", "centered"), loss_scaling, accum_type,
            **_moments(first_order_momentum_accum_type, second_order_momentum_accum_type),
        )
        assert len({group["centered"] for group in self.param_groups}) == 1, (
            "All parameter groups must have the same value of centered"
        )
        self.use_tf_variant = bool(use_tf_variant)
        for group in self.param_groups:
            group["use_tf_variant"] = self.use_tf_variant  # where the capture of an update looks for it


class LAMB(Optimizer, core.LAMB):
    """Adam scaled to the norm of the weights of each tensor; see `torchipu.optim.LAMB`.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate, 1e-3 by default.
        betas: Decays of the two moments, (0.9, 0.999) by default.
        eps: Added to the root of the second moment, 1e-8 by default.
        weight_decay: Share of the weights in the update, 1e-2 by default.
        bias_correction: Whether moments are corrected, True by default.
        loss_scaling: Factor on the loss and its gradients, divided out before the update.
        max_weight_norm: What a larger norm of weights counts as, 65500 by default.
        accum_type: Type of gradient accumulators, float32 or float16.
        first_order_momentum_accum_type: Type of first moments.
        second_order_momentum_accum_type: Type of second moments.

    Raises:
        AssertionError: A type is neither float32 nor float16.
    """

    def __init__(
        self, params: Any, lr: float | None = None, betas: tuple[float, float] | None = None, eps: float | None = None,
        weight_decay: float | None = None, bias_correction: bool | None = None, loss_scaling: float | None = None,
        max_weight_norm: float | None = None, accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
    ) -> None:
        given = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "max_weight_norm": max_weight_norm,
        }
        super().__init__(params, **_present({**given, "bias_correction": bias_correction}))
        self._begin(
            given, ("lr", "weight_decay", "betas", "eps", "max_weight_norm"), loss_scaling, accum_type,
            **_moments(first_order_momentum_accum_type, second_order_momentum_accum_type),
        )
        self.bias_correction = bias_correction is not False
        self.max_weight_norm = self.defaults["max_weight_norm"]


def check(optimizer: torch.optim.Optimizer) -> None:
    """Refuse what a training model cannot run.

    Args:
        optimizer: Of torch.optim or of this module.

    Raises:
        AssertionError: Of another kind.
        ValueError: AMSGrad.
        Error: An argument of this module that cannot run so far.
    """
    assert isinstance(optimizer, SUPPORTED), (
        f"Unsupported optimizer type {type(optimizer).__name__}. Supported types: "
        f"{', '.join(kind.__name__ for kind in SUPPORTED)}"
    )
    if type(optimizer) not in (*SUPPORTED, SGD, Adam, AdamW, RMSprop, LAMB):
        logger.warning(
            "Optimizers that are subclassed from classes in poptorch.optim or torch.optim are unlikely to behave as "
            "intended: a step method of their own is never run"
        )
    if any(group.get("amsgrad") for group in optimizer.param_groups):
        raise ValueError("Only non-amsgrad Adam/AdamW optimizers are supported.")
    if getattr(optimizer, "use_tf_variant", False) and not isinstance(optimizer, torch.optim.RMSprop):
        raise ValueError("use_tf_variant is an argument of poptorch.optim.RMSprop alone")


def attach(optimizer: object, executor: Executor) -> None:
    """Let an optimiser of this module belong to an executor; others know nothing of executors."""
    if isinstance(optimizer, Optimizer):
        optimizer._attach(executor)


def go_on(optimizer: object) -> None:
    """Let the program that has just been compiled go on from the loss scale of a state that was loaded before."""
    if isinstance(optimizer, Optimizer):
        optimizer._go_on_from_scale()


def _names(executor: Executor) -> dict[torch.Tensor, str]:
    """Return the name of each parameter of an executor's model."""
    model = executor._user_model
    return {p: name for name, p in model.named_parameters()} if isinstance(model, torch.nn.Module) else {}


def _moments(first: torch.dtype | None, second: torch.dtype | None) -> dict[str, torch.dtype | None]:
    return {"first_order_momentum_accum_type": first, "second_order_momentum_accum_type": second}


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _checked_type(name: str, dtype: torch.dtype | None) -> torch.dtype:
    assert dtype in (None, torch.float16, torch.float32), f"{name} must be one of torch.float16, torch.float32"
    return torch.float32 if dtype is None else dtype


def _checked_norm(norm: float | None) -> float:
    if norm is not None and math.isnan(norm):
        raise createPoptorchError("max_grad_norm must not be NaN")
    return math.inf if norm is None else float(norm)
