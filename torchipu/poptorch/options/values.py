"""The typed dictionary that every group of options is: known names only, and each value keeps its type."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from torchipu.errors import nearest

COUNTS = frozenset({"device_iterations", "gradient_accumulation", "replication_factor"})
"""Options that divide a batch into parts."""


class OptionsDict:
    """Options by name, readable as attributes; frozen once a model or a loader has them.

    Args:
        **values: The names and their defaults. What is set later must be of the default's type.
    """

    _private: ClassVar[frozenset[str]] = frozenset({"_values", "_is_frozen"})
    """Private attributes; a subclass names its own. Any other is refused, since it is likely a misspelt option."""

    def __init__(self, **values: Any) -> None:
        self._values: dict[str, Any] = values
        self._is_frozen = False

    # ------------------------------------------------------------------ writing
    def set(self, **values: Any) -> Self:
        """Change options that exist.

        Args:
            **values: New values by name.

        Raises:
            AssertionError: A name is unknown, a value has another type than the one it replaces, or a number of what
                there is at least one of is below 1.
            AttributeError: The options are frozen.
        """
        self._check_frozen()
        for name, value in values.items():
            if name in COUNTS and isinstance(value, int) and value < 1:
                raise AssertionError(f"Unexpected value {value} for option {name}. Expected at least 1")
            if not self.exists(name):
                raise AssertionError(f"Invalid option {name}, valid options are {sorted(self._values)}")
            kind = type(self._values[name])
            if not isinstance(value, kind):
                raise AssertionError(f"Unexpected type {type(value)} for option {name}. Expected {kind}")
        self._values.update(values)
        return self

    def createOrSet(self, **values: Any) -> Self:
        """Change options, and add those that do not exist.

        Args:
            **values: New values by name.

        Raises:
            AssertionError: A value has another type than the one it replaces.
            AttributeError: The options are frozen.
        """
        self._check_frozen()
        self.set(**{name: value for name, value in values.items() if self.exists(name)})
        self._values.update(values)
        return self

    def deleteIfExists(self, name: str) -> Self:
        """Remove an option.

        Args:
            name: Which; nothing happens if there is none of this name.
        """
        self._check_frozen()
        self._values.pop(name, None)
        return self

    # ------------------------------------------------------------------ reading
    def exists(self, name: str) -> bool:
        """Return whether there is an option of this name."""
        return name in self._values

    def toDict(self) -> dict[str, Any]:
        """Return all options by name."""
        return dict(self._values)

    def __call__(self, name: str) -> Any:
        """Return the value of an option.

        Raises:
            AssertionError: There is none of this name.
        """
        if not self.exists(name):
            raise AssertionError(f"Invalid option {name}, valid options are {sorted(self._values)}")
        return self._values[name]

    def __getitem__(self, name: str) -> Any:
        """Return the value of an option by key; of groups that name places, so that ``["onChip"]`` may follow.

        Raises:
            KeyError: There is none of this name.
        """
        if name not in self._values:
            raise KeyError(f"{name}: {type(self).__name__} has {sorted(self._values)}")
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __getattr__(self, name: str) -> Any:
        values: Mapping[str, Any] = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        public = [one for one in (*values, *dir(type(self))) if not one.startswith("_")]
        raise AttributeError(
            f"Invalid attribute {name}. {type(self).__name__} has {sorted(values)}{nearest(name, public)}"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        is_private = any(name in vars(cls).get("_private", ()) for cls in type(self).__mro__)
        if name == "__class__" or name in self.__dict__ or is_private:
            object.__setattr__(self, name, value)
        elif name.startswith("_"):
            raise AttributeError(f"Invalid private attribute {name} of {type(self).__name__}")
        elif self.exists(name):
            self.set(**{name: value})
        else:
            raise AttributeError(f"Invalid attribute {name}. {type(self).__name__} has {sorted(self._values)}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._facts())})"

    def _facts(self) -> list[str]:
        """Return what ``repr`` lists."""
        return [f"{name}={value!r}" for name, value in self._values.items()]

    # ------------------------------------------------------------------ frozen or not
    def _freeze(self) -> None:
        """Refuse changes from now on, of the groups within too."""
        self._each("_freeze", is_frozen=True)

    def _unfreeze(self) -> None:
        """Allow changes again."""
        self._each("_unfreeze", is_frozen=False)

    def _each(self, change: str, *, is_frozen: bool) -> None:
        for value in (*self._values.values(), *vars(self).values()):
            if isinstance(value, OptionsDict):
                getattr(value, change)()
        self._is_frozen = is_frozen

    def _check_frozen(self) -> None:
        if self._is_frozen:
            raise AttributeError(
                "Can't modify frozen Options: a model or a loader uses them. Change a copy of them, options.clone(), "
                "and make a new one with it"
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy; the copy can be changed."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        twin.__dict__["_is_frozen"] = False
        return twin
