"""Hooks between backward and update see the gradients that they see on the CPU."""

from __future__ import annotations

import warnings
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.utilities import grad_norm
from torch import nn

from tests.lightning.runs import Classifier, Run, assert_same, loader
from tests.lightning.test_manual_optimisation import GAN, Accumulating, Manual


class WithNorms(Classifier):
    """Logs norms before the update, as Lightning's documentation has it."""

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.log_dict(grad_norm(self, norm_type=2))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)


class WithUnused(WithNorms):
    """Has a layer that the loss does not need, and notes which gradients are there after each backward."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(2, 2)
        self.losses: list[float] = []
        self.missing: list[list[str]] = []
        self.sums: list[float] = []

    def on_before_backward(self, loss: torch.Tensor) -> None:
        self.losses.append(float(loss))

    def on_after_backward(self) -> None:
        self.missing.append([name for name, p in self.named_parameters() if p.grad is None])
        self.sums.append(float(self.net[0].weight.grad.abs().sum()))


class Watcher(L.Callback):
    """Notes gradients before each update, as watchers do."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.seen.append(torch.cat([p.grad.flatten().clone() for p in module.parameters()]))


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_norms_are_those_of_the_cpu_before_clipping(accumulate: int, clip: float | None) -> None:
    _, ours = assert_same(WithNorms, accumulate_grad_batches=accumulate, gradient_clip_val=clip)
    assert any("grad_2.0_norm_total" in logged for logged in ours.logged)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_gradients_after_each_backward_are_those_accumulated_so_far(accumulate: int) -> None:
    cpu, ours = assert_same(WithUnused, accumulate_grad_batches=accumulate)
    assert ours.module.missing == cpu.module.missing
    assert ours.module.missing[0] == ["unused.weight", "unused.bias"]
    assert ours.module.sums == pytest.approx(cpu.module.sums, rel=1e-3)
    assert ours.module.losses == pytest.approx(cpu.module.losses, rel=1e-3)


def test_callbacks_see_the_mean_over_replicas_and_one_update_at_a_time() -> None:
    from lightning.pytorch.strategies import IPUStrategy

    watchers = [Watcher(), Watcher()]
    cpu = Run("cpu", Classifier, lambda: loader(96, batch_size=16), max_epochs=2, callbacks=lambda: [watchers[0]])
    ours = Run(
        "ipu", Classifier, lambda: loader(96, batch_size=4), max_epochs=2, callbacks=lambda: [watchers[1]], devices=4,
        strategy=IPUStrategy(device_iterations=3),
    )
    assert len(watchers[0].seen) == len(watchers[1].seen) == cpu.trainer.global_step == ours.trainer.global_step
    for one, other in zip(watchers[0].seen, watchers[1].seen, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(ours.module.net[0].weight, cpu.module.net[0].weight, rtol=1e-3, atol=2e-5)


def test_program_hands_back_no_gradients_that_nobody_looks_at() -> None:
    ours = Run("ipu", Classifier, lambda: loader(16), max_epochs=1)
    assert all(parameter.grad is None for parameter in ours.module.parameters())
    [program] = ours.trainer.strategy.poptorch_models["train"].programs
    assert program.carried is None


def test_writes_into_gradients_are_named_once_and_change_nothing() -> None:
    class Writing(Classifier):
        def on_before_optimizer_step(self, optimizer: Any) -> None:
            for parameter in self.parameters():
                parameter.grad.zero_()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = L.Trainer(
            accelerator="ipu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )
        L.seed_everything(1, verbose=False)
        module = Writing()
        trainer.fit(module, loader(32))
    found = [str(one.message) for one in caught if "changes gradients" in str(one.message)]
    assert len(found) == 1
    assert "`on_before_optimizer_step` hook of `Writing`" in found[0]
    plain = Run("ipu", Classifier, lambda: loader(32), max_epochs=1)
    torch.testing.assert_close(module.net[0].weight, plain.module.net[0].weight)


# --------------------------------------------------------------------------- clipping
class ClippingByHook(WithNorms):
    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.log("norm", grad_norm(self, 2)["grad_2.0_norm_total"])

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None,
    ) -> None:
        if self.current_epoch == 0:
            self.clip_gradients(optimizer, gradient_clip_val=0.05, gradient_clip_algorithm="norm")
        else:
            self.clip_gradients(optimizer, gradient_clip_val=0.01, gradient_clip_algorithm="value")


def test_hook_that_only_clips_is_followed() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*configure_gradient_clipping.*")
        cpu, _ = assert_same(ClippingByHook)
    free = Run("cpu", WithNorms, lambda: (loader(shuffle=True), loader()), max_epochs=2)
    assert not torch.allclose(free.module.net[0].weight, cpu.module.net[0].weight, atol=1e-2)


def test_hook_that_does_more_is_ignored_and_named() -> None:
    class Scaling(Classifier):
        def configure_gradient_clipping(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
            for parameter in self.parameters():
                parameter.grad.mul_(0.5)

    trainer = L.Trainer(accelerator="ipu", devices=1, fast_dev_run=True, enable_progress_bar=False)
    with pytest.warns(UserWarning, match="`configure_gradient_clipping` hook in `Scaling`, but it will be ignored"):
        trainer.fit(Scaling(), loader(16))


# --------------------------------------------------------------------------- manual optimisation
class Noting:
    """Notes each hook, and the sum of what is in the gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[tuple[str, float]] = []

    def _note(self, hook: str) -> None:
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        self.order.append((hook, float(sum(gradient.abs().sum() for gradient in gradients))))

    def on_before_backward(self, loss: torch.Tensor) -> None:
        self._note(f"before backward of {tuple(loss.shape)}")

    def on_after_backward(self) -> None:
        self._note("after backward")

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self._note(f"before step of {type(optimizer).__name__} {self.trainer.optimizers.index(optimizer)}")


class HookedManual(Noting, Manual):
    pass


class HookedAccumulation(Noting, Accumulating):
    pass


class HookedGAN(Noting, GAN):
    pass


@pytest.mark.parametrize("make", [HookedManual, HookedAccumulation, HookedGAN])
@pytest.mark.parametrize("replicas", [1, 2])
def test_manual_optimisation_calls_hooks_in_their_order_with_their_gradients(make: type, replicas: int) -> None:
    cpu = Run("cpu", make, lambda: loader(96, batch_size=16), max_epochs=1)
    ours = Run("ipu", make, lambda: loader(96, batch_size=16 // replicas), max_epochs=1, devices=replicas)
    assert [hook for hook, _ in ours.module.order] == [hook for hook, _ in cpu.module.order]
    assert [s for _, s in ours.module.order] == pytest.approx([s for _, s in cpu.module.order], rel=1e-3, abs=1e-5)
