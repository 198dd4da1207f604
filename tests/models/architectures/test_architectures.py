"""Facts of architectures of timm and transformers: a seeded few of them match eager, and the page lists all."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.models.architectures.architecture import Architecture
from tests.models.architectures.catalogue import ALL, QUICK, drawn, missing_libraries
from tests.models.architectures.comparison import compare
from tests.models.architectures.table import names_on

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
SEED = int(os.environ.get("TORCHIPU_MODELS_SEED", "0"))
needs_libraries = pytest.mark.skipif(
    bool(missing_libraries()),
    reason=f'{", ".join(missing_libraries())} not installed: pip install -e ".[models]"',
)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Compute on one thread: the tensors are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    torch._dynamo.reset()


@needs_libraries
@pytest.mark.parametrize("architecture", drawn(SEED), ids=lambda architecture: architecture.name)
@pytest.mark.usefixtures("one_thread")
def test_architecture_matches_eager_in_values_and_gradients(architecture: Architecture) -> None:
    finding = compare(architecture)
    assert finding.beyond == []
    assert finding.generic == {}
    assert set(finding.errors) == {"forward", "loss", "gradient", "buffer"}


def test_names_are_unique_and_quick_ones_exist() -> None:
    names = [architecture.name for architecture in ALL]
    assert len(set(names)) == len(names)
    assert set(QUICK) <= set(names)


def test_page_lists_every_architecture_and_no_failure() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert names_on(text) == [architecture.name for architecture in ALL]
    passed, listed = re.search(r"\*\*(\d+) of (\d+) models match eager", text).groups()  # type: ignore[union-attr]
    assert passed == listed == str(len(ALL))
