"""Manual optimisation with unmodified modules is what it is on the CPU: weights, gradients, logs, counts of steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.lightning.runs import Classifier, Run, assert_same, loader, samples
from torchipu.errors import CaptureError


class Manual(Classifier):
    """One optimiser, called by the step."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = self.loss(batch)
        self.manual_backward(loss)
        optimizer.step()
        self.log("loss", loss, on_step=True, on_epoch=True)


class GAN(Classifier):
    """Lightning's own recipe: two optimisers, toggled; the discriminator is trained on what it has just judged."""

    normalised = False
    again = True

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        middle = [nn.BatchNorm1d(16)] if self.normalised else []
        self.generator = nn.Sequential(nn.Linear(3, 16, bias=not self.normalised), *middle, nn.ReLU(), nn.Linear(16, 8))
        self.discriminator = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
        del self.net

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, _ = batch
        z = x[:, :3] * 2 - 1
        g_opt, d_opt = self.optimizers()
        ones, zeros = torch.ones(len(x), 1), torch.zeros(len(x), 1)

        self.toggle_optimizer(g_opt)
        made = self.generator(z)
        g_loss = F.binary_cross_entropy_with_logits(self.discriminator(made), ones)
        self.log("g_loss", g_loss, prog_bar=True)
        g_opt.zero_grad()
        self.manual_backward(g_loss)
        g_opt.step()
        self.untoggle_optimizer(g_opt)

        with self.toggled_optimizer(d_opt):
            fake = self.generator(z).detach() if self.again else made.detach()
            real_loss = F.binary_cross_entropy_with_logits(self.discriminator(x), ones)
            fake_loss = F.binary_cross_entropy_with_logits(self.discriminator(fake), zeros)
            d_loss = (real_loss + fake_loss) / 2
            d_opt.zero_grad()
            self.manual_backward(d_loss)
            d_opt.step()
        self.log_dict({"d_loss": d_loss, "real": real_loss})

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("judged", self.discriminator(batch[0]).mean())

    def configure_optimizers(self) -> Any:
        return (
            torch.optim.Adam(self.generator.parameters(), lr=1e-2, betas=(0.5, 0.999)),
            torch.optim.Adam(self.discriminator.parameters(), lr=1e-2, betas=(0.5, 0.999)),
        )


class NormalisedGAN(GAN):
    normalised = True


class GANOfOneProgram(GAN):
    again = False


class Accumulating(Manual):
    every = 3

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer = self.optimizers()
        loss = self.loss(batch) / self.every
        self.manual_backward(loss)
        if (batch_idx + 1) % self.every == 0:
            optimizer.step()
            optimizer.zero_grad()
        self.log("loss", loss)
        return {"loss": loss}


class ManySteps(Manual):
    """Three updates in a step, of gradients at the weights of the last one."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer = self.optimizers()
        for number in range(3):
            optimizer.zero_grad()
            loss = self.loss(batch)
            self.manual_backward(loss)
            optimizer.step()
            self.log(f"loss_{number}", loss)
        self.log("step", torch.ones(()) * self.global_step)
        return loss


class TwoLosses(Manual):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer = self.optimizers()
        optimizer.zero_grad(set_to_none=False)
        logits = self(batch[0])
        first, second = F.cross_entropy(logits, batch[1]), logits.square().mean()
        self.manual_backward(first, retain_graph=True)
        self.manual_backward(second)
        optimizer.step()
        self.log_dict({"first": first, "second": second})
        return first + second


class Clipped(Manual):
    how = "lightning"

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = self.loss(batch)
        self.manual_backward(loss)
        match self.how:
            case "lightning":
                self.clip_gradients(optimizer, gradient_clip_val=0.05, gradient_clip_algorithm="norm")
            case "lightning, value":
                self.clip_gradients(optimizer, gradient_clip_val=0.02, gradient_clip_algorithm="value")
            case "torch":
                self.log("norm", torch.nn.utils.clip_grad_norm_(self.parameters(), 0.05))
            case "torch, value":
                torch.nn.utils.clip_grad_value_(self.parameters(), 0.02)
            case "by hand":
                for parameter in self.parameters():
                    parameter.grad.mul_(0.1)
        optimizer.step()
        self.log("loss", loss)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)


class Scheduled(Manual):
    plateau = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer, scheduler = self.optimizers(), self.lr_schedulers()
        optimizer.zero_grad()
        loss = self.loss(batch)
        self.manual_backward(loss)
        optimizer.step()
        is_end = self.trainer.is_last_batch and self.trainer.current_epoch % 2 == 1
        if is_end or batch_idx % 4 == 1:
            scheduler.step(*([loss] if self.plateau else []))
        self.log("rate", scheduler.get_last_lr()[0])
        self.log("loss", loss)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        if self.plateau:
            return [optimizer], [torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)]
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)]


class ScheduledByPlateau(Scheduled):
    plateau = True


class Smooth(GAN):
    """Without kinks and normalised updates, by which differences of rounding grow."""

    def __init__(self) -> None:
        super().__init__()
        self.generator[1] = nn.Tanh()
        self.discriminator[1] = nn.Tanh()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.05) for part in (self.generator, self.discriminator)]


class ScheduledByMetric(Manual):
    """A plateau of what was logged: its value is there when the scheduler is called."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        super().training_step(batch, batch_idx)
        if "loss_step" in self.trainer.callback_metrics and batch_idx % 2:
            self.lr_schedulers().step(self.trainer.callback_metrics["loss_step"])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.5)]


