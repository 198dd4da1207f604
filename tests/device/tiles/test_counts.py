"""What the cost reader estimates of exchanges beside what the tiles count: equal, or apart by a rule with a name."""

from __future__ import annotations

from collections import Counter

import expecttest

from tests.device.tiles.test_programs import demo
from torchipu.device.tiles.counts import Rule


class CountsTest(expecttest.TestCase):
    """Of the demo's training step."""

    def test_every_difference_has_its_rule(self) -> None:
        _, machine, _ = demo()
        assert all(count.vertices[0] == count.vertices[1] for count in machine.counts)
        assert machine.tiled == machine.supersteps
        rules = Counter(count.rule for count in machine.counts)
        text = "\n".join(f"{rules[rule]:3} {rule.value}" for rule in Rule)
        self.assertExpectedInline(text + "\n", """\
 36 equal
  5 the estimate counts operands that lie on the tile already
  8 the estimate counts an element, or padding, as often as the vertices of a tile read it
  3 the estimate takes every block to be as large as the largest
 34 the estimate takes operands to lie where their readers are, or to be read by fewer tiles
""")

    def test_products_receive_what_is_estimated_or_lie_elsewhere(self) -> None:
        """The planner takes a tile to hold its share of the operands, and pairs of tiles to receive at once."""
        products = [
            one for one in demo()[1].counts
            if one.group.op.kind in ("mm", "addmm") and one.group.codelet == "poplin::ConvPartial1x1Out"
        ]
        assert len(products) > 5
        assert all(one.estimated <= one.received for one in products)
        assert {one.rule for one in products} <= {Rule.EQUAL, Rule.ELSEWHERE}
