"""Builds the Cython kernels; everything else is in pyproject.toml."""

import glob
import os
import shutil
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class BuildKernels(build_ext):
    """Says what to install when there is no C compiler."""

    def build_extensions(self) -> None:
        compiler = self.compiler.compiler[0] if hasattr(self.compiler, "compiler") else "cc"
        if shutil.which(compiler) is None:
            sys.exit(
                f"torchipu: the kernels need a C compiler, and {compiler!r} is not on the PATH.\n"
                "  do      apt-get install gcc python3-dev (Debian, Ubuntu), or set CC to a compiler"
            )
        super().build_extensions()


def extensions() -> list[Extension]:
    """One extension for each ``.pyx`` under ``torchipu/_kernels``."""
    checked = os.environ.get("TORCHIPU_CHECKED") == "1"
    flags = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing", "-pthread", "-Wno-psabi",
             "-Wno-unused-function", "-Wno-unknown-pragmas"]
    headers = glob.glob("torchipu/_kernels/*.h")
    return [
        Extension(
            path[:-4].replace(os.sep, "."), [path], depends=headers, extra_compile_args=flags, extra_link_args=["-pthread"],
            define_macros=[("TORCHIPU_CHECKED", "1")] if checked else [],
        )
        for path in sorted(glob.glob("torchipu/_kernels/*.pyx"))
    ]


def cythonised() -> list[Extension]:
    """Translate with Cython, with bounds checks when TORCHIPU_CHECKED=1."""
    from Cython.Build import cythonize

    directives = {"boundscheck": True, "wraparound": True} if os.environ.get("TORCHIPU_CHECKED") == "1" else {}
    return cythonize(extensions(), language_level=3, compiler_directives=directives)


setup(ext_modules=cythonised(), cmdclass={"build_ext": BuildKernels})
