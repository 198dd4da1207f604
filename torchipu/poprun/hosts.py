"""Lists of hosts, and which of them this one is."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from typing import NoReturn

from torchipu.errors import OptionsError

LIST = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand(text: str) -> tuple[str, ...]:
    """Return the hosts of a list such as ``a,h[0-2,4]``: a, h0, h1, h2, h4.

    Args:
        text: The list. Numbers in brackets keep their leading zeros.

    Raises:
        OptionsError: It cannot be read, or names a host twice.
    """
    hosts = [host for word in LIST.findall(text) for host in _expand_word(word.strip(), text)]
    if not hosts or LIST.sub("", text).strip(","):
        _refuse(text)
    if twice := sorted({host for host in hosts if hosts.count(host) > 1}):
        raise OptionsError(f"--host {text} names {', '.join(twice)} more than once", option="host")
    return tuple(hosts)


def own_place(hosts: Sequence[str]) -> int | None:
    """Return which of the hosts this one is; None if it is none of them.

    Args:
        hosts: Their names.
    """
    names = own_names()
    return next((place for place, host in enumerate(hosts) if host in names or host.split(".")[0] in names), None)


def own_names() -> set[str]:
    """Return the names that this host goes by."""
    name = socket.gethostname()
    return {"localhost", "127.0.0.1", "::1", name, name.split(".")[0], socket.getfqdn()}


def _expand_word(word: str, text: str) -> list[str]:
    before, bracket, rest = word.partition("[")
    if not bracket:
        return [word] if word else []
    inside, _, after = rest.partition("]")
    numbers: list[str] = []
    for part in inside.split(","):
        match = RANGE.fullmatch(part.strip())
        if match is None:
            _refuse(text)
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            _refuse(text)
        width = len(first) if first.startswith("0") else 0
        numbers += [str(number).zfill(width) for number in range(int(first), int(last) + 1)]
    return [host for number in numbers for host in _expand_word(f"{before}{number}{after}", text)]


def _refuse(text: str) -> NoReturn:
    raise OptionsError(
        f"--host {text!r} cannot be read", option="host", value=text, remedy="write h1,h2 or host[0-2,4]"
    )
