"""Runs tests on the checked flavour of the kernels: ``python -m tests.checked FOLDER [arguments of pytest]``.

An access outside a buffer, an overflow or a shift that C leaves open ends the run with a report on standard error. The
folder holds what ``setup.py build`` made of the package with ``TORCHIPU_CHECKED=1``; see ``make checked``.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Every kernel by itself on memory of exactly its operands' sizes, and plans that put kernels together in one arena.
TESTS = [
    "tests/kernels", "tests/host/test_blocked_halves.py", "tests/host/test_endings.py", "tests/host/test_engine.py",
    "tests/host/test_folded_chains.py", "tests/host/test_lanes.py", "tests/host/test_layouts.py",
    "tests/host/test_phases.py", "tests/host/test_pooled_conv.py", "tests/host/test_products_of_views.py",
    "tests/host/test_stored.py", "tests/host/test_sums_of_bfloats.py", "tests/host/test_unit_memory.py",
    "tests/ops/test_logsumexp.py", "tests/ops/test_taken_rows.py", "tests/ops/test_windows.py",
    "tests/numerics/test_half_partials.py", "tests/numerics/test_half_states.py", "tests/numerics/test_optim.py",
]


def sanitizers() -> str:
    """Return the libraries that have to be there before the kernels are, for ``LD_PRELOAD``."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC"))[0]
    named = ([compiler, f"-print-file-name={name}"] for name in ("libasan.so", "libubsan.so"))
    return " ".join(subprocess.check_output(command, text=True).strip() for command in named)


def environment(package: Path) -> dict[str, str]:
    """Return the environment of a process that is to import the package from a folder, and the tests from here.

    Python keeps its small objects in an allocator of its own, which nobody looks into: no kernel works on one. Operands
    are torch's or NumPy's, integers and scalars of a step the engine's; all three take memory from ``malloc`` and the
    like. With each object of Python's there, too, imports took twice the time.
    """
    return {
        **os.environ,
        "TORCHIPU_CHECKED": "1",
        "LD_PRELOAD": sanitizers(),
        # Python and torch keep to the end what they allocated once; the kernels share the names of static variables.
        "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": os.pathsep.join([str(package), str(ROOT)]),
    }


def pytest_command(*arguments: str) -> list[str]:
    """Return the command for the tests that the arguments of pytest name, or for ``TESTS`` where they name none."""
    chosen = any(not argument.startswith("-") and (ROOT / argument.split("::")[0]).exists() for argument in arguments)
    return [
        sys.executable, "-m", "pytest", "-o", "pythonpath=", "-q", "-p", "no:cacheprovider", *arguments,
        *([] if chosen else TESTS),
    ]


def main(folder: str, *arguments: str) -> int:
    """Run the tests and return the exit status; what a sanitizer reports is shown as it comes, whichever process."""
    command = pytest_command("-s", *arguments)
    return subprocess.run(command, env=environment((ROOT / folder).resolve()), cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
