"""Facts of what torchipu adds to other packages when they are imported."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

import torchipu_autoload
from torchipu import hooks

ROOT = Path(__file__).parents[1]
SERVED: list[ModuleType] = []


def serve(module: ModuleType) -> None:
    SERVED.append(module)


def fail(module: ModuleType) -> None:
    raise AttributeError(f"{module.__name__} has no Accelerator\nand more")


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that is watched for and not imported yet."""
    name = f"watched_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text("VALUE = 3\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(hooks.INSTALLERS, name, f"{__name__}:serve")
    SERVED.clear()
    yield name
    sys.modules.pop(name, None)


def test_module_is_served_once_it_has_been_executed(watched: str) -> None:
    module = importlib.import_module(watched)
    assert [module] == SERVED
    assert module.VALUE == 3
    importlib.import_module(watched)
    assert len(SERVED) == 1


def test_module_keeps_its_own_loader(watched: str) -> None:
    module = importlib.import_module(watched)
    assert type(module.__spec__.loader).__name__ == type(module.__loader__).__name__ == "SourceFileLoader"
    importlib.reload(module)
    assert len(SERVED) == 2


def test_module_that_is_there_already_is_served(watched: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [one for one in sys.meta_path if not isinstance(one, hooks._Finder)])
    monkeypatch.setattr(hooks, "INSTALLERS", {watched: hooks.INSTALLERS[watched]})
    module = importlib.import_module(watched)
    assert SERVED == []
    hooks.install()
    assert [module] == SERVED


def test_installing_twice_leaves_one_finder() -> None:
    hooks.install()
    hooks.install()
    assert sum(isinstance(finder, hooks._Finder) for finder in sys.meta_path) == 1


def test_failing_installer_costs_a_warning(watched: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(hooks.INSTALLERS, watched, f"{__name__}:fail")
    with pytest.warns(UserWarning, match="does not know this version") as warned:
        module = importlib.import_module(watched)
    assert module.VALUE == 3
    assert str(warned[0].message) == (
        f"torchipu does not know this version of {watched}, and adds nothing to it: AttributeError: {watched} has no "
        "Accelerator"
    )


def test_torch_loads_the_entry_point() -> None:
    (entry,) = [one for one in metadata.entry_points(group="torch.backends") if one.name == "torchipu"]
    assert entry.value == "torchipu_autoload:install"


def test_entry_point_survives_a_torchipu_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchipu", None)
    monkeypatch.setitem(sys.modules, "torchipu.hooks", None)
    torchipu_autoload.install()


@pytest.mark.parametrize("autoload", ["0", "1"])
def test_importing_torch_or_torchipu_is_enough_and_loads_nothing_heavy(autoload: str) -> None:
    first = "torchipu, torch" if autoload == "0" else "torch"
    code = f"""
import sys
import {first}
from torchipu import hooks
print(sum(isinstance(finder, hooks._Finder) for finder in sys.meta_path))
print(sorted(name for name in sys.modules if name.startswith("torchipu")))
"""
    environment = os.environ | {
        "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "aliases")]),
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    number, loaded = done.stdout.splitlines()
    assert number == "1"
    assert set(eval(loaded)) <= {
        "torchipu", "torchipu._kernels", "torchipu.hooks", "torchipu.installation", "torchipu_autoload",
    }
