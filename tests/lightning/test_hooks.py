"""Having torchipu installed is enough for Lightning to know "ipu"; nothing else of a process changes."""

from __future__ import annotations

import os
import subprocess
import sys

import torchipu.hooks


def run(code: str, **environment: str) -> str:
    """Run Python in a process of its own, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_lightning_knows_ipu_without_an_import_of_ours_and_nothing_is_loaded_before_it_is_asked_for() -> None:
    code = """
import sys
hook = sys.excepthook
from lightning.pytorch.strategies import IPUStrategy
from lightning.pytorch import Trainer
heavy = ("torchipu.poptorch", "torchipu.step", "torchipu._kernels.")
print([name for name in sys.modules if name.startswith(heavy)], hook is sys.excepthook)
quiet = dict(logger=False, enable_checkpointing=False)
print(type(Trainer(accelerator="auto", **quiet).accelerator).__name__)
trainer = Trainer(accelerator="ipu", devices=2, **quiet)
print(type(trainer.strategy) is IPUStrategy, trainer.num_devices)
"""
    assert run(code).splitlines() == ["[] True", "CPUAccelerator", "True 2"]


def test_other_package_knows_it_too_whatever_is_imported_first() -> None:
    code = (
        "from pytorch_lightning.plugins import IPUPlugin, IPUPrecision; from pytorch_lightning import Trainer; "
        "print(isinstance(Trainer(accelerator='ipu', logger=False).strategy, IPUPlugin))"
    )
    assert run(code) == "True"


def test_import_of_torchipu_is_enough_where_autoload_is_off() -> None:
    code = """
from lightning.pytorch import Trainer
try: Trainer(accelerator="ipu", logger=False)
except ValueError as error: print(str(error)[:40])
import torchipu
print(Trainer(accelerator="ipu", logger=False).num_devices)
"""
    found = run(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0").splitlines()
    assert found == ["You selected an invalid accelerator name", "4"]


def test_import_of_torchipu_loads_no_torch_and_leaves_the_process_alone() -> None:
    code = (
        "import sys, os; before = dict(os.environ), sys.excepthook, list(sys.path); import torchipu; "
        "print('torch' in sys.modules, before == (dict(os.environ), sys.excepthook, list(sys.path)), "
        "[type(f).__module__ for f in sys.meta_path].count('torchipu.hooks'))"
    )
    assert run(code) == "False True 1"


def test_torch_is_imported_where_torchipu_is_broken() -> None:
    code = (
        "import sys; sys.modules['torchipu.installation'] = None\n"
        "import torch; print(torch.ones(2).sum().item())"
    )
    assert run(code) == "2.0"


def test_installer_that_fails_leaves_the_package_working() -> None:
    code = (
        "import torchipu.hooks, warnings\n"
        "torchipu.hooks.INSTALLERS['colorsys'] = 'torchipu.errors:no_such_function'\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always'); import colorsys\n"
        "print(colorsys.rgb_to_hsv(1, 0, 0), 'does not know this version of colorsys' in str(caught[0].message), "
        "type(colorsys.__spec__.loader).__name__)"
    )
    assert run(code) == "(0.0, 1.0, 1) True SourceFileLoader"


def test_modules_are_watched_by_name_and_installed_once() -> None:
    assert set(torchipu.hooks.INSTALLERS) >= {
        "lightning.pytorch.trainer.connectors.accelerator_connector",
        "pytorch_lightning.trainer.connectors.accelerator_connector",
    }
    assert all(":" in installer for installer in torchipu.hooks.INSTALLERS.values())
