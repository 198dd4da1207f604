"""Where the compile cache lies, how large it may grow, and whether there is one."""

from __future__ import annotations

import getpass
import os
import re
import stat
import tempfile
from pathlib import Path

import torch

from torchipu.errors import OptionsError

DIRECTORY = "TORCHIPU_CACHE_DIR"
"""Environment variable with the folder; without it ``torchipu`` within the folder of torch's own caches."""
SIZE = "TORCHIPU_CACHE_SIZE"
"""Environment variable with the most bytes that entries may take together: ``500M``, ``2G``; 1 GiB without it."""
SWITCH = "TORCHIPU_CACHE"
"""Environment variable that is 0 where nothing is cached, and 1 where it is although torch caches nothing."""
DEFAULT_BYTES = 1 << 30
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def is_on() -> bool:
    """Whether captures are cached: as ``TORCHIPU_CACHE`` says, else where torch's own caches are on."""
    switch = os.environ.get(SWITCH, "")
    if switch in ("0", "1"):
        return switch == "1"
    config = torch.compiler.config
    return not config.force_disable_caches and os.environ.get("TORCHINDUCTOR_FORCE_DISABLE_CACHES") != "1"


def folder() -> Path:
    """Return the folder of the cache, which need not be there."""
    chosen = os.environ.get(DIRECTORY)
    return Path(chosen).expanduser().absolute() if chosen else Path(_folder_of_torch()).absolute() / "torchipu"


def _folder_of_torch() -> str:
    """Return where torch keeps its caches, by its own rule, without making it."""
    chosen = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if chosen:
        return chosen
    try:
        user = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):  # nobody by this number, as in many containers
        user = f"uid_{os.getuid()}"
    return os.path.join(tempfile.gettempdir(), "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user))


def most_bytes() -> int:
    """Return how many bytes entries may take together.

    Raises:
        OptionsError: ``TORCHIPU_CACHE_SIZE`` is no size.
    """
    text = os.environ.get(SIZE, "").strip()
    if not text:
        return DEFAULT_BYTES
    found = re.fullmatch(r"(\d+)([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    if found is None:
        raise OptionsError(
            f"{SIZE}={text!r} is no size", option=SIZE, value=text, allowed="bytes, as 500M or 2G",
            remedy=f"set {SIZE}=1G, or leave it out",
        )
    return int(found[1]) * _UNITS[found[2].upper()]


def refusal_of(path: Path) -> str:
    """Return why a folder is not one to read entries from; nothing where it is.

    Who can write into it decides what programs compute, so it has to be the user's own, and closed to others.
    """
    try:
        found = os.lstat(path)
    except OSError as error:
        return str(error)
    if stat.S_ISLNK(found.st_mode):
        return "it is a symbolic link"
    if not stat.S_ISDIR(found.st_mode):
        return "it is not a folder"
    if found.st_uid != os.geteuid():
        return f"it belongs to user {found.st_uid}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others may write into it"
    return "" if os.access(path, os.R_OK | os.W_OK | os.X_OK) else "it may not be written"
