"""``debug.cbor``: where each op was written, in CBOR."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.poptorch.models import Classifier, batch, options
from torchipu import poptorch
from torchipu.poptorch.reports.debug_file import encoded


def decoded(data: bytes) -> Any:
    """Read CBOR as RFC 8949 describes it."""
    value, rest = item(data)
    assert rest == b""
    return value


def item(data: bytes) -> tuple[Any, bytes]:
    major, size, data = data[0] // 32, data[0] % 32, data[1:]
    if size > 23:
        width = {24: 1, 25: 2, 26: 4, 27: 8}[size]
        size, data = int.from_bytes(data[:width], "big"), data[width:]
    if major == 0:
        return size, data
    if major == 3:
        return data[:size].decode(), data[size:]
    members = []
    for _ in range(size * (major - 3)):
        member, data = item(data)
        members.append(member)
    return (members if major == 4 else dict(zip(members[::2], members[1::2], strict=True))), data


# Source of the bytes: RFC 8949, appendix A.
@pytest.mark.parametrize(("value", "text"), [
    (0, "00"), (23, "17"), (24, "1818"), (100, "1864"), (1000, "1903e8"), (1000000, "1a000f4240"),
    (1000000000000, "1b000000e8d4a51000"), ("", "60"), ("IETF", "6449455446"), ("ü", "62c3bc"), ([], "80"),
    ([1, [2, 3], [4, 5]], "8301820203820405"), ({"a": 1, "b": [2, 3]}, "a26161016162820203"),
    (list(range(1, 26)), "98190102030405060708090a0b0c0d0e0f101112131415161718181819"),
])
def test_values_are_those_of_the_standard(value: Any, text: str) -> None:
    assert encoded(value).hex() == text
    assert decoded(encoded(value)) == value


@pytest.mark.parametrize("value", [-1, 1.5, None, [object()]])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="is no text, number"):
        encoded(value)


@pytest.mark.parametrize("is_excluded", [False, True])
def test_the_file_beside_a_profile_tells_the_lines_of_the_user(tmp_path: Path, is_excluded: bool) -> None:
    settings = options().enableProfiling(tmp_path)
    if is_excluded:
        settings.appendToLocationExcludes("tests/poptorch/models")
    poptorch.inferenceModel(Classifier(), settings).compile(batch(4)[0])
    found = decoded((tmp_path / "inference" / "debug.cbor").read_bytes())
    assert (found["format"], found["version"]) == ("torchipu.debug", 1)
    head = next(op for op in found["ops"] if op["module"] == "head" and op["type"] == "MatMul")
    assert ("location" in head) != is_excluded
    if not is_excluded:
        assert head["location"]["fileName"].endswith("tests/poptorch/models.py")
        assert "self.head(" in head["location"]["code"]
        lines = Path(head["location"]["fileName"]).read_text(encoding="utf-8").splitlines()
        assert lines[head["location"]["lineNumber"] - 1].strip() == head["location"]["code"].strip()
