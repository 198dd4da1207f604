"""Any split of the replicas among processes gives the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.distributed.processes import Group, run_all

CASES: dict[str, dict[str, Any]] = {
    "one micro-batch": {"model": "images", "replicas": 4, "options": {"seed": 3}},
    "accumulation": {
        "model": "images", "replicas": 4, "options": {"gradient_accumulation": 3, "device_iterations": 2, "seed": 3},
    },
    "own statistics": {"model": "normalised", "replicas": 4, "options": {"gradient_accumulation": 2, "seed": 3}},
    "buckets": {"model": "wide", "replicas": 4, "optimiser": "adamw", "options": {"gradient_accumulation": 2}},
    "clipping": {
        "model": "images", "replicas": 4, "optimiser": "adamw",
        "options": {"gradient_accumulation": 2, "max_grad_norm": 0.05, "seed": 3},
    },
    "half": {
        "model": "images", "replicas": 4, "half": True,
        "options": {"gradient_accumulation": 2, "stochastic_rounding": True, "loss_scaling": 64.0, "seed": 3},
    },
    "running mean": {
        "model": "images", "replicas": 4, "half": True,
        "options": {"gradient_accumulation": 3, "mean_reduction": "running", "accumulator_type": "half", "seed": 3},
    },
    "automatic loss scale": {
        "model": "images", "replicas": 4, "half": True,
        "options": {"gradient_accumulation": 2, "automatic_loss_scaling": True, "loss_scale_period": 1, "seed": 3},
    },
    "sum": {"model": "images", "replicas": 4, "options": {"accumulation_reduction": "sum", "seed": 3}},
}
SIX = {name: case | {"replicas": 6} for name, case in CASES.items() if name in ("accumulation", "buckets", "half")}


SPLITS = {"four": (CASES, (1, 2, 4)), "six": (SIX, (1, 3, 2))}
"""Cases of so many replicas, and among how many processes they are split: the last one in a thorough run alone."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, is_thorough: bool) -> dict[str, list[list[Any]]]:
    splits = [(name, Group("tests.distributed.splits:train", size, cases))
              for name, (cases, sizes) in SPLITS.items() for size in sizes[:None if is_thorough else 2]]
    found: dict[str, list[list[Any]]] = {name: [] for name in SPLITS}
    groups = run_all([group for _, group in splits], tmp_path_factory.mktemp("splits"))
    for (name, _), results in zip(splits, groups, strict=True):
        found[name].append(results)
    return found


@pytest.fixture(params=SPLITS)
def groups(request: pytest.FixtureRequest, ran: dict[str, list[list[Any]]]) -> list[list[Any]]:
    return ran[request.param]


def test_weights_and_optimiser_states_are_the_same_on_all_processes_of_any_split(groups: list[list[Any]]) -> None:
    (whole,) = groups[0]
    for name, wanted in whole.items():
        for ranks in groups[1:]:
            for found in ranks:
                for key, weight in wanted["weights"].items():
                    assert torch.equal(found[name]["weights"][key], weight), (name, len(ranks), key)
                assert len(found[name]["states"]) == len(wanted["states"])
                assert all(map(torch.equal, found[name]["states"], wanted["states"])), (name, len(ranks))
                assert found[name]["scale"] == wanted["scale"]


def test_losses_of_any_split_are_those_of_one_process(groups: list[list[Any]]) -> None:
    (whole,) = groups[0]
    for name, wanted in whole.items():
        for ranks in groups[1:]:
            together = torch.cat([found[name]["losses"] for found in ranks], dim=1)
            assert torch.equal(together, wanted["losses"]), (name, len(ranks))
            assert torch.isfinite(together).all()
