"""Stand-ins for optimisers and schedulers while a step of manual optimisation is captured; what they note."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from torchipu.capture.manual_updates import reduced, stepped
from torchipu.errors import CaptureError
from torchipu.lightning.batches import Results
from torchipu.lightning.expressions import Guard, Output, Surroundings, evaluated, number
from torchipu.lightning.tape import Tape
from torchipu.lightning.traced_parameters import TracedParameters


# --------------------------------------------------------------------------- what is done on the host
@dataclass(frozen=True, slots=True)
class Stepped:
    """A call of ``optimizer.step()``, which a program has done: Lightning counts it."""

    step: int
    optimiser: int

    def do(self, module: Any, at: Surroundings) -> None:
        """Count it."""
        wrapped = module.trainer.strategy._lightning_optimizers[self.optimiser]
        wrapped._on_before_step()
        wrapped._optimizer._opt_called = True  # schedulers warn otherwise
        wrapped._on_after_step()


@dataclass(frozen=True, slots=True)
class SchedulerCall:
    """A call of a scheduler's ``step``."""

    number: int
    optimiser: int
    args: Any
    kwargs: Any

    def do(self, module: Any, at: Surroundings) -> None:
        """Call it."""
        scheduler = module.trainer.lr_scheduler_configs[self.number].scheduler
        # Whatever called for it, its optimiser has stepped before in this run or an earlier one.
        scheduler.step(*evaluated(self.args, at), **evaluated(self.kwargs, at))


@dataclass(frozen=True, slots=True)
class HyperParameterSet:
    """An assignment to an entry of a parameter group."""

    optimiser: int
    group: int
    key: str
    value: Any

    def do(self, module: Any, at: Surroundings) -> None:
        """Assign."""
        module.trainer.optimizers[self.optimiser].param_groups[self.group][self.key] = evaluated(self.value, at)


@dataclass(frozen=True, slots=True)
class HookCall:
    """A call of a hook that looks at gradients.

    Attributes:
        name: Of the hook.
        args: What it is given.
        optimiser: Number of the optimiser that it is given, or None.
        gradients: Outputs that have the gradients, by parameter name.
    """

    name: str
    args: Any
    optimiser: int | None
    gradients: Mapping[str, Output]

    def do(self, module: Any, at: Surroundings) -> None:
        """Call it with the gradients that were there."""
        trainer, results = module.trainer, cast(Results, at.outputs)
        hooks = trainer.strategy._hooks
        left = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
        hooks.show({name: results.of_first(output.place) for name, output in self.gradients.items()})
        args = evaluated(self.args, at) if self.optimiser is None else (trainer.optimizers[self.optimiser],)
        hooks.call(self.name, *args)
        hooks.show(left)


CHANGES = (SchedulerCall, HyperParameterSet)
"""What changes hyper-parameters: done before the next step of the same optimiser, or at the end."""


