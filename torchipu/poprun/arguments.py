"""The command line of ``poprun``: its options, how they may be written, and the file that they can be kept in."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from torchipu.errors import OptionsError, nearest

YES = {"yes": True, "1": True, "true": True, "on": True, "no": False, "0": False, "false": False, "off": False}


@dataclass(frozen=True, slots=True)
class Argument:
    """One option.

    Args:
        name: Without dashes.
        kind: What it takes: int, float, str, bool, or list for a text that may come several times.
        default: Its value where it is not given.
        help: What it does.
        section: Where the help lists it.
        metavar: What the help calls its value.
        least: The smallest number allowed.
        short: A letter that stands for it.
        has_effect: Whether it does something here.
    """

    name: str
    kind: type
    default: Any
    help: str
    section: str
    metavar: str = ""
    least: int = 0
    short: str = ""
    has_effect: bool = True

    @property
    def key(self) -> str:
        """Its name as an attribute."""
        return self.name.replace("-", "_")


JOB, HOSTS, OUTPUT, ENVIRONMENT, CONFIG, VIPU = (
    "the job", "several hosts", "output", "environment of the instances", "options in a file",
    "accepted for programs written for a machine with a V-IPU controller, without effect",
)


def _vipu(name: str, kind: type = str, default: Any = None, metavar: str = "") -> Argument:
    return Argument(name, kind, default, "", VIPU, metavar, has_effect=False)


ARGUMENTS = (
    Argument("num-instances", int, 1, "processes to start, on all hosts together", JOB, "N", 1),
    Argument("num-replicas", int, 1, "replicas of all instances together; instances have the same number", JOB, "N", 1),
    Argument("ipus-per-replica", int, 1, "IPUs of a replica", JOB, "N", 1),
    Argument("max-restarts", int, 0, "how often all instances are started again after one has failed", JOB, "N"),
    Argument("numa-aware", bool, False, "bind each instance to its share of the CPUs, of one NUMA node where that "
             "is possible; otherwise instances are only told how many threads to use", JOB),
    Argument("host", str, "", "hosts: h1,h2 or h[0-2,4]; the same command is then started on each of them, and the "
             "first one is where they meet", HOSTS, "LIST", short="H"),
    Argument("nnodes", int, 1, "number of hosts, where --host does not list them; as torchrun has it", HOSTS, "N", 1),
    Argument("node-rank", int, None, "number of this host, from 0, where --host does not tell", HOSTS, "N"),
    Argument("rdzv-endpoint", str, "", "host and port where the hosts meet (first host:29400)", HOSTS, "HOST:PORT"),
    Argument("rdzv-id", str, "poprun", "name of the job, the same on all hosts", HOSTS, "NAME"),
    Argument("only-output-from-instance", int, None, "show the output of one instance only", OUTPUT, "N"),
    Argument("tag-output", bool, False, "put [1,INSTANCE]<stdout>: before each line, as mpirun does", OUTPUT),
    Argument("log-dir", str, "", "also write the output of each instance to files in this folder", OUTPUT, "DIR"),
    Argument("print-topology", bool, False, "print which host, instance, replicas, IPUs and CPUs go together", OUTPUT),
    Argument("executable-cache-path", str, "", "folder of the executable cache of all instances", ENVIRONMENT, "DIR"),
    Argument("mpi-global-args", list, (), "arguments of mpirun: -x VAR, -x VAR=value, --tag-output, --wdir DIR and "
             "--allow-run-as-root are followed, others are named and left out", ENVIRONMENT, "TEXT"),
    Argument("mpi-local-args", list, (), "the same", ENVIRONMENT, "TEXT"),
    Argument("import-config", str, "", "take options from a file; those on the command line come first", CONFIG,
             "FILE"),
    Argument("export-config", str, "", "write the options to a file", CONFIG, "FILE"),
    Argument("overwrite-config", bool, False, "let --export-config replace a file", CONFIG),
    Argument("version-format", str, "text", "what --version prints: text or json", OUTPUT, "NAME"),
    _vipu("vipu-partition", metavar="NAME"), _vipu("vipu-allocation", metavar="NAME"),
    _vipu("vipu-cluster", metavar="NAME"), _vipu("vipu-server-host", metavar="HOST"),
    _vipu("vipu-server-port", int, 8090, "PORT"), _vipu("vipu-server-timeout", int, 120, "SECONDS"),
    _vipu("vipu-partition-attempts", int, 1, "N"), _vipu("update-partition", bool, False),
    _vipu("reset-partition", bool, None), _vipu("remove-partition", bool, True), _vipu("num-ilds", int, None, "N"),
    _vipu("sync-type", metavar="NAME"), _vipu("offline-mode", bool, False),
)
BY_NAME: Mapping[str, Argument] = {argument.name: argument for argument in ARGUMENTS}
SHORT = {argument.short: argument.name for argument in ARGUMENTS if argument.short}
PLAIN = {"help": "help", "h": "help", "version": "version", "verbose": "verbose", "v": "verbose", "vv": "vv"}
"""Options without a value."""
NOT_KEPT = ("import-config", "export-config", "overwrite-config", "version-format")

DESCRIPTION = (
    "Start a program once for each instance, and end all when one fails. Booleans take yes, no, 1 or 0, and mean yes "
    "where nothing follows; options may be shortened, and written --option value or --option=value."
)
EPILOG = (
    "On several hosts the same command is started on each, as with torchrun: either with --host, or with --nnodes, "
    "--node-rank and --rdzv-endpoint. The status is that of the instance that failed first, 128 and the number of the "
    "signal where one ended it."
)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What was asked for.

    Attributes:
        values: The value of every option by its key.
        given: Names of the options that the command line or a file has.
        verbosity: How often ``-v`` was given.
        program: What to run, with its arguments.
        wants: ``help``, ``version`` or an empty text.
    """

    values: argparse.Namespace
    given: frozenset[str]
    verbosity: int
    program: tuple[str, ...]
    wants: str


