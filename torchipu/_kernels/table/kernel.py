"""What a record of the table says of a kernel, and how its named numbers become arrays of numbers.

The modules of this folder import nothing but the standard library and each other, by relative names: the build loads
them before there is a package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

I = TypeVar("I", bound=Sequence[Any])  # noqa: E741 - of integers
S = TypeVar("S", bound=Sequence[Any])


class Nothing(NamedTuple):
    """The numbers of a kernel that takes none."""


@dataclass(frozen=True, slots=True)
class Field:
    """A named number of a kernel, or several.

    Attributes:
        name: Of the number.
        length: How many there are; None for any number of them, which come last.
        is_array: Whether a tuple holds them.
        kind: The class of named numbers that stands here, if one does.
    """

    name: str
    length: int | None = 1
    is_array: bool = False
    kind: type[Sequence[Any]] | None = None

    def __str__(self) -> str:
        name = self.name if self.kind is None else f"{self.name}({layout_of(self.kind)})"
        if not self.is_array:
            return name
        return f"{name}[{'' if self.length is None else self.length}]"


@dataclass(frozen=True, slots=True, eq=False)
class Kernel(Generic[I, S]):
    """A host kernel: what it is called, and what it takes.

    Attributes:
        name: Of the C function, and of the kernel in messages.
        args: What each operand is, by name, outputs first; ``name?`` may be left out, ``name*`` stands for any number.
        ints: The class of its integers.
        scalars: The class of its real numbers, likewise.
        items: How many items there are.
        scratch: What it needs scratch for, if it does.
    """

    name: str
    args: Mapping[str, str]
    ints: type[I]
    scalars: type[S]
    items: str = field(default="", kw_only=True)
    scratch: str = field(default="", kw_only=True)

    def __repr__(self) -> str:
        return f"Kernel({self.name})"

    @property
    def layout(self) -> tuple[str, str]:
        """The names of its integers and of its real numbers in the order in which C finds them."""
        return layout_of(self.ints), layout_of(self.scalars)

    def check(self, num_args: int, ints: Sequence[Any], scalars: Sequence[Any]) -> None:
        """Refuse operands and numbers that the kernel does not take.

        Args:
            num_args: How many operands a call has.
            ints: Its integers.
            scalars: Its real numbers.

        Raises:
            TypeError: The numbers are not of the kernel's own class.
            ValueError: There are too many or too few operands, or too many or too few numbers in a field.
        """
        least, most = operands(tuple(self.args))
        if num_args < least or (most is not None and num_args > most):
            raise ValueError(f"{self.name} takes the operands {', '.join(self.args)}, and was given {num_args}")
        self.flat_ints(ints)
        self.flat_scalars(scalars)

    def flat_ints(self, ints: Sequence[Any]) -> tuple[Any, ...]:
        """Return integers as the C function finds them; see ``check`` for what is refused."""
        return flat(self.name, "ints", self.ints, ints)

    def flat_scalars(self, scalars: Sequence[Any]) -> tuple[Any, ...]:
        """Return real numbers as the C function finds them; see ``check`` for what is refused."""
        return flat(self.name, "scalars", self.scalars, scalars)


AnyKernel = Kernel[Any, Any]


def flat(kernel: str, kind: str, expected: type[Sequence[Any]], values: Sequence[Any]) -> tuple[Any, ...]:
    """Return the numbers of all fields one behind the other."""
    if expected is Nothing and len(values) == 0:
        return ()
    if type(values) is not expected:
        given = f"{type(values).__name__} {tuple(values)}"
        raise TypeError(
            f"{kernel} takes its {kind} as {expected.__name__}({', '.join(map(str, fields(expected)))}), "
            f"and was given {given}"
        )
    if is_flat(expected):
        return tuple(values)
    numbers: list[Any] = []
    for each, value in zip(fields(expected), values, strict=True):
        if each.length is not None and each.is_array and len(value) != each.length:
            raise ValueError(f"{kernel}: {each.name} has {each.length} numbers, and was given {value}")
        held = value if each.is_array else (value,)
        if each.kind is not None:
            numbers += (number for one in held for number in flat(kernel, each.name, each.kind, one))
        else:
            numbers += held
    return tuple(numbers)


@cache
def is_flat(kind: type[Sequence[Any]]) -> bool:
    """Whether all fields of a class are numbers."""
    return not any(each.is_array or each.kind is not None for each in fields(kind))


def layout_of(kind: type[Sequence[Any]]) -> str:
    """Return the names of the fields of a class in their order."""
    return " ".join(map(str, fields(kind)))


@cache
def operands(names: tuple[str, ...]) -> tuple[int, int | None]:
    """Return the least and the greatest number of operands; None for no greatest."""
    least = sum(not name.endswith(("?", "*")) for name in names)
    return least, None if any(name.endswith("*") for name in names) else len(names)


@cache
def fields(kind: type[Any]) -> tuple[Field, ...]:
    """Return the fields of a class of named numbers.

    Raises:
        TypeError: A field is no number, no tuple of numbers and no such class, or one of any length is not the last.
    """
    hints = get_type_hints(kind)
    found = tuple(_field(kind, name, hints[name]) for name in kind._fields)
    for each in found[:-1]:
        if each.length is None or (each.kind is not None and any(one.length is None for one in fields(each.kind))):
            raise TypeError(f"{kind.__name__}: {each.name} may have any length and is not the last field")
    return found


def _field(kind: type[Any], name: str, hint: Any) -> Field:
    if isinstance(hint, type) and hasattr(hint, "_fields"):
        return Field(name, kind=hint)
    if get_origin(hint) is tuple:
        members = get_args(hint)
        if members[-1] is Ellipsis:
            return Field(name, None, True, members[0] if hasattr(members[0], "_fields") else None)
        return Field(name, len(members), True)
    if not (isinstance(hint, type) and issubclass(hint, (int, float))):
        raise TypeError(f"{kind.__name__}: {name} is {hint}, and neither a number nor numbers")
    return Field(name)
