"""Runs tests on the portable flavour of the kernels: ``python -m tests.portable FOLDER [arguments of pytest]``.

The folder holds what ``setup.py build`` made of the package with ``TORCHIPU_PORTABLE=1``: kernels in C alone, as on
machines without AVX2. See ``make portable``.
"""

import os
import subprocess
import sys

from tests.checked import ROOT, pytest_command


def main(folder: str, *arguments: str) -> int:
    """Run the tests and return the exit status."""
    places = os.pathsep.join([str((ROOT / folder).resolve()), str(ROOT)])
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": places}
    return subprocess.run(pytest_command(*arguments), env=environment, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