def parse(words: Sequence[str]) -> CommandLine:
    """Read a command line.

    Args:
        words: What follows the name of the command.

    Raises:
        OptionsError: An option is unknown, ambiguous or has no such value, or a file of options cannot be read.
    """
    texts, plain, program = _split(words)
    wants = next((name for name in ("help", "version") if name in plain), "")
    found: dict[str, Any] = {}
    for name, text in texts:
        value = _value(BY_NAME[name], text)
        found[name] = (*found.get(name, ()), value) if BY_NAME[name].kind is list else value
    file = found.get("import-config")
    if file and not wants:
        found = {**_imported(Path(file)), **found}
    values = argparse.Namespace(**{a.key: found.get(a.name, a.default) for a in ARGUMENTS})
    verbosity = plain.count("verbose") + 2 * plain.count("vv")
    return CommandLine(values, frozenset(found), verbosity, tuple(program), wants)


def export(line: CommandLine, path: Path) -> None:
    """Write the options that were given to a file.

    Args:
        line: What was asked for.
        path: The file.

    Raises:
        OptionsError: It is there already and is not to be replaced, or cannot be written.
    """
    if path.exists() and not line.values.overwrite_config:
        raise OptionsError(
            f"--export-config: the file {path} exists", option="export-config", remedy="add --overwrite-config yes"
        )
    kept = sorted(line.given - set(NOT_KEPT))
    text = json.dumps({name: getattr(line.values, BY_NAME[name].key) for name in kept}, indent=2)
    try:
        path.write_text(f"{text}\n")
    except OSError as error:
        raise OptionsError(f"--export-config: {error}", option="export-config") from error


