"""``debug.cbor`` of PopTorch's programs: where each op was written."""

from __future__ import annotations

from pathlib import Path

import cbor2
import pytest

from tests.poptorch.models import Classifier, batch, options
from torchipu import poptorch


@pytest.mark.parametrize("is_excluded", [False, True])
def test_the_file_beside_a_profile_tells_the_lines_of_the_user(tmp_path: Path, is_excluded: bool) -> None:
    settings = options().enableProfiling(tmp_path)
    if is_excluded:
        settings.appendToLocationExcludes("tests/poptorch/models")
    poptorch.inferenceModel(Classifier(), settings).compile(batch(4)[0])
    found = cbor2.loads((tmp_path / "inference" / "debug.cbor").read_bytes())
    assert (found["format"], found["version"]) == ("torchipu.debug", 2)
    assert [one["id"] for one in found["contexts"]] == list(range(len(found["contexts"])))
    head = next(one for one in found["contexts"] if one["module"] == "head" and one["type"] == "MatMul")
    assert head["layer"] == "poptorch"
    assert ("location" in head) != is_excluded
    if not is_excluded:
        assert head["location"]["fileName"].endswith("tests/poptorch/models.py")
        assert "self.head(" in head["location"]["code"]
        lines = Path(head["location"]["fileName"]).read_text(encoding="utf-8").splitlines()
        assert lines[head["location"]["lineNumber"] - 1].strip() == head["location"]["code"].strip()