# --------------------------------------------------------------------------- what the step is given
class Recorder:
    """What a step does with gradients and optimisers while it is captured.

    Args:
        module: The Lightning module.
        tape: Where it is noted what the host has to do.
        guards: Where it is noted what the capture depends on.
        parameters: What stands for the module's.
        share: Factor on gradients: one over the replicas whose gradients are added up.
    """

    def __init__(
        self, module: Any, tape: Tape, guards: list[Guard], parameters: TracedParameters, share: float,
    ) -> None:
        self.module, self.tape, self.guards = module, tape, guards
        self.parameters, self.share = parameters, share
        self.trainer = module._trainer
        self.steps = 0
        self.flags: dict[str, bool] = {}
        self.optimizers = [TracedOptimizer(self, n, real) for n, real in enumerate(self.trainer.optimizers)]
        self.schedulers = [
            TracedScheduler(self, n, config.scheduler) for n, config in enumerate(self.trainer.lr_scheduler_configs)
        ]

    # ------------------------------------------------------------------ members of the module
    def members(self) -> dict[str, Any]:
        """Return what stands for members of the module."""
        return {
            "optimizers": self.given_optimizers, "lr_schedulers": self.given_schedulers,
            "manual_backward": self.manual_backward, "toggle_optimizer": self.toggle,
            "untoggle_optimizer": self.untoggle, "clip_gradients": self.clip,
        }

    def given_optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """Stand in for ``optimizers``."""
        return self.optimizers[0] if len(self.optimizers) == 1 else list(self.optimizers)

    def given_schedulers(self) -> Any:
        """Stand in for ``lr_schedulers``."""
        if not self.schedulers:
            return None
        return self.schedulers[0] if len(self.schedulers) == 1 else list(self.schedulers)

    def manual_backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        """Stand in for ``manual_backward``; ``torch.autograd.backward`` is ours, too."""
        self._hook("on_before_backward", (loss.detach(),))
        self.module.backward(loss, *args, **kwargs)
        self._hook("on_after_backward")

    def _hook(self, name: str, args: tuple[Any, ...] = (), optimiser: int | None = None) -> None:
        """Note the call of a hook, if somebody has it."""
        if not self.trainer.strategy._hooks.owners[name]:
            return
        leaves = {name: self.parameters.leaf(name).grad for name in self.parameters.names}
        with torch.no_grad():
            gradients = {name: self.tape.hold(g.detach().clone()) for name, g in leaves.items() if g is not None}
        self.tape.actions.append(HookCall(name, self.tape.hold(args), optimiser, gradients))

    def toggle(self, optimizer: Any) -> None:
        """Stand in for ``toggle_optimizer``."""
        flags: dict[str, bool] = {}
        for one in self.optimizers:
            for name in one.names():
                if name not in flags:
                    flags[name] = self.parameters.leaf(name).requires_grad
                    self.parameters.leaf(name).requires_grad = False
        for name in self._traced(optimizer).names():
            self.parameters.leaf(name).requires_grad = flags[name]
        self.flags = flags

    def untoggle(self, optimizer: Any) -> None:
        """Stand in for ``untoggle_optimizer``."""
        chosen = self._traced(optimizer)
        for one in self.optimizers:
            if one is not chosen:
                for name in one.names():
                    if name in self.flags:
                        self.parameters.leaf(name).requires_grad = self.flags[name]
        self.flags = {}

    def clip(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: Any = None,
    ) -> None:
        """Stand in for ``clip_gradients``."""
        value = 0.0 if gradient_clip_val is None else gradient_clip_val
        algorithm = "norm" if gradient_clip_algorithm is None else str(
            getattr(gradient_clip_algorithm, "value", gradient_clip_algorithm)
        ).lower()
        if algorithm not in ("norm", "value"):
            raise ValueError(f"`gradient_clip_algorithm` {gradient_clip_algorithm} is invalid: 'norm' or 'value'")
        if value <= 0:
            return
        leaves = [self.parameters.leaf(name) for name in self._traced(optimizer).names()]
        if algorithm == "norm":
            torch.nn.utils.clip_grad_norm_(leaves, value)
        else:
            torch.nn.utils.clip_grad_value_(leaves, value)

    def _traced(self, optimizer: Any) -> TracedOptimizer:
        real = getattr(optimizer, "optimizer", optimizer)
        found = next((one for one in self.optimizers if real in (one, one.real)), None)
        if found is None:
            raise CaptureError(
                f"{type(optimizer).__name__} is none of the optimisers that configure_optimizers has returned",
                remedy="use what self.optimizers() gives",
            )
        return found

    # ------------------------------------------------------------------ backward and step
    def backward(
        self, tensors: Any, grad_tensors: Any = None, retain_graph: bool | None = None, create_graph: bool = False,
        grad_variables: Any = None, inputs: Any = None,
    ) -> None:
        """Stand in for ``torch.autograd.backward``: put gradients into ``grad`` of what stands for parameters."""
        tensors = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)
        given = grad_variables if grad_tensors is None else grad_tensors
        given = (given,) * len(tensors) if given is None or isinstance(given, torch.Tensor) else tuple(given)
        if create_graph and self.share != 1.0:
            raise CaptureError(
                "backward(create_graph=True) on several replicas: `grad` holds their mean, which is made when the "
                "pass has ended", remedy="use torch.autograd.grad(..., create_graph=True), as for gradient penalties",
            )
        wanted = None if inputs is None else {id(leaf) for leaf in ([inputs] if isinstance(inputs, torch.Tensor)
                                                                    else inputs)}
        pairs = [(name, leaf) for name, leaf in self.parameters.trained() if wanted is None or id(leaf) in wanted]
        with self.parameters.in_backward():
            starts = [self._start(tensor, gradient) for tensor, gradient in zip(tensors, given, strict=True)]
            found = torch.autograd.grad(
                tensors, [leaf for _, leaf in pairs] or tensors, starts, retain_graph=retain_graph,
                create_graph=create_graph, allow_unused=True,
            )
            gradients: dict[str, torch.Tensor] = {}
            for (name, _), gradient in zip(pairs, found, strict=False):
                if gradient is not None:
                    gradients[name] = gradients[name] + gradient if name in gradients else gradient
            for name, gradient in gradients.items():
                self._accumulate(name, gradient, create_graph)

    def _accumulate(self, name: str, gradient: torch.Tensor, create_graph: bool) -> None:
        leaf = self.parameters.leaf(name)
        if create_graph:
            leaf.grad = gradient if leaf.grad is None else leaf.grad + gradient
            return
        with torch.no_grad():
            held = None if leaf.grad is None else leaf.grad.detach()
            leaf.grad = reduced(gradient.detach(), held, name)

    def _start(self, tensor: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Return what a backward pass begins from."""
        if self.share == 1.0:
            return gradient
        if gradient is not None:
            return gradient * self.share
        if tensor.numel() != 1:
            raise RuntimeError("grad can be implicitly created only for scalar outputs")
        return torch.full_like(tensor, self.share)

    def step(self, optimiser: int, names: list[str]) -> None:
        """Note an update of parameters, and bind what stands for their next values."""
        self._hook("on_before_optimizer_step", (), optimiser)
        number, self.steps = self.steps, self.steps + 1
        self.tape.actions.append(Stepped(number, optimiser))
        with torch.no_grad():
            for name in names:
                leaf = self.parameters.leaf(name)
                if leaf.grad is not None:
                    after = stepped(leaf.detach(), leaf.grad.detach(), number, optimiser, name)
                    self.parameters.bind(name, after)


class TracedOptimizer:
    """Stands for an optimiser.

    Args:
        recorder: Where it is noted what is done with it.
        number: Of the optimiser.
        real: The optimiser.
    """

    def __init__(self, recorder: Recorder, number: int, real: torch.optim.Optimizer) -> None:
        self._recorder, self._number, self.real = recorder, number, real
        self._groups = [_Group(recorder, number, n, group) for n, group in enumerate(real.param_groups)]

    @property
    def optimizer(self) -> TracedOptimizer:
        """Itself: there is no other one while the step is captured."""
        return self

    @property
    def param_groups(self) -> list[_Group]:
        """What stands for the parameter groups."""
        return self._groups

    @property
    def defaults(self) -> dict[str, Any]:
        """The hyper-parameters that it was made with."""
        return self.real.defaults

    def names(self) -> list[str]:
        """Return the names of its parameters."""
        return [self._recorder.parameters.name_of(p) for group in self.real.param_groups for p in group["params"]]

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Note an update; a closure is called before it, as optimisers do that call it once."""
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        self._recorder.step(self._number, self.names())
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients."""
        for name in self.names():
            leaf = self._recorder.parameters.leaf(name)
            if leaf.grad is not None:
                leaf.grad = None if set_to_none else torch.zeros_like(leaf.grad)

    @contextlib.contextmanager
    def toggle_model(self, sync_grad: bool = True) -> Iterator[None]:
        """Let only its own parameters take gradients."""
        self._recorder.toggle(self)
        yield
        self._recorder.untoggle(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise CaptureError(
            f"training_step reads `{name}` of {type(self.real).__name__}, which has no value while it is captured",
            remedy="read it in a hook such as on_train_batch_end, from self.trainer.optimizers",
        )


class _Group(Mapping[str, Any]):
    """Stands for a parameter group: parameters are those of the capture, numbers are noted when they are read."""

    def __init__(self, recorder: Recorder, optimiser: int, number: int, real: dict[str, Any]) -> None:
        self._recorder, self._optimiser, self._number, self._real = recorder, optimiser, number, real
        self._set: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key == "params":
            parameters = self._recorder.parameters
            return [parameters.leaf(parameters.name_of(parameter)) for parameter in self._real["params"]]
        if key in self._set:
            return self._set[key]
        optimiser, group, trainer = self._optimiser, self._number, self._recorder.trainer
        return number(
            self._real[key], lambda at: trainer.optimizers[optimiser].param_groups[group][key], self._recorder.guards,
        )

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "params":
            raise CaptureError(
                "training_step changes the parameters of an optimiser", remedy="do it in configure_optimizers or a hook"
            )
        self._set[key] = value
        tape = self._recorder.tape
        tape.actions.append(HyperParameterSet(self._optimiser, self._number, key, tape.hold(value)))

    def __iter__(self) -> Iterator[str]:
        return iter(self._real)

    def __len__(self) -> int:
        return len(self._real)


class TracedScheduler:
    """Stands for a scheduler of learning rates.

    Args:
        recorder: Where it is noted what is done with it.
        number: Of the scheduler.
        real: The scheduler.
    """

    def __init__(self, recorder: Recorder, number: int, real: Any) -> None:
        self._recorder, self._number, self._real = recorder, number, real

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Note a step."""
        tape, trainer = self._recorder.tape, self._recorder.trainer
        optimiser = next((n for n, one in enumerate(trainer.optimizers) if one is self._real.optimizer), -1)
        tape.actions.append(SchedulerCall(self._number, optimiser, tape.hold(args), tape.hold(kwargs)))

    def get_last_lr(self) -> list[Any]:
        """Return the learning rates as numbers that change."""
        return [self._noted(place) for place in range(len(self._real.get_last_lr()))]

    def _noted(self, place: int) -> Any:
        trainer, which = self._recorder.trainer, self._number
        return number(
            self._real.get_last_lr()[place],
            lambda at: trainer.lr_scheduler_configs[which].scheduler.get_last_lr()[place], self._recorder.guards,
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(self._real, name)
        if isinstance(value, (bool, int, float, str, type(None))):
            trainer, which = self._recorder.trainer, self._number
            return number(
                value, lambda at: getattr(trainer.lr_scheduler_configs[which].scheduler, name), self._recorder.guards,
            )
        return value