def _imported(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
        if not isinstance(found, dict):
            raise ValueError("it holds no options")
    except (OSError, ValueError) as error:
        raise OptionsError(f"--import-config: {path} cannot be read: {error}", option="import-config") from error
    values = {}
    for name, value in found.items():
        if name not in BY_NAME:
            raise OptionsError(f"{path}: there is no option {name!r}{nearest(name, BY_NAME)}", option=name)
        kind = BY_NAME[name].kind
        if kind is list and isinstance(value, list):
            values[name] = tuple(_value(BY_NAME[name], str(text)) for text in value)
        else:
            values[name] = _value(BY_NAME[name], value if isinstance(value, str) else json.dumps(value))
    return values


# --------------------------------------------------------------------------- words
def _split(words: Sequence[str]) -> tuple[list[tuple[str, str]], list[str], list[str]]:
    """Return the options with their texts, the options without, and the program with its arguments."""
    texts: list[tuple[str, str]] = []
    plain: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        name, sign, text = word.lstrip("-").partition("=")
        if not word.startswith("--") and set(name) == {"v"} and not sign:
            plain += ["verbose"] * len(name)
            continue
        if not word.startswith("--") and name[:1] in SHORT and not sign:
            name, sign, text = name[0], name[1:], name[1:]
        full = _full_name(name, word)
        if full in PLAIN.values():
            if sign:
                raise OptionsError(f"--{full} takes no value, got {text!r}", option=full)
            plain.append(full)
        elif sign:
            texts.append((full, text))
        elif BY_NAME[full].kind is bool:
            texts.append((full, rest.pop(0) if rest and rest[0].lower() in YES else "yes"))
        elif rest:
            texts.append((full, rest.pop(0)))
        else:
            raise OptionsError(f"--{full} needs a value", option=full)
    return texts, plain, rest


def _full_name(name: str, word: str) -> str:
    """Return the option that a word means, which may be its beginning."""
    known = (*BY_NAME, *PLAIN.values())
    if name in SHORT and not word.startswith("--"):
        return SHORT[name]
    if name in PLAIN:
        return PLAIN[name]
    if name in known:
        return name
    meant = sorted({option for option in known if name and option.startswith(name)})
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise OptionsError(f"{word} may mean {', '.join(f'--{option}' for option in meant)}", option=name)
    close = nearest(f"--{name}", [f"--{option}" for option in known])
    raise OptionsError(f"there is no option {word}{close}", option=name, remedy="see poprun --help")


def _value(argument: Argument, text: str) -> Any:
    if argument.kind is bool:
        if text.lower() not in YES:
            _refuse(argument, text, "yes, no, 1 or 0")
        return YES[text.lower()]
    if argument.kind is int:
        if not text.isdecimal() or int(text) < argument.least:
            _refuse(argument, text, f"a whole number from {argument.least}")
        return int(text)
    return text


def _refuse(argument: Argument, text: str, allowed: str) -> NoReturn:
    raise OptionsError(f"--{argument.name} must be {allowed}, got {text!r}", option=argument.name, value=text)


# --------------------------------------------------------------------------- help
def help_text() -> str:
    """Return what ``--help`` prints."""
    parser = argparse.ArgumentParser(
        prog="poprun", description=DESCRIPTION, epilog=EPILOG, add_help=False,
        usage="poprun [options] program [arguments]",
    )
    sections: dict[str, Any] = {}
    for argument in ARGUMENTS:
        if argument.section not in sections:
            sections[argument.section] = parser.add_argument_group(argument.section)
        flags = [f"--{argument.name}", *([f"-{argument.short}"] if argument.short else [])]
        default = "" if argument.default in (None, "", False, ()) else f" ({argument.default})"
        sections[argument.section].add_argument(
            *flags, metavar=argument.metavar or "yes|no", help=f"{argument.help}{default}".strip(),
        )
    more = parser.add_argument_group("more")
    more.add_argument("-v", "-vv", "--verbose", action="store_true", help="say more; twice: what the agent does, too")
    more.add_argument("--version", action="store_true", help="print the version")
    more.add_argument("-h", "--help", action="store_true", help="print this")
    return parser.format_help()
