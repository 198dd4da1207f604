"""One of Lightning's two packages, whose classes are the other's twins: what we use of it, by name."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

CONNECTOR_NAMES = (
    (
        "trainer.connectors.accelerator_connector", "_AcceleratorConnector",
        ("_choose_strategy", "_check_and_init_precision"),
    ),
)
"""Private names that must be there when Lightning is imported: module, class, members."""
PRIVATE = (
    ("loops.fit_loop", "_FitLoop", ("_skip_backward", "run")),
    ("loops.fetchers", "_DataFetcher", ("setup", "reset")),
    ("core.module", "LightningModule", ("_on_before_batch_transfer", "_apply_batch_transfer_handler")),
    ("trainer.trainer", "Trainer", ("_active_loop",)),
    (
        "loops.training_epoch_loop", "_TrainingEpochLoop",
        ("advance", "update_lr_schedulers", "_should_accumulate", "_num_ready_batches_reached"),
    ),
    ("trainer.connectors.logger_connector.result", "_ResultCollection", ("_extract_batch_size",)),
)
"""Those that must be there when a Trainer is made; their modules are complete by then."""
TESTED = "lightning>=2.6,<2.7"


@dataclass
class Package:
    """What we use of ``lightning.pytorch`` or ``pytorch_lightning``.

    Attributes:
        name: Name of the package.
        misconfigured: MisconfigurationException.
        stages: RunningStage.
        functions: TrainerFn.
        is_overridden: Whether a module or callback has a hook of its own.
        accelerator: IPUAccelerator of this package.
        strategy: IPUStrategy of this package.
        precision: IPUPrecision of this package.
    """

    name: str
    misconfigured: type[Exception]
    stages: Any
    functions: Any
    is_overridden: Any
    accelerator: Any = field(default=None)
    strategy: Any = field(default=None)
    precision: Any = field(default=None)


def module_of(package: str, name: str) -> Any:
    """Import a module of a package."""
    return importlib.import_module(f"{package}.{name}")


def package_named(name: str) -> Package:
    """Return what we use of a package.

    Args:
        name: ``lightning.pytorch`` or ``pytorch_lightning``.
    """
    states = module_of(name, "trainer.states")
    return Package(
        name, module_of(name, "utilities.exceptions").MisconfigurationException, states.RunningStage, states.TrainerFn,
        module_of(name, "utilities.model_helpers").is_overridden,
    )


def missing_names(package: str, names: tuple[tuple[str, str, tuple[str, ...]], ...] = PRIVATE) -> list[str]:
    """Return which private names a version of Lightning lacks."""
    missing = []
    for module, kind, members in names:
        try:
            found = getattr(module_of(package, module), kind)
        except (ImportError, AttributeError):
            missing.append(f"{package}.{module}.{kind}")
            continue
        missing += [f"{package}.{module}.{kind}.{member}" for member in members if not hasattr(found, member)]
    return missing


def lacking(missing: list[str]) -> ImportError:
    """Return the error for a version of Lightning that lacks names."""
    return ImportError(
        f"torchipu works with {TESTED}; the version that is installed lacks {', '.join(missing)}\n"
        f'  do      pip install "{TESTED}"'
    )
