"""Outlives a launcher, and ends what it had started.

An instance dies with the launcher by itself; what the instance has started may not. Run as a file, without site
packages. Reads a line for each attempt, the ids of its processes; each leads a process group. Before that comes a line
``+`` and its id from each process itself. The input ends with the launcher, once all processes that write there have.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    """Wait for the launcher to end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    groups: list[int] = []
    for line in sys.stdin:
        if line.startswith("+"):
            groups.append(int(line[1:]))
        else:
            groups = [int(word) for word in line.split()]
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
