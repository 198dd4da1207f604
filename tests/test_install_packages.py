"""How packages are installed: by uv with pip's settings; by pip where uv cannot be told them, is not there or fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import install_packages
from install_packages import environment_of, main, settings_of

LISTED = """:env:.cert='/etc/ssl/own.crt'
:env:.find-links='/opt/wheels /opt/more'
global.cert='/etc/ssl/all.crt'
global.extra-index-url='https://one.example/simple https://two.example/simple'
global.timeout='10'
install.timeout='20'
download.timeout='30'
"""


def test_the_environment_holds_before_the_command_and_the_command_before_all() -> None:
    assert settings_of(LISTED) == {
        "cert": "/etc/ssl/own.crt", "find-links": "/opt/wheels /opt/more", "timeout": "20",
        "extra-index-url": "https://one.example/simple https://two.example/simple",
    }


def test_uv_is_told_what_pip_is_told() -> None:
    assert environment_of(settings_of(LISTED)) == {
        "UV_INDEX_STRATEGY": "unsafe-best-match", "SSL_CERT_FILE": "/etc/ssl/own.crt", "UV_HTTP_TIMEOUT": "20",
        "UV_FIND_LINKS": "/opt/wheels,/opt/more",
        "UV_EXTRA_INDEX_URL": "https://one.example/simple https://two.example/simple",
    }
    assert environment_of({"index-url": "https://all.example"})["UV_DEFAULT_INDEX"] == "https://all.example"  # type: ignore[index]
    assert environment_of({"no-compile": "no"}) == environment_of({})


def test_a_setting_that_uv_does_not_know_is_left_to_pip() -> None:
    assert environment_of({"target": "/somewhere/else"}) is None


class _Programs:
    """Stands for pip and uv, of which some fail."""

    def __init__(self, listed: str, failing: tuple[str, ...]) -> None:
        self.listed, self.failing = listed, failing
        self.ran: list[str] = []
        self.variables: dict[str, str] = {}

    def __call__(self, command: list[str], **keywords: object) -> subprocess.CompletedProcess[str]:
        if command[1:] == ["-m", "pip", "config", "list"]:
            return subprocess.CompletedProcess(command, 0, stdout=self.listed)
        name = "pip" if command[1:3] == ["-m", "pip"] else Path(command[0]).name
        self.ran.append(f"{name} {command[-1]}")
        if name == "uv":
            assert command[command.index("--python") + 1] == sys.executable
            self.variables = dict(keywords["env"])  # type: ignore[call-overload]
        return subprocess.CompletedProcess(command, int(self.ran[-1] in self.failing))


UV = f"pip {install_packages.UV}"


@pytest.mark.parametrize(("listed", "failing", "ran", "status"), [
    ("", (), [UV, "uv rich"], 0),
    ("", (UV,), [UV, "pip rich"], 0),
    ("", ("uv rich",), [UV, "uv rich", "pip rich"], 0),
    ("", ("uv rich", "pip rich"), [UV, "uv rich", "pip rich"], 1),
    ("global.target='/elsewhere'", (), ["pip rich"], 0),
])
def test_pip_stands_in(
    listed: str, failing: tuple[str, ...], ran: list[str], status: int, monkeypatch: pytest.MonkeyPatch,
) -> None:
    programs = _Programs(listed, failing)
    monkeypatch.setattr(subprocess, "run", programs)
    assert (main(["rich"]), programs.ran) == (status, ran)


def test_what_the_user_tells_uv_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = _Programs("global.timeout='10'\nglobal.cert='/own.crt'", ())
    monkeypatch.setattr(subprocess, "run", programs)
    monkeypatch.setenv("UV_HTTP_TIMEOUT", "99")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert main(["rich"]) == 0
    assert (programs.variables["UV_HTTP_TIMEOUT"], programs.variables["SSL_CERT_FILE"]) == ("99", "/own.crt")


def test_it_runs_beside_an_installation_of_pip() -> None:
    script = Path(install_packages.__file__)
    done = subprocess.run(  # nothing is fetched, be uv there or not
        [sys.executable, str(script), "-r", "/no/such/file"], env=os.environ | {"PIP_NO_INDEX": "1"},
        capture_output=True, text=True, check=False,
    )
    assert done.returncode != 0
    assert "/no/such/file" in done.stderr
