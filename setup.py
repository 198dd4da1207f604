"""Builds the Cython kernels; everything else is in pyproject.toml."""

import glob
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = "torchipu/_kernels"
CHECKED = os.environ.get("TORCHIPU_CHECKED") == "1"  # kernels that end the process on a bad access; see make checked
FLAGS = [
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-strict-aliasing",
    "-pthread",
    "-Wno-psabi",
    "-Wno-unused-function",
    "-Wno-unknown-pragmas",
]
# A shift or an overflow that C leaves open, or an access outside a buffer, ends the process. Alignment is not asked
# for: x86 loads from anywhere, and the bodies do.
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize=alignment", "-fno-sanitize-recover=all"]
# Of one instruction set alone, and not optimised: it is built in a fraction of the time, and what the compiler may
# leave out as undefined is still there.
OTHER_ISA = "AVX2" if os.environ.get("TORCHIPU_ISA") == "avx512" else "AVX512"
FLAGS_OF_CHECKED = ["-O0", "-g1", f"-DTI_WITHOUT_{OTHER_ISA}", *SANITIZE]


class BuildKernels(build_ext):
    """Builds on all cores, and says what to install when something is missing."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def build_extensions(self) -> None:
        refuse_without_compiler(self.compiler.compiler[0])
        if CHECKED:
            refuse_without_sanitizers(self.compiler.compiler[0])
        super().build_extensions()


def refuse_without_compiler(compiler: str) -> None:
    """End with a message when the machine cannot build the kernels."""
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if shutil.which(compiler) is None:
        sys.exit(
            f"torchipu: the kernels need a C compiler, and {compiler!r} is not on the PATH.\n"
            "  do      apt-get install gcc python3-dev (Debian, Ubuntu), or set CC to a compiler"
        )
    if not header.is_file():
        sys.exit(
            f"torchipu: the kernels need the headers of Python, and {header} is missing.\n"
            "  do      apt-get install python3-dev (Debian, Ubuntu)"
        )
    if platform.machine().lower() not in ("x86_64", "amd64"):
        sys.exit(
            f"torchipu: the kernels are written for x86-64 with AVX2, and this machine is {platform.machine()}.\n"
            "  do      build on an x86-64 machine"
        )


def refuse_without_sanitizers(compiler: str) -> None:
    """End with a message when the compiler cannot build kernels that are checked as they run."""
    for library in ("libasan.so", "libubsan.so"):
        named = subprocess.run([compiler, f"-print-file-name={library}"], capture_output=True, text=True)
        if not Path(named.stdout.strip()).is_absolute():  # it repeats the name of what it does not have
            sys.exit(
                f"torchipu: the checked kernels need GCC's {library}, and {compiler!r} has none.\n"
                "  do      apt-get install gcc (Debian, Ubuntu), or set CC to a GCC that has it"
            )


def extensions() -> list[Extension]:
    """One extension for each ``.pyx`` of the kernels."""
    headers = sorted(glob.glob(f"{KERNELS}/*.h"))
    return [
        Extension(
            path.removesuffix(".pyx").replace(os.sep, "."),
            [path],
            depends=[*headers, "setup.py"],
            extra_compile_args=FLAGS + FLAGS_OF_CHECKED if CHECKED else FLAGS,
            extra_link_args=["-pthread", *SANITIZE] if CHECKED else ["-pthread"],
        )
        for path in sorted(glob.glob(f"{KERNELS}/*.pyx"))
    ]


def cythonised() -> list[Extension]:
    """Translate with Cython."""
    try:
        from Cython.Build import cythonize
    except ImportError:
        sys.exit(
            "torchipu: the kernels are written in Cython, which is missing.\n"
            "  do      pip install Cython setuptools"
        )
    return cythonize(extensions(), language_level=3, quiet=True)


if __name__ == "__main__":
    setup(ext_modules=cythonised(), cmdclass={"build_ext": BuildKernels})
