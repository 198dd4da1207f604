"""How an option is declared, and how a value of it is checked by that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from torchipu.errors import OptionsError, nearest
from torchipu.options.kinds import ARTICLES, ProcessGroupLike, normal


def declare(
    default: object, text: str, *, kind: type, optional: bool = False, allowed: tuple[str, ...] = (),
    least: int | None = None, above: float | None = None, unit: str = "", poptorch: str = "", names_of: str = "block",
) -> Any:
    """Declare an option.

    Args:
        default: Value when the user says nothing.
        text: What it does, one line.
        kind: ``bool``, ``int``, ``float``, ``str``, or ``tuple`` for a list of names.
        optional: Whether None is a value too.
        allowed: Words accepted; a ``tuple`` option takes them besides a list of names.
        least: Smallest value.
        above: Value that must be exceeded.
        unit: Unit of a number.
        poptorch: Name of the PopTorch setting, if it has one.
        names_of: What the names of a ``tuple`` option are names of.
    """
    return field(
        default=default,
        metadata={
            "help": text, "kind": kind, "optional": optional, "allowed": allowed, "least": least, "above": above,
            "unit": unit, "poptorch": poptorch, "names_of": names_of,
        },
    )


def checked(name: str, value: object, rules: Mapping[str, Any]) -> object:
    """Return a value in its normal type, or refuse it."""
    if value is None and rules["optional"]:
        return None
    if rules["allowed"] and isinstance(value, str):
        if value in rules["allowed"]:
            return value
        raise _refusal(name, value, rules, nearest(value, rules["allowed"]))
    number = normal(value, rules["kind"])
    if number is None:
        raise _refusal(name, value, rules)
    if isinstance(number, tuple):
        _check_names(name, number, rules["names_of"])
    elif rules["allowed"] and rules["kind"] is not ProcessGroupLike:
        raise _refusal(name, value, rules)
    if rules["least"] is not None and number < rules["least"]:
        raise _refusal(name, value, rules)
    # Written so that a NaN is refused too.
    if rules["above"] is not None and not rules["above"] < number < float("inf"):
        raise _refusal(name, value, rules)
    return number


def _check_names(name: str, names: tuple[str, ...], noun: str) -> None:
    """Refuse a list of names that is empty or says one twice."""
    if not names:
        raise OptionsError(f"option {name!r} got an empty list of {noun} names", option=name, value=names)
    for named in names:
        if names.count(named) > 1:
            raise OptionsError(f"option {name!r} lists {noun} {named!r} more than once", option=name, value=names)


_REMEDIES: Mapping[str, str] = {
    "loss_scaling": "use a power of two such as 1024.0, or automatic_loss_scaling=True, which finds one",
    "partials_type": "use 'float' or 'half', the types in which the matrix unit accumulates",
}


def _refusal(name: str, value: object, rules: Mapping[str, Any], hint: str = "") -> OptionsError:
    got = f"{value!r} ({type(value).__name__})"
    return OptionsError(
        f"option {name!r} expects {expectation(rules)}, got {got}{hint}", option=name, value=value,
        allowed=expectation(rules), remedy=_REMEDIES.get(name, ""),
    )


def expectation(rules: Mapping[str, Any]) -> str:
    """Say in words what an option takes, e.g. ``an int of at least 1 or None``."""
    words = [repr(word) for word in rules["allowed"]]
    if not words or rules["kind"] in (tuple, ProcessGroupLike):
        text = ARTICLES[rules["kind"]].format(rules["names_of"])
        if rules["least"] is not None:
            text += f" of at least {rules['least']}"
        if rules["above"] is not None:
            text += f" above {rules['above']:g}"
        words.append(text)
    if rules["optional"]:
        words.append("None")
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
