"""Install packages into the environment of this Python: by uv, or by pip where uv will not do.

``python install_packages.py ARGUMENTS`` stands for ``python -m pip install --quiet ARGUMENTS``. uv takes a fifth of
pip's processor time for PyTorch and what the tests need (17 s instead of 91). It does not read pip's configuration,
which says where packages come from on many machines: that is passed on.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

UV = "uv>=0.8"
VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_EXTRA_INDEX_URL", "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX", "constraint": "UV_CONSTRAINT", "cert": "SSL_CERT_FILE", "proxy": "ALL_PROXY",
    "trusted-host": "UV_INSECURE_HOST", "timeout": "UV_HTTP_TIMEOUT", "default-timeout": "UV_HTTP_TIMEOUT",
    "no-cache-dir": "UV_NO_CACHE",
}
"""By which variable uv is told what a setting of pip says."""
SEPARATED_BY_COMMAS = {"find-links"}
"""Settings whose values uv wants apart by commas, where pip takes spaces."""
WITHOUT_EFFECT = {
    "cache-dir", "disable-pip-version-check", "no-color", "no-compile", "no-input", "no-warn-script-location",
    "prefer-binary", "progress-bar", "quiet", "require-virtualenv", "retries", "root-user-action", "verbose",
}
"""Settings that change nothing in what is installed."""


def settings_of(listed: str) -> dict[str, str]:
    """Return the settings that hold for an installation, of what ``pip config list`` prints.

    Args:
        listed: Lines as ``global.index-url='...'``. What is said of the command holds before what is said of all, and
            the environment before both.
    """
    found: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listed.splitlines():
        place, _, value = line.partition("=")
        section, _, name = place.partition(".")
        if section in found:
            found[section][name] = str(ast.literal_eval(value))
    return {**found["global"], **found["install"], **found[":env:"]}


def environment_of(settings: Mapping[str, str]) -> dict[str, str] | None:
    """Return the variables that tell uv what settings tell pip; None where it cannot be told all of it."""
    told = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # pip takes the best of all indexes, too
    for name, value in settings.items():
        if name in VARIABLES:
            separator = "," if name in SEPARATED_BY_COMMAS else " "
            told[VARIABLES[name]] = separator.join(value.split())
        elif name not in WITHOUT_EFFECT:
            return None
    return told


def _is_done(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def main(arguments: list[str]) -> int:
    """Install; return pip's status where uv is not to be had, or fails."""
    pip = [sys.executable, "-m", "pip"]
    listed = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, check=False).stdout
    told = environment_of(settings_of(listed))
    if told is not None and _is_done([*pip, "install", "--quiet", UV]):
        uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--python", sys.executable]
        if subprocess.run([*uv, *arguments], env={**told, **os.environ}, check=False).returncode == 0:
            return 0
        print("uv could not install them: pip is asked, which takes longer", file=sys.stderr)
    return subprocess.run([*pip, "install", "--quiet", *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