class NowAndThen(Smooth):
    """The critic is trained at every batch, the generator at every third, and the critic's weights are bounded."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, _ = batch
        z = x[:, :3] * 2 - 1
        g_opt, d_opt = self.optimizers()
        d_loss = self.discriminator(self.generator(z).detach()).mean() - self.discriminator(x).mean()
        d_opt.zero_grad()
        self.manual_backward(d_loss)
        d_opt.step()
        with torch.no_grad():
            for parameter in self.discriminator.parameters():
                parameter.clamp_(-0.1, 0.1)
        if batch_idx % 3 == 0 and self.global_step >= 2:
            g_loss = -self.discriminator(self.generator(z)).mean()
            g_opt.zero_grad()
            self.manual_backward(g_loss)
            g_opt.step()
            self.log("g_loss", g_loss)
        self.log("d_loss", d_loss)


class GradientPenalty(Smooth):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, _ = batch
        z = x[:, :3] * 2 - 1
        g_opt, d_opt = self.optimizers()
        fake = self.generator(z)
        between = (0.3 * x + 0.7 * fake.detach()).requires_grad_()
        judged = self.discriminator(between)
        [slopes] = torch.autograd.grad(judged, between, torch.ones_like(judged), create_graph=True)
        penalty = (slopes.norm(2, dim=1) - 1).square().mean()
        d_loss = self.discriminator(fake.detach()).mean() - self.discriminator(x).mean() + 2 * penalty
        d_opt.zero_grad()
        self.manual_backward(d_loss)
        d_opt.step()
        g_loss = -self.discriminator(fake).mean()
        g_opt.zero_grad()
        self.manual_backward(g_loss)
        g_opt.step()
        self.log_dict({"d_loss": d_loss, "g_loss": g_loss, "penalty": penalty})


class WithClosure(GAN):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, _ = batch
        z = x[:, :3] * 2 - 1
        g_opt, d_opt = self.optimizers()

        def of_generator() -> torch.Tensor:
            g_opt.zero_grad()
            loss = -self.discriminator(self.generator(z)).mean()
            self.manual_backward(loss)
            return loss

        def of_discriminator() -> torch.Tensor:
            d_opt.zero_grad()
            loss = F.softplus(self.discriminator(self.generator(z).detach()) - self.discriminator(x)).mean()
            self.manual_backward(loss)
            return loss

        with g_opt.toggle_model():
            self.log("g_loss", g_opt.step(closure=of_generator))
        with d_opt.toggle_model():
            self.log("d_loss", d_opt.step(closure=of_discriminator))


class RatesByHand(Manual):
    """A warm-up in the step, and another rate for its second update."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer = self.optimizers()
        for factor in (1.0, 0.1):
            for group in optimizer.param_groups:
                group["lr"] = 1e-3 * factor * min(5, self.global_step + 1)
            optimizer.zero_grad()
            loss = self.loss(batch)
            self.manual_backward(loss)
            optimizer.step()
        self.log("loss", loss)


RECIPES = [
    Manual, GAN, NormalisedGAN, GANOfOneProgram, Accumulating, ManySteps, TwoLosses, Scheduled, ScheduledByPlateau,
    ScheduledByMetric, NowAndThen, GradientPenalty, WithClosure, RatesByHand,
]


def gradients_agree(one: Run, other: Run) -> None:
    for name, parameter in one.module.named_parameters():
        held = other.module.get_parameter(name).grad
        assert (parameter.grad is None) == (held is None), name
        if held is not None:
            torch.testing.assert_close(held, parameter.grad, rtol=1e-3, atol=2e-5, msg=name)


