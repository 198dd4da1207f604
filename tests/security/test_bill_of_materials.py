"""The bill of materials has all that torchipu needs, at the versions that are installed."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

from tests.security.bill_of_materials import bill, normalised

ROOT = Path(__file__).parents[2]


def test_it_has_every_dependency_at_the_installed_version() -> None:
    made = bill()
    held = {one["name"]: one["version"] for one in made["components"]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for text in project["dependencies"]:
        name = re.match(r"[A-Za-z0-9_.-]+", text)
        assert name is not None
        assert held[normalised(name[0])] == metadata.version(name[0])
    assert {"sympy", "mpmath", "markupsafe"} <= set(held)  # of torch and jinja2
    assert "pytest" not in held
    assert made["metadata"]["component"]["name"] == "torchipu"


def test_it_is_cyclonedx_whose_references_lead_somewhere() -> None:
    made = bill()
    assert (made["bomFormat"], made["specVersion"], made["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}",
                        made["serialNumber"])
    references = {one["bom-ref"] for one in [made["metadata"]["component"], *made["components"]]}
    assert len(references) == len(made["components"]) + 1
    assert {one["ref"] for one in made["dependencies"]} == references
    assert all(set(one["dependsOn"]) <= references for one in made["dependencies"])
    assert all(one.startswith("pkg:pypi/") for one in references)
    assert made == bill()
