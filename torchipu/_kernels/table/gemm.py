"""What the register tiles of gemm_body.h share with the emitters of the products that use them."""

PANEL = 32
"""Columns of a panel, in which right operands lie when they are packed: `[inner][PANEL]`, zero beyond the last."""

SUM_BLOCK = 384
"""Summands of a part of a long sum, which begins at zero: rounding errors grow with these, not with all summands."""

WIDE_ROWS, FEW_SUMMANDS = 28, 7
"""Rows, or summands, so few that a right operand of long rows is read as it lies, by the tiles of wide_tile_body.h."""
