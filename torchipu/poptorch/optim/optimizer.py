"""What the optimisers of PopTorch have besides torch's: a loss scale, and states that travel with the device."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from torchipu.poptorch._logging import logger
from torchipu.poptorch.enums import ConnectionType
from torchipu.poptorch.optim import state_names
from torchipu.poptorch.optim.arguments import checked_type
from torchipu.poptorch.optim.attributes import VariableAttributes

SCALE_FACTOR = "lossScaleUpdateFactor"
"""PopART's name of how far automatic loss scaling has come from the loss scale of the constructor."""
SHOWN = 4
"""Missing states that a warning names."""


class Executor(Protocol):
    """What an optimiser asks of the executor that it belongs to."""

    @property
    def _executable(self) -> Any:
        """The program, or None."""
        ...

    @property
    def _user_model(self) -> Any:
        """Owner of the parameters."""
        ...

    @property
    def _options(self) -> Any:
        """The executor's own options."""
        ...

    @property
    def _was_compiled(self) -> bool:
        """Whether there has ever been a program."""
        ...

    def _pull_optimiser(self) -> bool:
        """Bring the states to the host; return whether those of the device were newer."""
        ...

    def setOptimizer(self, optimizer: Any) -> None:
        """Let the device use the optimiser's values."""
        ...


class Optimizer:
    """What the optimisers of PopTorch have besides torch's: see the classes of this package."""

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
        self.accum_type = checked_type("accum_type", accum_type)
        for name, dtype in types.items():
            setattr(self, name, checked_type(name, dtype))
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
            the variable numbers, or None where no program has been compiled, or one for a target without a device.
        """
        executor = self._attached()
        compiled = executor is not None and executor._was_compiled and not _is_offline(executor)
        if executor is not None and compiled and not executor._pull_optimiser():
            logger.debug("Using cached optimiser state dict")
        found: dict[str, Any] = super().state_dict()  # type: ignore[misc]
        names = _names(executor) if executor is not None and compiled else None
        return {
            "ipu_state": None if names is None else self._states(names),
            "ipu_param": None if names is None else self._numbers(names), **found,
        }

    def _states(self, names: Mapping[torch.Tensor, str]) -> dict[str, torch.Tensor]:
        """Return the states by PopART's names, with how far automatic loss scaling has come."""
        states = dict(state_names.moments(self, names))
        session = self._session()
        if session is not None and session.options.automatic_loss_scaling:
            states[SCALE_FACTOR] = torch.tensor(session.loss_scale / self.loss_scaling)
        return states

    def _numbers(self, names: Mapping[torch.Tensor, str]) -> dict[str, torch.Tensor]:
        numbers = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                for key, name, value in self._group_numbers(group):
                    if parameter in names and not self.variable_attrs.isConstant(key):
                        numbers[f"{name}___specific___{names[parameter]}"] = torch.tensor(value)
        if not self.variable_attrs.isConstant("loss_scaling"):
            numbers["lossScaling_FLOAT"] = torch.tensor(self.loss_scaling)
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
        states = state_dict["ipu_state"]
        self._take_plain(state_dict, has_states=states is not None)
        self._note_scale(states, state_dict["ipu_param"])
        self.ipu_state_is_dirty = states is not None
        if states is not None and executor is None:
            self._waiting = states
        elif states is not None:
            self._take(states)
        if executor is not None:
            executor.setOptimizer(self)

    def _take_plain(self, state_dict: Mapping[str, Any], *, has_states: bool) -> None:
        """Take over what torch has in a dictionary; states that are there by PopART's names are taken from those."""
        if "state" not in state_dict or "param_groups" not in state_dict:
            return
        plain = {key: value for key, value in state_dict.items() if key not in ("ipu_state", "ipu_param")}
        if has_states:
            plain["state"] = super().state_dict()["state"]  # type: ignore[misc]
        super().load_state_dict(plain)  # type: ignore[misc]

    def _note_scale(self, *held: Mapping[str, torch.Tensor] | None) -> None:
        """Let automatic loss scaling go on from the factor that one of some dictionaries holds."""
        factors = [values[SCALE_FACTOR] for values in held if values is not None and SCALE_FACTOR in values]
        self._scale_factor = float(factors[0]) if factors else None
        self._go_on_from_scale()

    def _take(self, states: Mapping[str, torch.Tensor]) -> None:
        """Set states by PopART's names; unknown ones are ignored, as PopTorch does."""
        executor = self._attached()
        assert executor is not None
        names = _names(executor)
        by_name = {name: parameter for parameter, name in names.items()}
        groups = {parameter: group for group in self.param_groups for parameter in group["params"]}
        keys = {known: key for key, known in state_names.names_of(self).items()}
        for long_name, value in states.items():
            prefix, _, name = long_name.partition("___")
            parameter, key = by_name.get(name), keys.get(prefix)
            if parameter is None or parameter not in groups or key is None:
                if long_name != SCALE_FACTOR:
                    logger.debug("Ignoring the unknown optimizer state %s", long_name)
            elif state_names.is_read(key, groups[parameter]):
                self.state[parameter][key] = value.detach().clone()
        missing = [name for name in state_names.expected(self, names) if name not in states]
        if missing:
            logger.warning(
                "The optimizer state that is loaded has no %s%s: what is missing keeps the value that it has",
                ", ".join(missing[:SHOWN]), f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else "",
            )

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[assignment]
        own = {key: value for key, value in vars(self).items() if key not in state and key != "_executor"}
        return {**own, **state}


def attach(optimizer: object, executor: Executor) -> None:
    """Let an optimiser of PopTorch's belong to an executor; others know nothing of executors."""
    if isinstance(optimizer, Optimizer):
        optimizer._attach(executor)


def go_on(optimizer: object) -> None:
    """Let the program that has just been compiled go on from the loss scale of a state that was loaded before."""
    if isinstance(optimizer, Optimizer):
        optimizer._go_on_from_scale()


def _is_offline(executor: Executor) -> bool:
    """Whether the program is for a target without a device, which could hold states."""
    return bool(executor._options.connection_type == ConnectionType.Never)


def _names(executor: Executor) -> dict[torch.Tensor, str]:
    """Return the name of each parameter of an executor's model."""
    model = executor._user_model
    return {p: name for name, p in model.named_parameters()} if isinstance(model, torch.nn.Module) else {}
