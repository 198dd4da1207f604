"""The table of docs/poptorch.md against the package: what it claims is there, and nothing is left out."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchipu import poptorch
from torchipu.cli.compatibility import STATUSES, TESTS, compatibility, failing_tests, page
from torchipu.poptorch import optim
from torchipu.poptorch.options.values import OptionsDict

ROW_BY_NAME = {name: row for names in compatibility().values() for name, row in names.items()}
ROWS = sorted(ROW_BY_NAME.items())
PACKAGE = Path(poptorch.__file__).parent
SOURCE = "".join(path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py")))

SAMPLES: dict[str, Callable[[], Any]] = {
    "Options": poptorch.Options, "PoplarExecutor": lambda: poptorch.inferenceModel(nn.Linear(2, 2)),
    "DataLoader": lambda: poptorch.DataLoader(poptorch.Options(), [torch.zeros(1)]),
    "Stage": lambda: poptorch.Stage("0"),
}
"""Objects of the classes whose attributes are made with them."""


def is_there(name: str) -> bool:
    """Return whether the package has a name, an argument or a reader of an environment variable."""
    if name.startswith("$"):
        return f'"{name[1:]}"' in SOURCE
    path, _, argument = name.partition("(")
    first, *rest = path.split(".")
    if not hasattr(poptorch, first):
        try:
            importlib.import_module(f"torchipu.poptorch.{first}")
        except ModuleNotFoundError:
            return False
    value = getattr(poptorch, first)
    if rest and first in SAMPLES:
        value = SAMPLES[first]()
    for part in rest:
        # On the class first: reading some properties needs a compiled model.
        if isinstance(inspect.getattr_static(type(value), part, None), property) and part[0].islower():
            return True
        try:
            value = getattr(value, part)
        except AttributeError:
            return False
    return not argument or argument.rstrip(")") in inspect.signature(value).parameters


@pytest.mark.parametrize(("name", "row"), ROWS, ids=[name for name, _ in ROWS])
def test_name_is_there_unless_said_to_be_missing(name: str, row: tuple[str, str]) -> None:
    status, difference = row
    assert is_there(name) is (status != "missing")
    assert difference or status != "partly", f"{name}: the difference is not told"


def test_what_is_not_there_is_told_from_what_is() -> None:
    for name in ("trainModel", "Options.deviceIteration", "optim.SGD(lr_scale)", "$POPTORCH_NOTHING", "nothing.at.all"):
        assert not is_there(name)


def public(kind: type, *, without: type = object) -> Iterator[str]:
    """Yield the public names that this package gives a class, but those that another has."""
    for base in kind.__mro__:
        if base.__module__.startswith("torchipu."):
            yield from (name for name in vars(base) if not name.startswith("_") and not hasattr(without, name))


def test_every_public_name_of_the_package_is_listed() -> None:
    names = {*poptorch.__all__, *dir(poptorch)}
    assert sorted(names - set(ROW_BY_NAME)) == []


@pytest.mark.parametrize(
    "kind",
    ["AsynchronousDataAccessor", "Block", "DataLoader", "MultiConv", "Options", "PoplarExecutor", "Stage"],
)
def test_every_public_attribute_is_listed(kind: str) -> None:
    names = {f"{kind}.{name}" for name in public(getattr(poptorch, kind))}
    assert names
    assert sorted(names - set(ROW_BY_NAME)) == []


@pytest.mark.parametrize("group", ["Training", "Precision", "TensorLocations", "Distributed", "Jit", "_Popart"])
def test_every_option_of_a_group_is_listed(group: str) -> None:
    kind = type(getattr(poptorch.Options(), group))
    names = {f"Options.{group}.{name}" for name in public(kind, without=OptionsDict)}
    assert names
    assert sorted(names - set(ROW_BY_NAME)) == []


def test_every_option_of_a_location_is_listed() -> None:
    names = {f"TensorLocationSettings.{n}" for n in public(poptorch.TensorLocationSettings, without=OptionsDict)}
    assert len(names) > 4
    assert sorted(names - set(ROW_BY_NAME)) == []


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop", "LAMB"])
def test_every_argument_that_torch_does_not_have_is_listed(kind: str) -> None:
    ours, torchs = getattr(optim, kind), getattr(torch.optim, kind, torch.optim.AdamW)
    added = set(inspect.signature(ours).parameters) - set(inspect.signature(torchs).parameters)
    assert {"loss_scaling", "accum_type"} <= added
    assert sorted({f"optim.{kind}({name})" for name in added} - set(ROW_BY_NAME)) == []


def test_each_status_is_used_as_its_legend_says() -> None:
    statuses = {status for status, _ in ROW_BY_NAME.values()}
    assert statuses <= set(STATUSES)
    assert {"there", "partly", "accepted"} <= statuses


def test_the_page_says_which_tests_of_poptorch_cannot_pass() -> None:
    table = page().partition(f"## {TESTS}\n")[2]
    assert failing_tests()
    for subject, reason in failing_tests().items():
        assert f"| {subject} | {reason} |" in table.splitlines()
        assert reason
    assert TESTS not in compatibility()


def test_what_is_said_to_differ_from_poptorchs_tests_does_so(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str],
) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        print("forward runs")
        return x + 1

    settings = poptorch.Options().logCycleCount(True)
    settings._Popart.set("noSuchOptionOfPopart", 1)
    step = poptorch.inferenceModel(forward, settings)
    assert step(torch.zeros(2)).tolist() == [1, 1]
    assert capsys.readouterr().out.count("forward runs") == 2  # "how often forward runs"
    assert step.cycleCount() > 0  # "cycles without hardware"
    assert "noSuchOptionOfPopart" in caplog.text  # "unknown options of `_Popart`"
    with pytest.raises(AttributeError):
        poptorch.experimental  # noqa: B018 - "the experimental compiler and eager mode"


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.LSTM(3, 4, num_layers=2), (2, 5, 3)),
        (lambda x: torch.nn.functional.cross_entropy(x, x.argmin(1), weight=torch.arange(1.0, 5.0)), (6, 4)),
    ],
    ids=["two layers", "weights"],
)
def test_what_poptorch_refuses_runs_by_the_other_door(model: Any, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    with pytest.raises(poptorch.Error, match=r'Only LSTM with 1 layer supported|Parameter "weight" is uns'):
        poptorch.inferenceModel(model)(x)
    with torch.no_grad():
        expected, given = model(x), torch.compile(model, backend="ipu")(x)
    torch.testing.assert_close(given, expected, rtol=1e-5, atol=1e-5)
