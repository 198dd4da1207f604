"""Records of collectives over processes: ATen and the process group give the values."""

from __future__ import annotations

from torchipu.device.compute_sets import no_vertices
from torchipu.optable.collective import PATTERNS, WAIT
from torchipu.optable.spec import OpSpec, register

register(*(
    # Each becomes copies and a collective, not vertices: see device.lower.collectives.
    OpSpec(target, f"process_{target.split('.')[1]}", no_vertices, has_effect=True) for target in PATTERNS
))
register(OpSpec(WAIT, "process_wait", no_vertices, is_view=True, has_effect=True))