@pytest.mark.parametrize("make", RECIPES)
def test_recipe_gives_what_it_gives_on_the_cpu(make: type) -> None:
    cpu, ours = assert_same(make)
    gradients_agree(cpu, ours)
    for one, other in zip(cpu.trainer.optimizers, ours.trainer.optimizers, strict=True):
        assert one.param_groups[0]["lr"] == pytest.approx(other.param_groups[0]["lr"])


HOWS = ["lightning", "lightning, value", "torch", "torch, value", "by hand"]


@pytest.mark.parametrize("how", HOWS)
def test_gradients_are_clipped(how: str) -> None:
    kind = type("ClippedThisWay", (Clipped,), {"how": how})
    cpu, ours = assert_same(kind)
    gradients_agree(cpu, ours)
    free = Run("cpu", type("Free", (Clipped,), {"how": ""}), lambda: (loader(shuffle=True), loader()), max_epochs=2)
    assert not torch.allclose(free.module.net[0].weight, cpu.module.net[0].weight, atol=1e-2)


def on_replicas(make: type, replicas: int = 2, count: int = 96) -> tuple[Run, Run]:
    """Train on batches of several replicas, and on the CPU on batches as large as theirs together."""
    size = 16 // replicas
    cpu = Run("cpu", make, lambda: loader(count, batch_size=16), max_epochs=2)
    ours = Run("ipu", make, lambda: loader(count, batch_size=size), max_epochs=2, devices=replicas)
    assert ours.trainer.global_step == cpu.trainer.global_step
    assert ours.metrics == pytest.approx(cpu.metrics, rel=1e-3, abs=2e-5)
    for name, value in cpu.module.state_dict().items():
        torch.testing.assert_close(ours.module.state_dict()[name], value, rtol=1e-3, atol=2e-5, msg=name)
    gradients_agree(cpu, ours)
    return cpu, ours


OF_ONE = (NormalisedGAN, ScheduledByPlateau, ScheduledByMetric)
"""Whose statistics, or values in mid-epoch, are not those of a batch of all replicas."""


@pytest.mark.suffices(make=[GAN, Accumulating, ManySteps, Scheduled])
@pytest.mark.parametrize("make", [make for make in RECIPES if make not in OF_ONE])
def test_replicas_train_as_one_batch_of_their_size(make: type) -> None:
    _, ours = on_replicas(make)
    assert all(p.options.replicas == 2 for p in ours.trainer.strategy.poptorch_models["train"].programs)


@pytest.mark.suffices(how=["lightning, value", "torch"])
@pytest.mark.parametrize("how", HOWS)
def test_gradients_of_replicas_are_clipped_when_they_are_averaged(how: str) -> None:
    on_replicas(type("ClippedThisWay", (Clipped,), {"how": how}), 4)


# --------------------------------------------------------------------------- programs
def test_independent_updates_share_a_program_and_dependent_ones_follow_each_other() -> None:
    counts = {}
    for make in (Manual, GANOfOneProgram, GAN, ManySteps):
        ours = Run("ipu", make, lambda: loader(16), max_epochs=1)
        counts[make] = len(ours.trainer.strategy.poptorch_models["train"].programs)
    # Of both updates of a GAN neither needs the other, unless the generator runs again.
    assert counts == {Manual: 1, GANOfOneProgram: 1, GAN: 2, ManySteps: 3}


def test_each_way_of_a_branch_is_captured_once() -> None:
    ours = Run("ipu", Accumulating, lambda: loader(96), max_epochs=3)
    programs = ours.trainer.strategy.poptorch_models["train"].programs
    assert len(programs) == 3  # the first gradient, another on top of it, and one with an update


def test_backward_ops_are_of_the_backward_leg_and_name_the_line_of_the_step() -> None:
    ours = Run("ipu", Manual, lambda: loader(8), max_epochs=1)
    [program] = ours.trainer.strategy.poptorch_models["train"].programs
    by_leg: dict[str, set[str]] = {}
    for op in program.compiled.graph.ops:
        by_leg.setdefault(op.leg.value, set()).add(op.kind)
    assert {"matmul", "relu"} & by_leg["F"] or "addmm" in by_leg["F"]
    assert "threshold_backward" in by_leg["B"]
    assert "adam" in by_leg["U"]


def test_blocks_put_a_segment_on_several_ipus() -> None:
    class Split(Manual):
        def __init__(self) -> None:
            super().__init__()
            import poptorch

            poptorch.BeginBlock(self.net[0], "first", ipu_id=0)
            poptorch.BeginBlock(self.net[2], "second", ipu_id=1)

    _, ours = assert_same(Split, max_epochs=1)
    graph = ours.trainer.strategy.poptorch_models["train"].programs[0].compiled.graph
    assert {op.placement.ipu for op in graph.ops if op.placement is not None} == {0, 1}


