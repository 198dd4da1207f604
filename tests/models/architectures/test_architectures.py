"""Facts of architectures of timm and transformers: a seeded few match eager; the page shows that all of them do."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from tests.models.architectures import findings
from tests.models.architectures.architecture import Architecture
from tests.models.architectures.catalogue import ALL, QUICK, drawn, missing_libraries
from tests.models.architectures.comparison import compare

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


def test_page_shows_what_was_found_and_no_failure() -> None:
    found = findings.read()
    assert findings.PAGE.read_text(encoding="utf-8") == findings.rendered(), "run: make models"
    assert [finding.name for finding in found] == [architecture.name for architecture in ALL], "run: make models"
    assert [finding.name for finding in found if not finding.passed] == []
    matching = Counter(finding.package for finding in found if finding.passed)
    assert matching["timm"] >= 30
    assert matching["transformers"] >= 20
    num_generic = sum(sum(finding.generic.values()) for finding in found)
    assert num_generic < 0.02 * sum(finding.num_ops for finding in found)
