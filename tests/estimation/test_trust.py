"""What estimates say of how far to trust them, from what the score card found."""

from __future__ import annotations

import torch
from torch import nn

import torchipu
from tests.estimation.small import Tower, tokens
from torchipu import Options
from torchipu.optable.spec import TABLE
from torchipu.report.trust import FILE, KIND_OF_FAMILY, Judged, read, write
from torchipu.score.catalogue import KINDS


def estimate(**options):
    with torch.device("meta"):
        model = Tower()
    return torchipu.estimate(model, (tokens(), tokens()), Options(**options))


def test_the_file_is_of_the_kinds_of_the_score_card():
    known = {kind.name: kind.source for kind in KINDS}
    assert {kind: judged.source for kind, judged in read(FILE).items()}.items() <= known.items()
    assert set(KIND_OF_FAMILY.values()) <= set(read(FILE))


def test_families_name_kinds_of_op_that_there_are():
    from torchipu.report.trust import FAMILY_BY_OP

    assert set(FAMILY_BY_OP) <= {spec.kind for spec in TABLE.values()}


def test_shares_of_cycles_add_up_and_carry_what_was_found():
    trust = estimate(target="bow").trust
    assert abs(sum(part.share for part in trust.parts) - 1) < 1e-9
    products = next(part for part in trust.parts if part.family == "products")
    assert products.judged == read(FILE)["gemm"]
    assert trust.rate == read(FILE)["train"]
    low, high = trust.rate_range(100.0)
    assert low < 100 < high
    assert "products" in trust.text()
    assert f"{trust.rate.rows} rows" in trust.text()


def test_ops_without_a_record_are_told():
    class Inverse(nn.Module):
        def forward(self, x):
            return torch.linalg.inv(x)

    trust = torchipu.estimate(Inverse().eval(), torch.eye(8)).trust
    assert trust.generic_share > 0.5
    assert "estimated: no record" in trust.text()


def test_more_ipus_and_other_machines_than_measured_are_extrapolations():
    assert estimate(target="bow-pod256", replicas=256).trust.extrapolations == ()
    larger = estimate(target="bow-pod256,num_ipus=512", replicas=512).trust.extrapolations
    assert "512 IPUs: the most that was measured is 256" in larger
    (words,) = estimate(target="bow,num_tiles=736").trust.extrapolations
    assert words == "hypothetical: bow with num_tiles=736: no such machine was measured"


def test_kinds_that_were_not_looked_at_stay_as_they_are(tmp_path):
    file = tmp_path / "trust.csv"
    first, other = Judged("gemm", "IPU Model", 9, 0.1, 0.25, -0.05), Judged("conv", "IPU Model", 3, 0.5, 1.0, 0.0)
    write([first, other], file)
    write([Judged("conv", "IPU Model", 3, 0.25, 1.0, 0.0)], file, unseen={first.kind, other.kind})
    assert read(file) == {"gemm": first, "conv": Judged("conv", "IPU Model", 3, 0.25, 1.0, 0.0)}
    assert read(tmp_path / "none.csv") == {}
    write([other], file)
    assert read(file) == {"conv": other}, "a kind that the score card has no more, or no row of, is gone"
