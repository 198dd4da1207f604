"""``Options._Popart``: what is passed on to the graph compiler, and groups whose values go there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from torchipu.poptorch.options.values import OptionsDict
from torchipu.poptorch.poptorch_core import createPoptorchError

TARGET = "torchipu.target"


def _machine(given: Any) -> str:
    """Return the name of a machine, or refuse what is none."""
    from torchipu.errors import OptionsError  # here, since importing poptorch shall not build the machines
    from torchipu.target import lookup_target

    try:
        return lookup_target(given).name
    except OptionsError as error:
        raise createPoptorchError(f"{TARGET}: {error}") from error


class _PopartOptions(OptionsDict):
    """Options of the graph compiler, passed on by name without a check of their own.

    Attributes:
        options: The values by name.
    """

    _private: ClassVar[frozenset[str]] = frozenset({"options"})

    def __init__(self) -> None:
        super().__init__()
        self.options: dict[str, Any] = {
            "instrumentWithHardwareCycleCounter": False,
            "rearrangeAnchorsOnHost": False,
        }

    # Two arguments, as PopTorch has it; keywords would not do for names such as "a.b".
    def set(self, key: str, value: Any) -> Self:  # type: ignore[override]
        """Set an option.

        Args:
            key: Its name, such as ``accumulateOuterFragmentSettings.schedule``.
            value: A bool, number or text, a list or set of texts, or a dict of texts. Of ``torchipu.target``, which
                PopTorch does not have, a machine as ``torchipu.Options.target`` takes it; its name is kept, which says
                all of it.

        Raises:
            Error: There is no such machine.
        """
        self._check_frozen()
        self.options[key] = _machine(value) if key == TARGET else value
        return self

    def createOrSet(self, **values: Any) -> Self:
        """Set options by keyword; names with dots take `set`."""
        for name, value in values.items():
            self.set(name, value)
        return self

    def deleteIfExists(self, name: str) -> Self:
        """Remove an option, if there is one of this name."""
        self._check_frozen()
        self.options.pop(name, None)
        return self

    def exists(self, name: str) -> bool:
        """Return whether there is an option of this name."""
        return name in self.options

    def __call__(self, name: str) -> Any:
        """Return the value of an option."""
        if not self.exists(name):
            raise AssertionError(f"Invalid option {name}, valid options are {sorted(self.options)}")
        return self.options[name]

    def setEngineOptions(self, engine_options: Mapping[str, str]) -> Self:
        """Set the options of the engine, as ``POPLAR_ENGINE_OPTIONS`` does.

        Args:
            engine_options: Values by name.
        """
        return self.set("engineOptions", dict(engine_options))

    def setPatterns(self, patterns: Mapping[str, bool], level: int = 2) -> Self:
        """Choose rewriting patterns of the graph compiler.

        Args:
            patterns: Whether to use each, by name.
            level: The set to begin from.
        """
        return self.set("patterns", dict(patterns)).set("patterns_level", level)

    def toDict(self) -> dict[str, Any]:
        """Return all options by name."""
        return dict(self.options)

    def _facts(self) -> list[str]:
        return [f"options={self.options!r}"]


class _PopartUser(OptionsDict):
    """A group some of whose options are the graph compiler's.

    Args:
        popart: Options of the graph compiler, shared with the other groups.
        **values: Own options.
    """

    _private: ClassVar[frozenset[str]] = frozenset({"_popart"})

    def __init__(self, popart: _PopartOptions, **values: Any) -> None:
        super().__init__(**values)
        self._popart = popart
