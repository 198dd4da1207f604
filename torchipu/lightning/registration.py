"""Gives Lightning the names of the IPU when it is imported: classes for each package, and two wrapped methods."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from torchipu.lightning.accelerator import IPUAcceleratorMethods
from torchipu.lightning.package import CONNECTOR_NAMES, Package, lacking, missing_names, module_of, package_named
from torchipu.lightning.precision import IPUPrecisionMethods, checked
from torchipu.lightning.strategy import IPUStrategyMethods

CONNECTOR = ".trainer.connectors.accelerator_connector"


def install(connector: ModuleType) -> None:
    """Install our names; called by `torchipu.hooks` when the last of Lightning's modules has been executed.

    Args:
        connector: ``<package>.trainer.connectors.accelerator_connector``.
    """
    name = connector.__name__.removesuffix(CONNECTOR)
    missing = missing_names(name, CONNECTOR_NAMES)
    if missing:
        _register_refusal(name, missing)
        return
    if hasattr(module_of(name, "strategies"), "IPUStrategy"):
        return
    package = package_named(name)
    accelerators, strategies, plugins = (module_of(name, part) for part in ("accelerators", "strategies", "plugins"))
    package.accelerator = _made("IPUAccelerator", IPUAcceleratorMethods, accelerators.Accelerator, accelerators, {
        "package": package,
    })
    package.strategy = _made("IPUStrategy", IPUStrategyMethods, strategies.ParallelStrategy, strategies, {
        "package": package,
    })
    package.precision = _made("IPUPrecision", IPUPrecisionMethods, plugins.Precision, plugins, {})
    strategies.IPUPlugin = plugins.IPUPlugin = package.strategy
    for module, names in ((strategies, ("IPUPlugin",)), (plugins, ("IPUPlugin",))):
        _export(module, names)
    package.accelerator.register_accelerators(accelerators.AcceleratorRegistry)
    package.strategy.register_strategies(strategies.StrategyRegistry)
    _wrap(connector._AcceleratorConnector, package)


def _made(name: str, methods: type, base: Any, module: ModuleType, members: dict[str, Any]) -> Any:
    """Make a class of a package's own, under which it can be pickled."""
    made = type(base)(name, (methods, base), {
        **members, "__module__": module.__name__, "__qualname__": name, "__doc__": methods.__doc__,
    })
    setattr(module, name, made)
    _export(module, (name,))
    return made


def _export(module: ModuleType, names: tuple[str, ...]) -> None:
    exported = getattr(module, "__all__", None)
    if isinstance(exported, list):
        exported += [name for name in names if name not in exported]


def _wrap(connector: Any, package: Package) -> None:
    """Let the connector choose our strategy and our precision for our accelerator; it asks no stranger."""
    choose, check = connector._choose_strategy, connector._check_and_init_precision

    @functools.wraps(choose)
    def choose_strategy(self: Any) -> Any:
        return package.strategy() if isinstance(self.accelerator, package.accelerator) else choose(self)

    @functools.wraps(check)
    def check_precision(self: Any) -> Any:
        ours, given = isinstance(self.strategy, package.strategy), self._precision_plugin_flag
        if isinstance(self.accelerator, package.accelerator) != ours:
            _refuse_mixture(self, package, ours)
        if not ours:
            return check(self)
        plugin = given if given is not None else self.strategy._precision_plugin
        if plugin is not None:
            if not isinstance(plugin, package.precision):
                raise ValueError(
                    f"The IPU Accelerator can only use an `IPUPrecision` plugin, found {type(plugin).__name__}."
                )
            return plugin
        return package.precision(checked(self._precision_flag))

    connector._choose_strategy = choose_strategy
    connector._check_and_init_precision = check_precision


def _refuse_mixture(self: Any, package: Package, is_our_strategy: bool) -> None:
    """Refuse our strategy with another accelerator, and another strategy with ours."""
    if is_our_strategy:
        raise package.misconfigured(
            f"The strategy `IPUStrategy` needs `Trainer(accelerator='ipu')`, found {type(self.accelerator).__name__}"
        )
    raise package.misconfigured(
        f"`Trainer(accelerator='ipu')` needs the strategy `IPUStrategy`, found {type(self.strategy).__name__}: leave "
        "`strategy` out, or give `strategy='ipu_strategy'`. devices=N are N replicas in one process; start several "
        "processes with torchrun"
    )


def _register_refusal(package: str, missing: list[str]) -> None:
    """Let the name "ipu" say what this version of Lightning lacks."""
    registry: Any = module_of(package, "accelerators").AcceleratorRegistry
    error = lacking(missing)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise error

    if "ipu" not in registry:
        registry.register("ipu", refuse, description=str(error))
