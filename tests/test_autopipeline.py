"""Automatic placement: what is proposed is what a step compiles, is as good as splits by hand, and fits."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import torchipu
from published_models import PUBLISHED, LanguageModel, VisionTransformer, tokens
from torchipu.errors import OptionsError, OutOfTileMemoryError, PlacementError
from torchipu.target import TARGETS, lookup_target

MICRO, LENGTH = 2, 16


def small(depth: int = 4) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(96, LENGTH, 32, depth, 4)


class Tower(nn.Module):
    """Layers of which the first takes most: mean squared error of its prediction."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wide = nn.Sequential(nn.Linear(16, 512), nn.ReLU(), nn.Linear(512, 64))
        self.narrow = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(5)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(self.wide(x)).square().mean()


def example(batch: int = MICRO) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randint(96, (batch, LENGTH), generator=generator) for _ in range(2))  # type: ignore[return-value]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.fixture
def scarce(monkeypatch: pytest.MonkeyPatch) -> str:
    """A machine with few tiles that hold little."""
    target = replace(
        lookup_target("mk2"), name="scarce", num_tiles=8, tile_memory_bytes=120_000, code_region_bytes=40_000,
    )
    monkeypatch.setitem(TARGETS, "scarce", target)
    return "scarce"


def test_what_is_accepted_compiles_to_what_was_proposed_and_trains_as_before() -> None:
    model = small()
    twin = copy.deepcopy(model)
    twin.decoder.weight = twin.words.weight
    proposal = torchipu.autopipeline(
        model, example(), 3, optimizer=sgd(model), options=torchipu.Options(gradient_accumulation=8),
    )
    assert len(proposal.trial.memory) == 3
    step = torchipu.TrainStep(model, sgd(model), replace(proposal.accept(), seed=1))
    loss = step(*example(8 * MICRO))
    assert step.compiled.cost.cycles == proposal.trial.compiled.cost.cycles
    alone = torchipu.TrainStep(twin, sgd(twin), torchipu.Options(gradient_accumulation=8, seed=1))
    assert torch.equal(loss, alone(*example(8 * MICRO)))
    assert all(map(torch.equal, model.parameters(), twin.parameters()))


def test_stages_balance_where_blocks_by_count_do_not() -> None:
    model = Tower()
    proposal = torchipu.autopipeline(
        model, torch.randn(64, 16), 2, options=torchipu.Options(gradient_accumulation=32),
    )
    even = {"wide": 0, "narrow.0": 0, "narrow.1": 0, "narrow.2": 1, "narrow.3": 1, "narrow.4": 1}
    assert proposal.cycles <= proposal.compare(even)
    text = str(proposal)
    assert text.startswith("2 stages on 2 IPUs of Graphcore Mk2 GC200: ")
    assert "above the mean" in text
    assert "of 638,976 B" in text


@pytest.mark.thorough  # the next one does so for small models
@pytest.mark.slow
@pytest.mark.parametrize("name", list(PUBLISHED))
def test_proposals_are_at_least_as_good_as_published_splits(name: str) -> None:
    # At full size by hand: python benchmarks/published_models.py
    published = PUBLISHED[name]
    proposal = published.propose(8)
    assert proposal.trial.fits
    assert proposal.cycles <= proposal.compare(published.starts())


@pytest.mark.suffices(name=["vit", "gpt2"])
@pytest.mark.parametrize("name", ["bert", "vit", "gpt2"])
def test_small_models_of_each_family_are_placed_at_least_as_well_as_by_hand(name: str) -> None:
    torch.manual_seed(0)
    model: nn.Module = VisionTransformer(64, 64, 4, 4, 10) if name == "vit" else LanguageModel(512, 32, 64, 4, 4)
    inputs = (torch.randn(8, 3, 64, 64), torch.randint(10, (8,))) if name == "vit" else tokens(
        4, 32, 512, 8 if name == "bert" else 0,
    )
    layers, head = ((2, 2), {"norm": 1}) if name == "vit" else ((0, 2, 2), {"dense": 0})
    hand = replace(PUBLISHED["vit-base" if name == "vit" else "bert-base"], layers=layers, head=head)
    proposal = torchipu.autopipeline(
        model, inputs, len(layers), options=torchipu.Options(gradient_accumulation=64), optimizer=sgd(model),
    )
    assert proposal.cycles <= proposal.compare(hand.starts())
    assert len(proposal.trial.memory) == len(layers)


