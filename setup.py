"""Builds the engine and the kernels; everything else is in pyproject.toml."""

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

sys.path.insert(0, str(Path(__file__).parent))  # a build in isolation does not look here

from kernel_build.objects import compile_all
from kernel_build.source import KERNELS, load_table, write_sources

CHECKED = os.environ.get("TORCHIPU_CHECKED") == "1"  # kernels that end the process on a bad access; see make checked
FLAGS = [
    "-O3",
    "-g0",  # Python's own flags ask for debugging information, which takes as long again and twenty times the space
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-strict-aliasing",
    "-pthread",
    "-fvisibility=hidden",
    # A name of another instruction set in code that is optimised away: the checked kernels, which are not, do not load.
    "-Werror=implicit-function-declaration",
    "-Wno-psabi",
    "-Wno-unused-function",
    "-Wno-unknown-pragmas",
]
# The engine is read by the compiler as Cython writes it: -O2 takes half as long again there, and a step of a small
# perceptron took as long by it (115.7 us, and 114.2 with -O1).
FLAGS_OF_ENGINE = ["-O1"]
# A shift or an overflow that C leaves open, or an access outside a buffer, ends the process. Alignment is not asked
# for: x86 loads from anywhere, and the bodies do. Nor are null pointers, sizes of objects and where a pointer wraps
# around: an access by such a one ends the process as well, and asking before each was a third of the compiler's work.
UNASKED = ("alignment", "null", "object-size", "pointer-overflow")
SANITIZE = ["-fsanitize=address,undefined", f"-fno-sanitize={','.join(UNASKED)}", "-fno-sanitize-recover=all"]
# Kernels in C alone, with GCC's vector types: where there is no AVX2, or where that is asked for.
IS_X86 = platform.machine().lower() in ("x86_64", "amd64")
PORTABLE = not IS_X86 or os.environ.get("TORCHIPU_PORTABLE") == "1"
# Kernels for AVX-512 take half of a build, and a machine without it cannot run them: a build is for the machine that it
# is made on. What goes to others, as wheels do, is for all.
CPUINFO = Path("/proc/cpuinfo")
HAS_AVX512 = CPUINFO.exists() and all(f" avx512{part}" in CPUINFO.read_text() for part in ("f", "bw", "dq", "vl"))
FOR_ALL = HAS_AVX512 or os.environ.get("TORCHIPU_KERNELS") == "all"
# Checked kernels are of one instruction set, and not optimised: they are built in a fraction of the time, and what the
# compiler may leave out as undefined is still there.
OF_CHECKED = "AVX2" if os.environ.get("TORCHIPU_ISA") == "avx512" else "AVX512"
LEFT_OUT = "" if PORTABLE else OF_CHECKED if CHECKED else "" if FOR_ALL else "AVX512"
FLAGS_OF_ISA = ["-DTI_PORTABLE"] if PORTABLE else [f"-DTI_WITHOUT_{LEFT_OUT}"] if LEFT_OUT else []
FLAGS_OF_CHECKED = ["-O0", "-g1", *SANITIZE]
# Where C is written and object files are kept, also from one installation in place to the next.
KIND = "portable" if PORTABLE else f"without_{LEFT_OUT.lower()}" if LEFT_OUT else "plain"
BUILD = Path("build/kernels", f"checked_{KIND}" if CHECKED else KIND)


class BuildKernels(build_ext):
    """Builds on all cores what changed, and says what to install when something is missing."""

    def build_extensions(self) -> None:
        refuse_without_compiler(self.compiler.compiler[0])
        if CHECKED:
            refuse_without_sanitizers(self.compiler.compiler[0])
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        """Build the engine and the kernels of all families into one extension."""
        sources = write_sources(load_table(), KERNELS, BUILD)
        includes = [str(KERNELS), str(BUILD), *self.compiler.include_dirs, *ext.include_dirs]
        objects = compile_all(
            self.compiler.compiler_so, sources, BUILD,
            [*(f"-I{folder}" for folder in includes), *ext.extra_compile_args], self.parallel or os.cpu_count(),
            header=KERNELS / "isa.h", translate=lambda: translated(ext.sources[0]),
            translated_flags=[] if CHECKED else FLAGS_OF_ENGINE, force=self.force,
        )
        path = self.get_ext_fullpath(ext.name)
        if self.force or newer_group(objects, path):
            self.compiler.link_shared_object(
                objects, path, libraries=self.get_libraries(ext), extra_postargs=ext.extra_link_args,
            )


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
    if not IS_X86 and platform.machine().lower() not in ("aarch64", "arm64"):
        sys.exit(
            f"torchipu: the kernels are written for x86-64 and aarch64, and this machine is {platform.machine()}.\n"
            "  do      say in torchipu/_kernels/portable.h how it flushes subnormal floats to zero, and build again"
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


def translated(source: str) -> Path:
    """Translate the engine to C with Cython."""
    try:
        from Cython.Build import cythonize
    except ImportError:
        sys.exit(
            "torchipu: the kernels are written in Cython, which is missing.\n"
            "  do      pip install Cython setuptools"
        )
    cythonize(str(source), build_dir=str(BUILD), language_level=3, quiet=True)
    return BUILD / Path(source).with_suffix(".c")


def engine() -> Extension:
    """The only extension; see ``BuildKernels`` for what else is linked to it."""
    kernels = [path for pattern in ("*.h", "*.pyx", "*.pxi", "table/*.py") for path in sorted(KERNELS.glob(pattern))]
    return Extension(
        "torchipu._kernels.abi",
        [str(KERNELS / "abi.pyx")],
        depends=[str(path) for path in (*kernels, *sorted(Path("kernel_build").glob("*.py")), Path("setup.py"))],
        extra_compile_args=[*FLAGS, *(FLAGS_OF_CHECKED if CHECKED else []), *FLAGS_OF_ISA],
        extra_link_args=["-pthread", *SANITIZE] if CHECKED else ["-pthread"],
    )


if __name__ == "__main__":
    setup(ext_modules=[engine()], cmdclass={"build_ext": BuildKernels})
