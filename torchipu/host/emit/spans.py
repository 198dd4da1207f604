"""How the kernels of optimisers and of sums over replicas share out a state."""

from __future__ import annotations

SPAN = 4096  # elements of an item; as in update_body.h