def test_a_shared_weight_has_all_its_readers_on_one_ipu_and_the_proposal_says_so() -> None:
    torch.manual_seed(0)
    model = LanguageModel(4096, LENGTH, 64, 3, 4)
    batch = tokens(MICRO, LENGTH, 4096)
    proposal = torchipu.autopipeline(model, batch, 3, options=torchipu.Options(gradient_accumulation=32))
    ipus = proposal.trial.ipus
    assert ipus[-1] == ipus[0] == 0
    assert len(set(ipus)) == 3
    assert f"- stage {len(ipus) - 1} is on ipu 0 like stage 0, where words.weight is, which both read" in str(proposal)
    # With the decoder at the end of a row of IPUs the gradient of the table crosses them, once a micro-batch.
    apart = {"words": 0, "layers.1": 1, "layers.2": 2}
    assert proposal.cycles < 0.8 * proposal.compare(apart)
    again = torchipu.autopipeline(model, batch, 3, options=torchipu.Options(gradient_accumulation=32))
    assert str(again) == str(proposal)
    step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), proposal.accept())
    step.compile(*tokens(32 * MICRO, LENGTH, 4096))
    assert step.compiled.cost.cycles == proposal.trial.compiled.cost.cycles


def test_inference_is_placed_too() -> None:
    model = small(2).eval()
    proposal = torchipu.autopipeline(model, example(), 2)
    assert proposal.options.device_iterations >= 2
    assert "device_iterations is raised from 1 to" in str(proposal)
    step = torchipu.InferenceStep(model, proposal.accept())
    batch = example(proposal.options.device_iterations * MICRO)
    wanted = torch.stack([model(*pair) for pair in zip(*(value.split(MICRO) for value in batch), strict=True)])
    torch.testing.assert_close(step(*batch), wanted)


def test_stages_that_do_not_fit_are_recomputed_and_the_proposal_says_so(scarce: str) -> None:
    model = small(6)
    options = torchipu.Options(gradient_accumulation=8, target=scarce)
    proposal = torchipu.autopipeline(model, example(), 2, options=options)
    assert proposal.trial.fits
    assert proposal.options.recompute != "none"
    assert "recomputed" in str(proposal).splitlines()[0]
    step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), proposal.accept())
    step.compile(*example(8 * MICRO))
    wasteful = replace(proposal.options, recompute="none")
    with pytest.raises(OutOfTileMemoryError):
        torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), wasteful).compile(*example(8 * MICRO))


def test_a_model_that_fits_nowhere_is_refused_with_the_best_that_was_found(scarce: str) -> None:
    model = small(8)
    options = torchipu.Options(target=scarce)
    with pytest.raises(OutOfTileMemoryError, match=r"no split over 1 IPU fits: the best of \d+ tried needs \d+ B on"):
        torchipu.autopipeline(model, example(), 1, options=options)
    allowed = replace(options, allow_out_of_memory=True)
    assert not torchipu.autopipeline(model, example(), 1, options=allowed).trial.fits


def test_gradient_accumulation_is_raised_to_what_the_pipeline_needs() -> None:
    model = small(3)
    proposal = torchipu.autopipeline(model, {"tokens": example()[0], "labels": example()[1]}, 2)
    stages = len(proposal.stages)
    assert proposal.options.gradient_accumulation == 2 * stages - 1 > 1
    assert f"gradient_accumulation is raised from 1 to {2 * stages - 1}" in str(proposal)


def test_the_model_and_the_optimiser_stay_as_they_were() -> None:
    model = small(2)
    optimizer = torch.optim.Adam(model.parameters())
    before = copy.deepcopy(model.state_dict())
    torchipu.autopipeline(model, example(), 2, optimizer=optimizer)
    assert not optimizer.state
    assert not any("forward" in vars(module) for module in model.modules())
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize(("change", "kind", "words"), [
    ({"num_ipus": 0}, OptionsError, "num_ipus must be a whole number from 1, got 0"),
    ({"num_ipus": 65}, PlacementError, "1 x 65 IPUs are asked for, but mk2 has 64"),
    ({"options": torchipu.Options(blocks=("a",))}, OptionsError, "options.blocks places the model already"),
])
def test_bad_requests_are_named(change: dict[str, object], kind: type[Exception], words: str) -> None:
    given = {"num_ipus": 2, **change}
    with pytest.raises(kind, match=words):
        torchipu.autopipeline(small(2), example(), **given)  # type: ignore[arg-type]


def test_models_with_blocks_are_refused() -> None:
    model = small(2)
    torchipu.BeginBlock(model.layers[1], "second", 1)
    with pytest.raises(PlacementError, match=r"module 'layers.1' begins block 'second' already"):
        torchipu.autopipeline(model, example(), 2)

    class Blocked(Tower):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torchipu.Block("mine"):
                return super().forward(x)

    with pytest.raises(PlacementError, match="the model puts ops into block 'mine' already"):
        torchipu.autopipeline(Blocked(), torch.randn(4, 16), 2)


def test_comparing_names_unknown_modules() -> None:
    proposal = torchipu.autopipeline(small(2), example(), 2)
    with pytest.raises(PlacementError, match=r"the model has no module 'layer.1'; did you mean 'layers.1'\?"):
        proposal.compare({"words": 0, "layer.1": 1})
