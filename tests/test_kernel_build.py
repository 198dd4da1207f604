"""The build of the kernels: C made of the table, and object files that are made again only where that is needed."""

from __future__ import annotations

import os
import platform
import runpy
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from setuptools.errors import CompileError

from kernel_build.objects import compile_all, weight
from kernel_build.source import KERNELS, load_table, write_sources
from torchipu._kernels import abi

ROOT = Path(__file__).parents[1]
COMPILER = (os.environ.get("CC") or sysconfig.get_config_var("CC")).split()
pytestmark = pytest.mark.skipif(shutil.which(COMPILER[0]) is None, reason="there is no C compiler")
FAMILY = '''
"""A family of the tests."""
from enum import IntEnum
from typing import NamedTuple
from .kernel import Kernel, Nothing
SPAN = 4
NAMES = ("add", "sub")
class Way(IntEnum):
    """How."""
    UP = 1
    DOWN = 2
class ScaledInts(NamedTuple):
    """Integers."""
    rows: int
    tile: tuple[int, int]
    shape: tuple[int, ...]
class ScaledScalars(NamedTuple):
    """Real numbers."""
    factor: float
SCALED = Kernel("scaled", {"out": "what it writes"}, ScaledInts, ScaledScalars)
'''
BODY = """
TI_KERNEL(scaled) {
  const scaled_ints *const p = (const scaled_ints *)ints;
  const scaled_scalars *const q = (const scaled_scalars *)scalars;
  ((double *)args[0])[0] = q->factor * (p->rows + p->tile[1] + p->shape[2]) + TI_SPAN + TI_WAY_DOWN;
  return TI_OK;
}
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return a folder of kernels with one family, beside the headers that all bodies use."""
    folder = tmp_path / "kernels" / "table"
    folder.mkdir(parents=True)
    for name in ("__init__.py", "kernel.py"):
        shutil.copy(ROOT / KERNELS / "table" / name, folder)
    (folder / "scaled.py").write_text(FAMILY, encoding="utf-8")
    (folder.parent / "scaled_body.h").write_text(BODY, encoding="utf-8")
    return folder


