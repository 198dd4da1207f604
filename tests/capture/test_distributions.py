"""Distributions that are asked to validate: one graph through every door, and values are looked at when it runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, distributions, nn
from torch.distributions import kl_divergence

from torchipu import InferenceStep, TrainStep, poptorch

X = torch.arange(1.0, 13.0).reshape(3, 4).sin()


def divergence(x: Tensor) -> Tensor:
    posterior = distributions.Normal(x, x.exp(), validate_args=True)
    latent = posterior.rsample()
    prior = distributions.Independent(distributions.Normal(torch.zeros(4), 1.0, validate_args=True), 1)
    return kl_divergence(posterior, distributions.Normal(0.0, 1.0, validate_args=True)) + 0 * prior.log_prob(
        latent.detach(),
    )[:, None]


def squashed(x: Tensor) -> Tensor:
    base = distributions.Normal(x, x.exp(), validate_args=True)
    sigmoid = distributions.transforms.SigmoidTransform()
    return distributions.TransformedDistribution(base, [sigmoid], validate_args=True).log_prob(x.sigmoid())


FORMS: tuple[Callable[[Tensor], Tensor], ...] = (
    divergence, squashed,
    lambda x: distributions.Normal(x, x.exp(), validate_args=True).log_prob(x / 2),
    lambda x: distributions.Categorical(logits=x, validate_args=True).log_prob(x.argmax(-1)),
    lambda x: distributions.Categorical(logits=x, validate_args=True).entropy(),
    lambda x: distributions.Bernoulli(x.sigmoid(), validate_args=True).log_prob((x > 0).float()),
    lambda x: distributions.Geometric(x.sigmoid(), validate_args=True).log_prob(x.exp().floor()),
    lambda x: distributions.Beta(x.exp(), 2.0, validate_args=True).log_prob(x.sigmoid()),
    lambda x: distributions.Dirichlet(x.exp(), validate_args=True).log_prob(x.softmax(-1)),
    lambda x: distributions.MultivariateNormal(x, scale_tril=torch.eye(4), validate_args=True).log_prob(2 * x),
)


class Scoring(nn.Module):
    def __init__(self, form: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.form = form
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.form(x * self.weight)
        return scores.detach(), poptorch.identity_loss(scores.sum(), "none")


def of_step(model: nn.Module, x: Tensor) -> Tensor:
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1))(x)[0]  # type: ignore[no-any-return]


def of_poptorch(model: nn.Module, x: Tensor) -> Tensor:
    return poptorch.inferenceModel(model)(x)[0]  # type: ignore[no-any-return]


def compiled(model: nn.Module, x: Tensor) -> Tensor:
    torch._dynamo.reset()
    return torch.compile(model, backend="ipu", fullgraph=True)(x)[0]


DOORS = (compiled, lambda model, x: InferenceStep(model)(x)[0], of_step, of_poptorch)


@pytest.mark.parametrize("form", FORMS)
def test_those_that_validate_score_as_eager_does(form: Callable[[Tensor], Tensor]) -> None:
    model = Scoring(form)
    expected, _ = model(X)
    for door in DOORS if form is divergence else (compiled, of_poptorch):
        torch.testing.assert_close(door(model if door is compiled else Scoring(form), X), expected)


@pytest.mark.parametrize(("form", "words"), [
    (lambda x: distributions.Normal(x, x, validate_args=True).mean, "parameter scale of distribution Normal"),
    (lambda x: distributions.Geometric(x.relu(), validate_args=True).probs, "probs of distribution Geometric"),
    (lambda x: distributions.Exponential(x.exp(), validate_args=True).log_prob(x), "support of distribution Exponent"),
])
@pytest.mark.parametrize("door", DOORS)
def test_values_that_do_not_satisfy_a_constraint_end_the_run(
    door: Callable[[nn.Module, Tensor], Tensor], form: Callable[[Tensor], Tensor], words: str,
) -> None:
    door(Scoring(form), X.sigmoid())
    with pytest.raises((RuntimeError, poptorch.Error), match=words):
        door(Scoring(form), X)


@pytest.mark.parametrize("door", DOORS)
def test_sizes_that_do_not_fit_are_refused_at_capture(door: Callable[[nn.Module, Tensor], Tensor]) -> None:
    model = Scoring(lambda x: distributions.Normal(x, x.exp(), validate_args=True).log_prob(x[:, :3]))
    with pytest.raises(Exception, match=r"not broadcastable|Observed exception"):
        door(model, X)
