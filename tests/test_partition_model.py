"""The estimate behind `autopipeline`: what crosses links and what a schedule takes, against the compiled program."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from published_models import LanguageModel, tokens
from torchipu.compiler import try_graph
from torchipu.ir.modules import Module, fine_modules, modules_of
from torchipu.ir.types import Leg
from torchipu.options import Options
from torchipu.partition.door import _Search, _step
from torchipu.partition.model import ALL, NONE, Model
from torchipu.partition.search import Cuts, made
from torchipu.partition.trial import Trial, blocks_of, recomputed
from torchipu.passes.canonicalise import canonicalise
from torchipu.target import lookup_target

VOCABULARY, WIDTH, LENGTH, BATCH = 2048, 64, 32, 4
TABLE_BYTES = VOCABULARY * WIDTH * 4


class Prepared:
    """A captured model with a shared table, its modules, its estimate and its compiler."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        model: nn.Module = LanguageModel(VOCABULARY, LENGTH, WIDTH, 4, 4)
        options = Options(gradient_accumulation=64)
        step = _step(model, None, options, is_training=True)
        graph = canonicalise(step.graph_of(tokens(BATCH, LENGTH, VOCABULARY), {}))
        self.search = _Search(model, graph, options, lookup_target("mk2"), 3, True)
        alone = try_graph(graph, Options(gradient_accumulation=64, recompute="none"), self.search.target)
        cycles = alone.cost.cycles_by_result
        self.root = modules_of(graph, cycles)
        self.modules: list[Module] = fine_modules(self.root, self.root.cycles / 12)
        self.model: Model = self.search._model(self.modules, cycles)

    def at(self, path: str) -> int:
        """Return the number of the unit at which a module begins."""
        return next(number for number, module in enumerate(self.modules) if module.path.startswith(path))

    def cuts(self, paths: Sequence[str], ipus: Sequence[int], kind: str = NONE) -> Cuts:
        """Return the choice whose stages begin at these modules."""
        return made(self.model, [0, *map(self.at, paths)], ipus, [kind] * len(ipus), False)

    def trial(self, cuts: Cuts) -> Trial:
        """Compile a choice."""
        stages = blocks_of(self.root, self.modules, cuts, self.model.whole)
        return self.search._try(stages, cuts.ipus, recomputed(stages, cuts.kinds), off_chip=False)


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return Prepared()


ROW, FOLDED = (("layers.1", "layers.3"), (0, 1, 2)), (("layers.0", "layers.2", "dense"), (0, 1, 2, 0))


def test_the_gradient_of_a_shared_table_crosses_links_where_its_readers_are_apart(prepared: Prepared) -> None:
    hidden = BATCH * LENGTH * WIDTH * 4
    apart = prepared.model.sends(prepared.cuts(*ROW).begins, ROW[1])
    assert apart[0, Leg.UPDATE] == {(0, 2): TABLE_BYTES}  # the table itself, once an update
    assert apart[2, Leg.BACKWARD][2, 0] >= TABLE_BYTES
    assert apart[0, Leg.FORWARD][0, 1] == hidden
    folded = prepared.model.sends(prepared.cuts(*FOLDED).begins, FOLDED[1])
    assert (0, Leg.UPDATE) not in folded
    assert all(count < TABLE_BYTES for sent in folded.values() for count in sent.values())


@pytest.mark.parametrize("choice", [ROW, FOLDED], ids=["row", "folded"])
@pytest.mark.parametrize("kind", [NONE, ALL])
def test_the_estimate_is_near_what_is_compiled(
    choice: tuple[Sequence[str], Sequence[int]], kind: str, prepared: Prepared,
) -> None:
    cuts = prepared.cuts(*choice, kind)
    trial = prepared.trial(cuts)
    assert cuts.cycles == pytest.approx(trial.cycles, rel=0.1)


def test_links_take_what_is_estimated(prepared: Prepared) -> None:
    for choice in (ROW, FOLDED):
        cuts = prepared.cuts(*choice)
        trial = prepared.trial(cuts)
        sent: dict[tuple[int, int], int] = {}
        sends = prepared.model.sends(cuts.begins, cuts.ipus)
        for traffic in [row for (_, leg), row in sends.items() if leg is not Leg.UPDATE]:
            for pair, count in traffic.items():
                sent[pair] = sent.get(pair, 0) + count
        functions = trial.compiled.executable.functions
        compiled: dict[tuple[int, int], int] = {}
        for name, program in functions.items():
            if name.endswith(".send"):
                for copy in program.body:  # type: ignore[attr-defined]
                    pair = (copy.src.ipu, copy.dst.ipu)
                    compiled[pair] = compiled.get(pair, 0) + copy.total_bytes
        assert sent == compiled


def test_shared_weights_count_once_on_an_ipu(prepared: Prepared) -> None:
    cuts = prepared.cuts(*FOLDED)
    parts = prepared.model.parts(cuts.begins, cuts.ipus, cuts.kinds)[0]
    apart = sum(prepared.model.tile_bytes([part], False) for part in parts)
    assert prepared.model.tile_bytes(parts, False) == pytest.approx(apart - TABLE_BYTES / 1472)


def test_trials_teach_what_other_stages_at_their_place_need(prepared: Prepared) -> None:
    cuts = prepared.cuts(*ROW)
    for parts in prepared.model.parts(cuts.begins, cuts.ipus, cuts.kinds).values():
        prepared.model.learn(parts, False, 700_000)
        assert not prepared.model.holds(parts, False)
        prepared.model.learn(parts, False, 600_000)
        assert prepared.model.holds(parts, False)
    prepared.model.learnt_bytes.clear()
    prepared.model._guessed.clear()
