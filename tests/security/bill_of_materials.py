"""A software bill of materials, from the metadata of what is installed: ``make bill``.

CycloneDX 1.6 in JSON: torchipu, and every distribution that it needs, directly or through another, at the version that
is installed, with its licence and what it needs itself. Source: cyclonedx.org/docs/1.6/json.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import uuid
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = "torchipu"
FORMAT, VERSION = "CycloneDX", "1.6"


def bill() -> dict[str, Any]:
    """Return the bill; the same environment gives the same bytes, so it has no time of its making."""
    names = sorted(needed(ROOT))
    components = [component(name) for name in names if name != ROOT]
    dependencies = [
        {"ref": reference(name), "dependsOn": sorted(reference(one) for one in requirements(name) if one in names)}
        for name in names
    ]
    content = json.dumps([components, dependencies], sort_keys=True)
    serial = uuid.UUID(bytes=hashlib.sha256(content.encode()).digest()[:16], version=4)
    return {
        "bomFormat": FORMAT, "specVersion": VERSION, "serialNumber": f"urn:uuid:{serial}", "version": 1,
        "metadata": {"component": component(ROOT)}, "components": components, "dependencies": dependencies,
    }


def needed(name: str) -> set[str]:
    """Return a distribution and all that it needs of what is installed, by their normalised names."""
    found: set[str] = set()
    open_ones = [name]
    while open_ones:
        one = open_ones.pop()
        if one not in found:
            found.add(one)
            open_ones += requirements(one)
    return found


def requirements(name: str) -> Iterator[str]:
    """Yield what a distribution needs here; extras are left out, unless what they name is asked for by ``[...]``."""
    for text in metadata.requires(name) or ():
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            continue
        yield normalised(requirement.name)


def component(name: str) -> dict[str, Any]:
    """Return the entry of a distribution."""
    held = metadata.metadata(name)
    version = metadata.version(name)
    made = {
        "type": "library", "bom-ref": reference(name), "name": normalised(name), "version": version,
        "purl": reference(name),
    }
    licence = held.get("License-Expression")
    if licence:
        made["licenses"] = [{"expression": licence}]
    elif licences := [text.rpartition(" :: ")[2] for text in held.get_all("Classifier", ()) if "License ::" in text]:
        made["licenses"] = [{"license": {"name": text}} for text in licences]
    return made


def reference(name: str) -> str:
    """Return the package URL of a distribution: ``pkg:pypi/torch@2.13.0``."""
    return f"pkg:pypi/{normalised(name)}@{metadata.version(name)}"


def normalised(name: str) -> str:
    """Return a name as the index has it: PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    text = json.dumps(bill(), indent=1) + "\n"
    if len(sys.argv) > 1:
        Path(sys.argv[1]).parent.mkdir(parents=True, exist_ok=True)
        Path(sys.argv[1]).write_text(text, encoding="utf-8")
    else:
        print(text, end="")