def test_device_iterations_and_whole_batches_are_batch_by_batch() -> None:
    import poptorch
    from lightning.pytorch.strategies import IPUStrategy

    assert_same(GAN, ipu={"strategy": IPUStrategy(device_iterations=4)}, max_epochs=1)
    opts = poptorch.Options()
    opts.replicationFactor(2)
    whole = Run(
        "ipu", GAN, lambda: poptorch.DataLoader(opts, samples(96), batch_size=8), max_epochs=1, devices=2,
        strategy=IPUStrategy(training_opts=opts),
    )
    cpu = Run("cpu", GAN, lambda: loader(96, batch_size=16), max_epochs=1)
    torch.testing.assert_close(
        whole.module.generator[0].weight, cpu.module.generator[0].weight, rtol=1e-3, atol=2e-5
    )


# --------------------------------------------------------------------------- Lightning's own
@pytest.mark.thorough  # tests/lightning/test_callbacks.py goes on from one
def test_training_goes_on_from_a_checkpoint(tmp_path: Any) -> None:
    whole = Run("ipu", GAN, lambda: loader(), max_epochs=3)
    half = Run("ipu", GAN, lambda: loader(), max_epochs=1)
    path = str(tmp_path / "half.ckpt")
    half.trainer.save_checkpoint(path)
    import lightning as L

    from tests.lightning.runs import QUIET

    module = GAN()
    trainer = L.Trainer(accelerator="ipu", devices=1, max_epochs=3, **QUIET)
    trainer.fit(module, loader(), ckpt_path=path)
    assert trainer.global_step == whole.trainer.global_step
    for name, value in whole.module.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], value, msg=name)
    on_cpu = L.Trainer(accelerator="cpu", max_epochs=3, **QUIET)
    other = GAN()
    on_cpu.fit(other, loader(), ckpt_path=path)
    for name, value in whole.module.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value, rtol=1e-3, atol=2e-5, msg=name)


def test_ragged_batch_of_replicas_is_one_of_a_single_replica() -> None:
    cpu = Run("cpu", GAN, lambda: loader(91, batch_size=16), max_epochs=1)
    ours = Run("ipu", GAN, lambda: loader(91, batch_size=8), max_epochs=1, devices=2)
    torch.testing.assert_close(ours.module.generator[0].weight, cpu.module.generator[0].weight, rtol=1e-3, atol=2e-5)


# --------------------------------------------------------------------------- what cannot be
def refused(make: type, error: type[Exception] = CaptureError, **kwargs: Any) -> str:
    with pytest.raises(error) as caught:
        Run("ipu", make, lambda: loader(16), max_epochs=1, **kwargs)
    return str(caught.value)


def test_branch_on_a_value_names_the_step_and_the_line() -> None:
    class Branching(Manual):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            loss = self.loss(batch)
            self.manual_backward(loss)
            if loss > 1:
                self.optimizers().step()

    text = refused(Branching)
    assert "Branching.training_step at" in text
    assert "torch.where" in text


def test_lbfgs_and_several_optimisers_without_manual_optimisation_keep_their_words() -> None:
    from lightning.pytorch.utilities.exceptions import MisconfigurationException

    class WithLBFGS(Manual):
        def configure_optimizers(self) -> Any:
            return torch.optim.LBFGS(self.parameters())

    class Several(GAN):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = True

    assert refused(WithLBFGS, MisconfigurationException) == "IPUs and the LBFGS optimizer are not compatible."
    with pytest.raises(Exception, match=r"multiple optimizers|only support one optimizer"):
        Run("ipu", Several, lambda: loader(16), max_epochs=1)


def test_accumulation_on_the_device_is_refused() -> None:
    import poptorch
    from lightning.pytorch.strategies import IPUStrategy
    from lightning.pytorch.utilities.exceptions import MisconfigurationException

    opts = poptorch.Options()
    opts.Training.gradientAccumulation(4)
    text = refused(Manual, MisconfigurationException, strategy=IPUStrategy(training_opts=opts))
    assert "gradientAccumulation(4)" in text
    assert "every n-th batch" in text


def test_state_of_an_optimiser_is_refused_within_the_step() -> None:
    class Peeking(Manual):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.optimizers().state  # noqa: B018

    assert "`state` of Adam" in refused(Peeking)
