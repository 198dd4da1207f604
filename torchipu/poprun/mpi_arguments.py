"""Arguments of ``mpirun`` that ``poprun`` follows: variables for the instances, tags, the folder to run in."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from torchipu.errors import OptionsError

WITHOUT_EFFECT = ("allow-run-as-root", "oversubscribe")
"""What they allow is allowed anyway."""


@dataclass(slots=True)
class MpiArguments:
    """What the arguments ask for.

    Attributes:
        environment: Variables to set in the instances.
        tags_output: Whether lines are tagged.
        folder: Where instances run; an empty text for the folder of the launcher.
        ignored: Those that mean nothing here, as they were written.
    """

    environment: dict[str, str] = field(default_factory=dict)
    tags_output: bool = False
    folder: str = ""
    ignored: list[str] = field(default_factory=list)


def read_mpi_arguments(texts: Iterable[str], environment: Mapping[str, str] | None = None) -> MpiArguments:
    """Read the texts of ``--mpi-global-args`` and ``--mpi-local-args``.

    Args:
        texts: They, as a shell would split them.
        environment: Variables of the launcher; None for those of this process.

    Raises:
        OptionsError: A text has no closing quote, or ``-x`` names no variable.
    """
    variables = os.environ if environment is None else environment
    found = MpiArguments()
    for text in texts:
        try:
            words = iter(shlex.split(text))
        except ValueError as error:
            raise OptionsError(f"--mpi-global-args or --mpi-local-args {text!r}: {error}", option="mpi-args") from error
        _read(words, found, variables)
    return found


def _read(words: Iterator[str], found: MpiArguments, variables: Mapping[str, str]) -> None:
    for word in words:
        name = word.lstrip("-")
        if not word.startswith("-"):
            # A value of the argument before it, which is not known.
            if found.ignored:
                found.ignored[-1] += f" {word}"
            else:
                found.ignored.append(word)
        elif name == "x":
            variable, sign, value = next(words, "").partition("=")
            if not variable:
                raise OptionsError("-x needs the name of a variable", option="mpi-args")
            if sign:
                found.environment[variable] = value
            elif variable in variables:
                found.environment[variable] = variables[variable]
            else:
                found.ignored.append(f"-x {variable} (not set)")
        elif name == "tag-output":
            found.tags_output = True
        elif name in ("wdir", "wd"):
            found.folder = next(words, "")
        elif name not in WITHOUT_EFFECT:
            found.ignored.append(word)
