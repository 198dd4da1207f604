"""Sees to it that there is a browser: ``python -m tests.report.browser`` installs Chromium where none is found.

The exit status is 0 where there is one in the end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

from tests.report.browser.chromium import find_chromium

MOST_SECONDS = 240


def ways() -> Iterator[list[list[str]]]:
    """Yield commands that install one, those that need no rights first."""
    yield [[sys.executable, "-m", "playwright", "install", "chromium"]]
    if os.geteuid() == 0 and shutil.which("apt-get"):
        yield [["apt-get", "update", "-q"], ["apt-get", "install", "-q", "-y", "--no-install-recommends", "chromium"]]


def main() -> int:
    """Install one of them."""
    for commands in ways():
        if find_chromium() is not None:
            break
        for command in commands:
            try:
                subprocess.run(command, check=True, timeout=MOST_SECONDS)
            except (OSError, subprocess.SubprocessError) as error:
                print(f"{' '.join(command)} failed: {error}", file=sys.stderr)
                break
    found = find_chromium()
    print(f"pages are tested in {found}" if found else "there is no browser, and none could be installed")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
