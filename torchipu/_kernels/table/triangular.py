"""Kernel of systems of equations whose matrix is triangular, solved by substitution."""

from typing import NamedTuple

from .kernel import Kernel, Nothing

SOLVED_PANEL = 16  # systems with one matrix that an item solves side by side


class SolveTriangularInts(NamedTuple):
    """Integers of ``solve_triangular``.

    Attributes:
        size: Of a matrix.
        systems: With the same matrix, in each batch.
        is_upper: Which triangle of the matrix counts.
        is_unit: Whether its diagonal counts as ones.
        is_left: Whether the matrix stands left of the unknowns, which are then columns, and not rows.
    """

    size: int
    systems: int
    is_upper: bool
    is_unit: bool
    is_left: bool


SOLVE_TRIANGULAR = Kernel(
    "solve_triangular",
    {"unknowns": "[batch, size, systems], or [batch, systems, size] where the matrix stands right",
     "given": "as unknowns", "matrices": "[batch, size, size]"},
    SolveTriangularInts, Nothing, items="batch * panels of SOLVED_PANEL systems",
    scratch="a panel, [size, SOLVED_PANEL] floats",
)
