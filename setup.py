"""Builds the Cython kernels; everything else is in pyproject.toml."""

import glob
import os
import platform
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = "torchipu/_kernels"
CHECKED = os.environ.get("TORCHIPU_CHECKED") == "1"  # bounds checks in the kernels, for a second run of the tests
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


class BuildKernels(build_ext):
    """Builds on all cores, and says what to install when something is missing."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def build_extensions(self) -> None:
        refuse_without_compiler(self.compiler.compiler[0])
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


def extensions() -> list[Extension]:
    """One extension for each ``.pyx`` of the kernels."""
    headers = sorted(glob.glob(f"{KERNELS}/*.h"))
    return [
        Extension(
            path.removesuffix(".pyx").replace(os.sep, "."),
            [path],
            depends=headers,
            extra_compile_args=FLAGS,
            extra_link_args=["-pthread"],
            define_macros=[("TORCHIPU_CHECKED", "1")] if CHECKED else [],
        )
        for path in sorted(glob.glob(f"{KERNELS}/*.pyx"))
    ]


def flavour_changed() -> bool:
    """Note which flavour is built, and tell whether the last build was of the other one."""
    note, flavour = Path("build") / "flavour", "checked" if CHECKED else "plain"
    last = note.read_text() if note.is_file() else "plain"
    note.parent.mkdir(exist_ok=True)
    note.write_text(flavour)
    return last != flavour


def cythonised() -> list[Extension]:
    """Translate with Cython, with bounds checks when TORCHIPU_CHECKED=1."""
    try:
        from Cython.Build import cythonize
    except ImportError:
        sys.exit(
            "torchipu: the kernels are written in Cython, which is missing.\n"
            "  do      pip install Cython setuptools"
        )
    directives = {"boundscheck": True, "wraparound": True} if CHECKED else {}
    return cythonize(
        extensions(), language_level=3, compiler_directives=directives, force=flavour_changed(), quiet=True
    )


if __name__ == "__main__":
    setup(ext_modules=cythonised(), cmdclass={"build_ext": BuildKernels})
