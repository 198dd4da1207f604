"""What the kernels do where there is no AVX2: portable.h gives what the instructions give, here and on aarch64."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

from kernel_build.source import load_table, write_sources

pytestmark = pytest.mark.skipif(
    os.environ.get("TORCHIPU_CHECKED") == "1", reason="compiles programs of its own: no kernel of make checked runs",
)
KERNELS = Path(__file__).parents[2] / "torchipu" / "_kernels"
SOURCE = Path(__file__).parent / "vector_names.c"
# Sums of products are fused where portable.h says so, and nowhere else here.
FLAGS = ["-O2", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing", "-ffp-contract=off", "-Wno-psabi"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
NATIVE = shlex.split(sysconfig.get_config_var("CC"))[0]
FOREIGN = shutil.which("aarch64-linux-gnu-gcc") or shutil.which("aarch64-linux-gnu-gcc-12")
EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")


def printed(folder: Path, name: str, compiler: str, flags: Sequence[str], runner: Sequence[str] = ()) -> list[str]:
    """Compile the program of all operations, run it, and return its lines."""
    program = folder / name
    command = [compiler, *FLAGS, *flags, f"-I{KERNELS}", str(SOURCE), "-o", str(program), "-lm"]
    subprocess.run(command, check=True, timeout=300)
    done = subprocess.run([*runner, str(program)], check=True, capture_output=True, text=True, timeout=300)
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    if platform.machine().lower() not in ("x86_64", "amd64") or " avx2 " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("there is no AVX2 here to compare with")
    lines = printed(tmp_path_factory.mktemp("avx2"), "avx2", NATIVE, AVX2)
    assert len(lines) > 10_000
    return lines


def test_each_operation_is_compared() -> None:
    defined = set(re.findall(r"\b_(?:mm|cvt)\w+(?=\()", (KERNELS / "portable.h").read_text(encoding="utf-8")))
    assert len(defined) > 70
    assert defined - set(re.findall(r"\w+", SOURCE.read_text(encoding="utf-8"))) == {
        "_mm_getcsr", "_mm_setcsr", "_mm_pause", "_mm_prefetch",  # give nothing
    }


def test_kernels_name_no_other_instruction(tmp_path: Path) -> None:
    sources = write_sources(load_table(KERNELS / "table"), KERNELS, tmp_path)
    flags = ["-fsyntax-only", "-DTI_PORTABLE", "-Wno-psabi", "-Werror=implicit-function-declaration"]
    subprocess.run([NATIVE, *flags, f"-I{KERNELS}", f"-I{tmp_path}", *map(str, sources)], check=True, timeout=300)


@pytest.mark.parametrize("flags", [[], ["-mfma"], ["-O0"]], ids=["baseline", "fma", "unoptimised"])
def test_c_gives_what_the_instructions_give(expected: list[str], flags: list[str], tmp_path: Path) -> None:
    assert printed(tmp_path, "portable", NATIVE, ["-DTI_PORTABLE", *flags]) == expected


@pytest.mark.skipif(FOREIGN is None or EMULATOR is None, reason="needs aarch64-linux-gnu-gcc and qemu-aarch64")
def test_aarch64_gives_the_same(expected: list[str], tmp_path: Path) -> None:
    assert FOREIGN is not None
    assert EMULATOR is not None
    assert printed(tmp_path, "aarch64", FOREIGN, ["-DTI_PORTABLE", "-static"], [EMULATOR]) == expected
