"""All kinds, in the order of the page: from single vertices to whole models."""

from __future__ import annotations

from torchipu.score import access, products, profiles, stencils, throughput, tools, vertices

KINDS = (
    *vertices.KINDS, *products.KINDS, *tools.KINDS, *access.KINDS, *stencils.KINDS, *throughput.KINDS, *profiles.KINDS,
)
