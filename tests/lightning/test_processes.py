"""Two processes under one Trainer: weights of the first, shards of the loaders, metrics and decisions of all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.distributed.forked import OnDemand, on_demand
from tests.lightning.ranks import RECIPES, SCENARIOS
from tests.lightning.runs import Run, loader


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnDemand]:
    with on_demand("tests.lightning.ranks", SCENARIOS, tmp_path_factory.mktemp("ranks")) as scenarios:
        yield scenarios


def both(trained: OnDemand, name: str) -> list[dict[str, Any]]:
    """Return what each process has come to."""
    assert all(outcome.error is None for outcome in trained[name]), [outcome.error for outcome in trained[name]]
    return [outcome.value for outcome in trained[name]]


@pytest.fixture(scope="module")
def ranks(trained: OnDemand) -> list[dict[str, Any]]:
    return both(trained, "automatic")


def test_all_begin_with_the_weights_of_the_first_and_sum_their_gradients(ranks: list[dict[str, Any]]) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 2)
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for update in range(2):
        optimizer.zero_grad()
        for rank in ranks:
            for batch in range(2):
                labels = torch.tensor(rank["seen"][4 * update + 2 * batch :][:2])
                (torch.nn.functional.cross_entropy(layer(x[labels]), labels % 2) / 4).backward()
        optimizer.step()
    assert ranks[0]["weight"] == pytest.approx(layer.weight.flatten().tolist(), abs=1e-6)
    assert ranks[1]["weight"] == ranks[0]["weight"]


def test_loaders_are_shared_and_each_sample_is_seen_once(ranks: list[dict[str, Any]]) -> None:
    assert sorted(ranks[0]["seen"] + ranks[1]["seen"]) == list(range(16))
    assert [rank["world"] for rank in ranks] == [2, 2]
    assert [rank["replicas"] for rank in ranks] == [1, 1]


def test_metrics_are_those_of_all(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["metrics"]["mean"] == pytest.approx(7.5)
        assert rank["metrics"]["total"] == pytest.approx(120)


def test_collectives_of_the_strategy(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert (rank["sum"], rank["average"]) == (3.0, 1.5)
        assert (rank["any"], rank["all"]) == (True, False)
        assert rank["gathered"] == [0, 1]
        assert rank["said"] == {"by": 1}


def test_programs_of_training_are_given_the_group(ranks: list[dict[str, Any]]) -> None:
    assert all(rank["group"] for rank in ranks)


@pytest.mark.suffices(name=["GAN", "WithNorms"])
@pytest.mark.parametrize("name", RECIPES)
def test_processes_train_as_one_batch_of_their_size(trained: OnDemand, name: str) -> None:
    """Two processes of two replicas are one CPU run on batches four times as large."""
    cpu = Run("cpu", RECIPES[name], lambda: loader(96, batch_size=16), max_epochs=1)
    ranks = both(trained, name)
    assert ranks[0]["steps"] == cpu.trainer.global_step
    norms = {key: value for key, value in cpu.metrics.items() if "norm" in key}
    assert ranks[1]["metrics"] == pytest.approx(norms, rel=1e-3)
    assert bool(norms) == (name == "WithNorms")
    for key, value in cpu.module.state_dict().items():
        torch.testing.assert_close(torch.tensor(ranks[0]["weights"][key]), value, rtol=1e-3, atol=2e-5, msg=key)
    assert ranks[0]["weights"] == ranks[1]["weights"]
