"""From a torch.optim optimiser to update ops, its state and its hyper-parameters."""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from torchipu._kernels.table.update import HYPER, HYPER_WORDS
from torchipu.capture.fx_types import dtype_of
from torchipu.errors import OptionsError
from torchipu.host.border import as_pairs
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType, Leg, Role
from torchipu.optim import LAMB, LARS

TORCH_DTYPES = {DType.HALF: torch.float16, DType.FLOAT: torch.float32}

Group = dict[str, Any]
State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one class of torch.optim is written in the IR.

    Attributes:
        base: The class.
        target: Name of the update op for a parameter group.
        states: Names in ``optimizer.state`` of the tensors like the parameter, for a parameter group, in the order
            of the op's operands.
        counts_in_state: Whether torch keeps ``step`` in the state.
        begins_with: What a state holds before the first update, for a parameter group and the name of the state.
    """

    base: type[torch.optim.Optimizer]
    target: Callable[[Group], str]
    states: Callable[[Group], tuple[str, ...]]
    counts_in_state: bool = True
    begins_with: Callable[[Group, str], float] = lambda group, key: 0.0


def _adam_target(group: Group) -> str:
    return "ipu.adamw.default" if group.get("decoupled_weight_decay") else "ipu.adam.default"


def _adam_states(group: Group) -> tuple[str, ...]:
    return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))


def _sgd_states(group: Group) -> tuple[str, ...]:
    return ("momentum_buffer",) if float(group["momentum"]) != 0 else ()


def _rmsprop_target(group: Group) -> str:
    return "ipu.rmsprop_tf.default" if group.get("use_tf_variant") else "ipu.rmsprop.default"


def _rmsprop_begin(group: Group, key: str) -> float:
    # In TensorFlow, so that the first steps are not larger than the rate.
    return 1.0 if group.get("use_tf_variant") and key == "square_avg" else 0.0


def _rmsprop_states(group: Group) -> tuple[str, ...]:
    momentum = ("momentum_buffer",) if float(group["momentum"]) > 0 else ()
    return ("square_avg", *momentum, *(("grad_avg",) if group["centered"] else ()))


FIRST_MOMENTS = ("momentum_buffer", "exp_avg", "grad_avg")
SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq", "square_avg")

KINDS = (
    _Kind(torch.optim.AdamW, lambda group: "ipu.adamw.default", _adam_states),
    _Kind(torch.optim.Adam, _adam_target, _adam_states),
    _Kind(torch.optim.SGD, lambda group: "ipu.sgd.default", _sgd_states, counts_in_state=False),
    _Kind(torch.optim.RMSprop, _rmsprop_target, _rmsprop_states, begins_with=_rmsprop_begin),
    _Kind(LAMB, lambda group: "ipu.lamb.default", lambda group: ("exp_avg", "exp_avg_sq")),
    _Kind(LARS, lambda group: "ipu.lars.default", lambda group: ("momentum_buffer",), counts_in_state=False),
)


@dataclass(slots=True)
class _SgdSteps:
    """Updates that an SGD optimiser has done to a parameter: torch does not count them, but the first one differs.

    Attributes:
        count: Of the updates, float[].
        buffer: The momentum buffer that they were done with; another one has been loaded, with updates behind it.
    """

    count: torch.Tensor
    buffer: torch.Tensor | None


_SGD_STEPS: weakref.WeakKeyDictionary[torch.optim.Optimizer, dict[torch.Tensor, _SgdSteps]]
_SGD_STEPS = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class OptimiserImport:
    """The update of a training step.

    Attributes:
        ops: Update ops, leg UPDATE: for each parameter a count of its steps and the update itself.
        inputs: State and hyper-parameter tensors to add to the graph's inputs.
        updates: ``(state or weight, next value)`` pairs.
        host: The user's tensor of each state; None for the hyper-parameters, which are copied in at each call.
        hyperparameters: The values of each hyper-parameter tensor, float64[16] in the order of ``HYPER``; `refresh`
            writes them.
        refresh: Reads learning rates and the other hyper-parameters anew, and takes over states that the user has
            put into ``optimizer.state``; call it before every run.
    """

    ops: tuple[Op, ...]
    inputs: tuple[Tensor, ...]
    updates: tuple[tuple[Tensor, Tensor], ...]
    host: dict[Tensor, torch.Tensor | None]
    hyperparameters: dict[Tensor, torch.Tensor]
    refresh: Callable[[], None]


def import_optimiser(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module, parameters: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor], *, gradient_scale: float = 1.0,
    state_types: Mapping[str, DType | None] = MappingProxyType({}), ignores_own_step: bool = False,
    always_damps: bool = False, label: str = "",
) -> OptimiserImport:
    """Write the update of an optimiser as ops.

    State that torch would create in its first step is created in ``optimizer.state`` now, so that ``state_dict`` and
    ``load_state_dict`` work as in torch.

    Args:
        optimizer: SGD, Adam, AdamW or RMSprop of torch.optim, LAMB or LARS of torchipu.optim.
        model: Owner of the parameters.
        parameters: Graph input of each parameter by name.
        gradients: Gradient of each parameter by name; parameters without one are not updated, as in torch.
        gradient_scale: Factor on every gradient before the update.
        state_types: Type of states that do not have that of their parameter, by name. States are made in it; one that
            the optimiser has already is kept as it is.
        ignores_own_step: Take a subclass with a ``step`` of its own for the class that it extends.
        always_damps: Let SGD's dampening act on every update, as PopART has it: ``v = m*v + (1-d)*g`` from ``v = 0``,
            without momentum too. torch takes the first gradient whole, and damps none without momentum.
        label: Put into the names of hyper-parameters, where a program has several optimisers.

    Raises:
        OptionsError: Another class of optimiser, a setting that the IPU cannot do, or a parameter of another model.
    """
    kind = _kind_of(optimizer, ignores_own_step)
    builder = _Builder(optimizer, kind, gradient_scale, state_types, always_damps, label)
    name_by_id = {id(tensor): name for name, tensor in model.named_parameters()}
    for number, group in enumerate(optimizer.param_groups):
        _check_group(optimizer, group)
        hyper = builder.hyper(number, group)
        for parameter in group["params"]:
            name = name_by_id.get(id(parameter))
            if name is None:
                raise OptionsError(
                    f"{type(optimizer).__name__} updates a parameter of shape {list(parameter.shape)} that the model "
                    "does not have", option="optimizer", remedy="make the optimiser from model.parameters()",
                )
            if name in gradients:
                builder.parameter(name, parameter, parameters[name], gradients[name], group, hyper)
    return builder.result()


def _kind_of(optimizer: torch.optim.Optimizer, ignores_own_step: bool) -> _Kind:
    """Return how an optimiser is written; a subclass counts as its base unless it has a step of its own."""
    for kind in KINDS:
        if isinstance(optimizer, kind.base) and (
            ignores_own_step or inspect.unwrap(type(optimizer).step) is inspect.unwrap(kind.base.step)
        ):
            return kind
    supported = ", ".join(sorted(f"{_home(kind.base)}.{kind.base.__name__}" for kind in KINDS))
    raise OptionsError(
        f"optimiser {type(optimizer).__module__}.{type(optimizer).__name__} cannot run on the IPU", option="optimizer",
        value=optimizer, allowed=supported,
        remedy='use one of these, or torch.compile(model, backend="ipu") with the optimiser run by torch on the host',
    )


def _as_number(optimizer: torch.optim.Optimizer, name: str, value: Any) -> float:
    """Return a hyper-parameter as a number: of a tensor or another array with one element, that."""
    if not isinstance(value, (str, bytes)):  # which float() would read
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            return float(value)
    raise OptionsError(
        f"{type(optimizer).__name__}: {name} of a parameter group must be a number, got {type(value).__name__} "
        f"{value!r}", option=name, value=value,
        remedy=f'set group["{name}"] to a number in each group of optimizer.param_groups',
    )


def _home(optimizer: type) -> str:
    """Return the package from which users import a class of optimiser."""
    return ".".join(optimizer.__module__.split(".")[:2])


def _check_group(optimizer: torch.optim.Optimizer, group: Group) -> None:
    if group.get("differentiable"):
        raise OptionsError(
            f"{type(optimizer).__name__}: differentiable=True cannot run on the IPU", option="differentiable",
            value=True, allowed="False", remedy="leave differentiable out",
        )


@dataclass(slots=True)
class _Held:
    """A state tensor of a parameter that the program works on."""

    key: str
    value: torch.Tensor


def _members(group: Group) -> list[int]:
    """Return which parameters a group has."""
    return [id(parameter) for parameter in group["params"]]


@dataclass(slots=True)
class _Builder:
    """Gathers the parts of an OptimiserImport."""

    optimizer: torch.optim.Optimizer
    kind: _Kind
    gradient_scale: float
    state_types: Mapping[str, DType | None]
    always_damps: bool = False
    label: str = ""
    ops: list[Op] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    updates: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    host: dict[Tensor, torch.Tensor | None] = field(default_factory=dict)
    hyperparameters: dict[Tensor, torch.Tensor] = field(default_factory=dict)
    groups: list[tuple[Tensor, object]] = field(default_factory=list)
    members: list[list[int]] = field(default_factory=list)
    rows: dict[Tensor, list[float]] = field(default_factory=dict)
    held: dict[torch.Tensor, list[_Held]] = field(default_factory=dict)

    def structure(self, group: Group) -> tuple[str, tuple[str, ...]]:
        """Return what of a group is fixed in the program: the op and the states that it works on."""
        return self.kind.target(group), self.kind.states(group)

    def hyper(self, number: int, group: Group) -> Tensor:
        """Enter the hyper-parameters of a group."""
        tensor = Tensor(f"hyper.{self.label}{number}", (HYPER_WORDS,), DType.LONG, Role.HYPERPARAMETER)
        self.hyperparameters[tensor] = torch.zeros(HYPER_WORDS, dtype=torch.float64)
        self.groups.append((tensor, self.structure(group)))
        self.members.append(_members(group))
        self.host[tensor] = None
        self.inputs.append(tensor)
        return tensor

    def parameter(
        self, name: str, parameter: torch.Tensor, weight: Tensor, gradient: Tensor, group: Group, hyper: Tensor,
    ) -> None:
        """Enter the update of one parameter."""
        names = self.kind.states(group)
        step = self.step(name, parameter)
        states = [weight, *(self.state(name, parameter, key, self.kind.begins_with(group, key)) for key in names)]
        counted = Tensor(f"{step.name}.next", (), DType.FLOAT, Role.OPTIMISER_STATE)
        self.ops.append(_update_op("ipu.increment.default", (step,), (counted,), ("step",)))
        self.updates.append((step, counted))
        outputs = tuple(Tensor(f"{state.name}.next", state.shape, state.dtype, state.role) for state in states)
        self.ops.append(_update_op(
            self.kind.target(group), (*states, gradient, hyper, counted), outputs,
            ("param", *names, "grad", "hyper", "step"),
        ))
        self.updates += zip(states, outputs, strict=True)

    def state(self, name: str, parameter: torch.Tensor, key: str, first: float) -> Tensor:
        """Enter a state tensor of the parameter's shape, created where torch has not done it."""
        state: State = self.optimizer.state[parameter]
        value = state.get(key)
        if value is None:
            chosen = None if parameter.is_complex() else self.state_types.get(key)
            dtype = parameter.dtype if chosen is None else TORCH_DTYPES[chosen]
            value = torch.empty_like(parameter.detach(), memory_format=torch.preserve_format, dtype=dtype)
            as_pairs(value).fill_(first)  # as torch has it, imaginary parts too
            if not self.kind.counts_in_state:  # before the buffer is in the state, where it would be one of torch's
                _sgd_steps(self.optimizer, parameter).buffer = value
            state[key] = value
        return self.hold(parameter, key, value, f"{key}.{name}")

    def step(self, name: str, parameter: torch.Tensor) -> Tensor:
        """Enter the count of updates of a parameter."""
        if self.kind.counts_in_state:
            state: State = self.optimizer.state[parameter]
            value = state.get("step")
            if not isinstance(value, torch.Tensor):
                value = torch.tensor(float(value or 0.0))
                state["step"] = value
            return self.hold(parameter, "step", value, f"step.{name}")
        steps = _sgd_steps(self.optimizer, parameter)
        if self.always_damps and steps.count < 1:
            steps.count.fill_(1.0)  # no update is the first: the buffer, which begins at 0, is decayed and added to
        return self.hold(parameter, "", steps.count, f"step.{name}")

    def hold(self, parameter: torch.Tensor, key: str, value: torch.Tensor, name: str) -> Tensor:
        """Make a graph input of a state tensor."""
        pairs = as_pairs(value)
        tensor = Tensor(name, tuple(pairs.shape), dtype_of(pairs.dtype), Role.OPTIMISER_STATE)
        self.host[tensor] = pairs
        self.inputs.append(tensor)
        if key:
            self.held.setdefault(parameter, []).append(_Held(key, value))
        return tensor

    def refresh(self) -> None:
        """Read hyper-parameters and adopted states."""
        # The groups are looked up anew: load_state_dict replaces them.
        self._check_members()
        for (tensor, structure), group in zip(self.groups, self.optimizer.param_groups, strict=True):
            if self.structure(group) != structure:
                raise OptionsError(
                    f"{type(self.optimizer).__name__}: a parameter group now needs other states than it was compiled "
                    f"with (was {structure}, is {self.structure(group)})", option="optimizer",
                    remedy="switch momentum, amsgrad, centered or decoupled_weight_decay on or off before the first "
                    "call, or make a new TrainStep",
                )
            row = self._hyper_row(group)
            if row != self.rows.get(tensor):  # a small tensor takes longer than all else here
                self.hyperparameters[tensor].copy_(torch.tensor(row, dtype=torch.float64))
                self.rows[tensor] = row
        for parameter, states in self.held.items():
            state: State = self.optimizer.state[parameter]
            for held in states:
                if state.get(held.key) is not held.value:
                    self._adopt(parameter, held, state)

    def _check_members(self) -> None:
        """Refuse groups that were added or taken away, or have other parameters: which updates what is compiled."""
        now = [_members(group) for group in self.optimizer.param_groups]
        if now == self.members:
            return
        what = (
            f"has {len(now)} parameter groups now, where the program was compiled with {len(self.members)}"
            if len(now) != len(self.members) else
            "has other parameters in its groups than when the program was compiled"
        )
        raise OptionsError(
            f"{type(self.optimizer).__name__}: {what}", option="optimizer",
            remedy="give all parameters their groups before the first call, those that rest with lr=0, or compile "
            "again: make a new TrainStep; with PopTorch, destroy() and wrap the model again",
        )

    def _hyper_row(self, group: Group) -> list[float]:
        """Return the hyper-parameters of a group in the order of ``HYPER``."""
        given, row = dict(group), [0.0] * HYPER_WORDS
        if "betas" in given:
            given["beta1"], given["beta2"] = given["betas"]
        given["grad_scale"] = self.gradient_scale
        for name, place in HYPER.items():
            value = given.get(name)
            if value is not None or self.optimizer.defaults.get(name) is not None and name in given:
                row[place] = _as_number(self.optimizer, name, value)
        if self.always_damps and row[HYPER["momentum"]] == 0:
            row[HYPER["lr"]] *= 1.0 - row[HYPER["dampening"]]  # the op without a buffer does not read dampening
        return row

    def _adopt(self, parameter: torch.Tensor, held: _Held, state: State) -> None:
        """Take over a state that load_state_dict has put in place of the one the program works on."""
        found = state.get(held.key)
        if not self.kind.counts_in_state:
            steps = _sgd_steps(self.optimizer, parameter)
            steps.count.fill_(1.0 if found is not None or self.always_damps else 0.0)
            steps.buffer = held.value
        with torch.no_grad():
            if isinstance(found, torch.Tensor):
                held.value.copy_(found)
            else:
                held.value.fill_(float(found or 0.0))
        state[held.key] = held.value

    def result(self) -> OptimiserImport:
        """Assemble the import, with the hyper-parameters as they are now."""
        self.refresh()
        return OptimiserImport(
            tuple(self.ops), tuple(self.inputs), tuple(self.updates), self.host, self.hyperparameters, self.refresh,
        )


def _sgd_steps(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> _SgdSteps:
    """Return the SGD updates of a parameter; they begin at 1 with a momentum buffer that is there or was loaded."""
    all_steps, buffer = _SGD_STEPS.setdefault(optimizer, {}), _momentum_buffer(optimizer, parameter)
    steps = all_steps.get(parameter)
    if steps is None:
        steps = all_steps[parameter] = _SgdSteps(torch.tensor(0.0 if buffer is None else 1.0), buffer)
    elif buffer is not None and buffer is not steps.buffer:
        steps.count.fill_(1.0)
        steps.buffer = buffer
    return steps


def _momentum_buffer(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> torch.Tensor | None:
    state: State = optimizer.state.get(parameter, {})  # a look-up by [] would make an entry, which torch does not
    found: torch.Tensor | None = state.get("momentum_buffer")
    return found


def _update_op(target: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], operands: tuple[str, ...]) -> Op:
    return Op(target.split(".")[1], inputs, outputs, target=target, operands=operands, leg=Leg.UPDATE)