def compiled(table: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Write the C of a table and let the compiler read it."""
    build = table.parents[1] / "build"
    (source,) = write_sources(load_table(table), table.parent, build)
    return subprocess.run(
        [*COMPILER, "-fsyntax-only", "-pthread", "-Wno-psabi", f"-I{ROOT / KERNELS}", f"-I{table.parent}", f"-I{build}",
         *flags, str(source)],
        capture_output=True, text=True, check=False,
    )


def test_a_body_reads_numbers_and_constants_by_the_names_of_the_table(table: Path) -> None:
    done = compiled(table)
    assert done.returncode == 0, done.stderr
    header = (table.parents[1] / "build" / "table" / "scaled.h").read_text(encoding="utf-8")
    assert "typedef struct { int64_t rows; int64_t tile[2]; int64_t shape[]; } scaled_ints;" in header
    assert "#define TI_NAMES(X) X(add) X(sub)" in header


@pytest.mark.parametrize("left_out", ["AVX2", "AVX512"])
def test_a_family_for_avx2_alone_is_compiled_for_nothing_else_whatever_a_build_leaves_out(
    table: Path, left_out: str,
) -> None:
    (table / "scaled.py").write_text(FAMILY + "FOR_AVX2_ALONE = True\n", encoding="utf-8")
    done = compiled(table, f"-DTI_WITHOUT_{left_out}", "-E", "-P")
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "scaled_avx2, ((void *)0)}," in text
    assert "int scaled_avx2(" in text
    assert "scaled_avx512" not in text


@pytest.mark.skipif(
    platform.machine() != "x86_64" or " avx512vl" in Path("/proc/cpuinfo").read_text(),
    reason="what is built here is all that is written",
)
def test_the_compiler_reads_the_kernels_for_avx512_that_a_build_on_other_machines_leaves_out(tmp_path: Path) -> None:
    folder = [f"-I{one}" for one in (tmp_path / "read", ROOT / KERNELS, tmp_path)]
    sources = write_sources(load_table(), ROOT / KERNELS, tmp_path)
    command = [*COMPILER, "-O0", "-w", "-pthread", "-DTI_WITHOUT_AVX2"]
    (tmp_path / "read").mkdir()
    translated = ["-x", "c-header", str(ROOT / KERNELS / "isa.h"), "-o", str(tmp_path / "read" / "isa.h.gch")]
    subprocess.run([*command, *folder, *translated], check=True)
    assert len(sources) > 40
    for source in sources:
        done = subprocess.run(
            [*command, "-fsyntax-only", *folder, str(source)], capture_output=True, text=True, check=False,
        )
        assert done.returncode == 0, done.stderr


def test_a_build_is_for_this_machine_and_for_all_where_that_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def left_out(flags: str, **environment: str) -> str:
        monkeypatch.setattr(Path, "read_text", lambda path: flags)
        for name in ("TORCHIPU_KERNELS", "TORCHIPU_CHECKED", "TORCHIPU_ISA", "TORCHIPU_PORTABLE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return runpy.run_path(str(ROOT / "setup.py"), run_name="setup")["LEFT_OUT"]  # type: ignore[no-any-return]

    zen3 = "flags : fpu avx avx2 fma f16c bmi2\n"
    skylake = "flags : fpu avx avx2 fma f16c bmi2 avx512f avx512dq avx512cd avx512bw avx512vl\n"
    assert left_out(zen3) == "AVX512"
    assert left_out(zen3, TORCHIPU_ISA="avx512") == "AVX512"
    assert left_out(zen3, TORCHIPU_KERNELS="all") == ""
    assert left_out(skylake) == left_out(skylake, TORCHIPU_ISA="avx2") == ""
    assert left_out("flags : avx2 avx512f avx512cd\n") == "AVX512"  # Knights Landing has half of it
    assert left_out(skylake, TORCHIPU_CHECKED="1") == "AVX512"
    assert left_out(skylake, TORCHIPU_CHECKED="1", TORCHIPU_ISA="avx512") == "AVX2"
    assert left_out(zen3, TORCHIPU_PORTABLE="1") == ""


def test_left_out_kernels_are_told_of_where_the_machine_would_run_them(recwarn: pytest.WarningsRecorder) -> None:
    abi.tell_of_left_out_kernels(lacks=False)
    assert not recwarn.list
    with pytest.warns(UserWarning, match="this machine has AVX-512, and .* was built on one without it"):
        abi.tell_of_left_out_kernels(lacks=True)


def test_a_name_that_the_table_does_not_have_fails_the_build(table: Path) -> None:
    body = table.parent / "scaled_body.h"
    body.write_text(BODY.replace("p->rows", "p->columns"), encoding="utf-8")
    done = compiled(table)
    assert done.returncode != 0
    assert "has no member named" in done.stderr
    assert "columns" in done.stderr


def test_a_kernel_without_a_function_fails_the_build_with_what_to_define(table: Path) -> None:
    (table / "scaled.py").write_text(FAMILY + 'OTHER = Kernel("other", {}, Nothing, Nothing)\n', encoding="utf-8")
    done = compiled(table)
    assert done.returncode != 0
    assert "scaled_body.h has to define TI_KERNEL(other), which table/scaled.py names" in done.stderr


def test_a_family_without_a_body_is_refused(table: Path) -> None:
    (table.parent / "scaled_body.h").unlink()
    with pytest.raises(SystemExit, match=r"table/scaled.py has kernels, and no .*scaled_body.h"):
        compiled(table)


def test_tiles_are_a_file_of_their_own_which_begins_first(table: Path) -> None:
    (table.parent / "scaled_tiles_body.h").write_text("", encoding="utf-8")
    sources = write_sources(load_table(table), table.parent, table.parents[1] / "build")
    assert [source.name for source in sources] == ["scaled.c", "scaled_tiles.c"]
    assert max(sources, key=weight).name == "scaled_tiles.c"


def test_two_kernels_of_one_name_are_refused(table: Path) -> None:
    (table / "twice.py").write_text(FAMILY, encoding="utf-8")
    with pytest.raises(ValueError, match=r"table/twice.py: there are two kernels of the name 'scaled'"):
        load_table(table).all_kernels()


def test_a_tail_that_is_not_last_is_refused(table: Path) -> None:
    (table / "scaled.py").write_text(FAMILY.replace("    shape: tuple[int, ...]\n", "").replace(
        "    rows: int\n", "    shape: tuple[int, ...]\n    rows: int\n",
    ), encoding="utf-8")
    with pytest.raises(TypeError, match="ScaledInts: shape may have any length and is not the last field"):
        compiled(table)


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    """Return two C files, the first of which includes a header."""
    (tmp_path / "shared.h").write_text("enum { SHARED = 1 };\n", encoding="utf-8")
    first, second = tmp_path / "first.c", tmp_path / "second.c"
    first.write_text('#include "shared.h"\nint first = SHARED;\n', encoding="utf-8")
    second.write_text("int second = 2;\n", encoding="utf-8")
    for path in tmp_path.iterdir():  # as sources are that were not written just now
        os.utime(path, (1e9, 1e9))
    return [first, second]


def made_again(sources: list[Path], flags: tuple[str, ...] = ("-O0",), header: Path | None = None) -> set[str]:
    """Compile and return the names of the object files that were written."""
    folder = sources[0].parent / "objects"
    before = {path.name: path.stat().st_ino for path in folder.glob("*.o")}
    times = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.o")}
    compile_all(COMPILER, sources, folder, flags, 2, header=header)
    return {
        path.name for path in folder.glob("*.o")
        if before.get(path.name) != path.stat().st_ino or times[path.name] != path.stat().st_mtime_ns
    }


def test_what_includes_a_changed_header_is_compiled_again_and_nothing_else(sources: list[Path]) -> None:
    assert made_again(sources) == {"first.o", "second.o"}
    assert made_again(sources) == set()
    os.utime(sources[0].parent / "shared.h")
    assert made_again(sources) == {"first.o"}
    os.utime(sources[1])
    assert made_again(sources) == {"second.o"}


def test_what_a_precompiled_header_reads_is_noted_for_all_that_are_made_with_it(sources: list[Path]) -> None:
    folder = sources[0].parent
    first = folder / "headers" / "first.h"  # a file beside its source would be found before what was precompiled
    first.parent.mkdir()
    first.write_text('#include "shared.h"\n', encoding="utf-8")
    sources[0].write_text("int first = 1;\n", encoding="utf-8")
    sources[1].write_text('#include "first.h"\nint second = SHARED;\n', encoding="utf-8")
    for path in (first, *folder.glob("*.*")):
        os.utime(path, (1e9, 1e9))
    flags = ("-O0", f"-I{folder}", f"-I{first.parent}")
    assert made_again(sources, flags, first) == {"first.o", "second.o"}
    assert (folder / "objects/precompiled/first.h.gch").is_file()
    assert "shared.h" not in (folder / "objects/second.d").read_text(encoding="utf-8"), "it was read as text again"
    assert made_again(sources, flags, first) == set()
    os.utime(folder / "shared.h")
    assert made_again(sources, flags, first) == {"first.o", "second.o"}
    assert made_again(sources, flags, first) == set()


def test_a_source_that_is_made_meanwhile_is_compiled_with_the_others(sources: list[Path]) -> None:
    folder = sources[0].parent

    def translate() -> Path:
        third = folder / "third.c"
        third.write_text("int third = 3;\n", encoding="utf-8")
        return third

    objects = compile_all(
        COMPILER, sources, folder / "objects", ["-O0"], 2, translate=translate, translated_flags=["-O1"],
    )
    assert [Path(path).name for path in objects] == ["first.o", "second.o", "third.o"]
    commands = [Path(path).with_suffix(".command").read_text(encoding="utf-8") for path in objects]
    assert ["-O0 -O1" in command for command in commands] == [False, False, True]


def test_other_flags_compile_everything_again(sources: list[Path]) -> None:
    made_again(sources)
    assert made_again(sources, ("-O1",)) == {"first.o", "second.o"}


def test_a_header_that_is_gone_is_asked_of_the_compiler(sources: list[Path]) -> None:
    made_again(sources)
    (sources[0].parent / "shared.h").unlink()
    with pytest.raises(CompileError, match=r"first.c was not compiled; what the compiler says is above"):
        made_again(sources)


def test_writing_the_sources_again_leaves_them_as_they_are(table: Path) -> None:
    compiled(table)
    files = sorted((table.parents[1] / "build").rglob("*.[ch]"))
    times = [path.stat().st_mtime_ns for path in files]
    compiled(table)
    assert [path.stat().st_mtime_ns for path in files] == times
    assert len(files) == 3


def test_a_compilation_says_how_far_it_is_and_nothing_where_all_is_new_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    sources = [tmp_path / f"part{number}.c" for number in range(25)]
    for source in sources:
        source.write_text(f"int {source.stem};\n")
    compile_all(COMPILER, sources, tmp_path / "objects", [], 2)
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == "torchipu: 25 of 25 kernel sources compiled"
    assert len(said) == 10
    compile_all(COMPILER, sources, tmp_path / "objects", [], 2)
    assert capsys.readouterr().err == ""
    sources[3].write_text("int other;\n")
    compile_all(COMPILER, sources, tmp_path / "objects", [], 2)
    assert capsys.readouterr().err.endswith("torchipu: 25 of 25 kernel sources compiled\n")
