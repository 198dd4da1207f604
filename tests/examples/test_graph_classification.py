"""Facts of the example that tells molecules apart, and of its data."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("torch_geometric", reason='needs pip install "torchipu[geometric]"')

import graph_classification

SMALL = ("--num-molecules", "256", "--device-iterations", "2")


def test_a_label_says_whether_there_is_the_bond() -> None:
    generator = torch.Generator().manual_seed(0)
    molecules = [graph_classification.make_molecule(generator) for _ in range(40)]
    assert {int(one.y) for one in molecules} == {0, 1}
    for one in molecules:
        elements = one.x.argmax(1)
        bonds = [{int(elements[begin]), int(elements[end])} for begin, end in one.edge_index.T]
        assert int(one.y) == ({0, 1} in bonds)
        assert one.num_edges == 2 * (one.num_nodes - 1)


@pytest.mark.parametrize("strategy", ["pad-to-max", "stream-pack"])
def test_learns_to_tell_molecules_apart(strategy: str) -> None:
    result = graph_classification.main([*SMALL, "--epochs", "12", "--strategy", strategy])
    assert sum(result.losses[-4:]) < 0.3 * sum(result.losses[:4])
    assert result.test_accuracy > 0.9
