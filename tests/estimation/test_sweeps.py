"""``torchipu.sweep``: all combinations, best first, and what it says of those that cannot be."""

from __future__ import annotations

import csv

import pytest
import torch

import torchipu
from tests.estimation.small import Tower, tokens
from torchipu import Options, OptionsError
from torchipu.capture import aot


def model():
    with torch.device("meta"):
        return Tower()


def sweep(over, **options):
    return torchipu.sweep(model(), (tokens(), tokens()), over, Options(target="bow-pod16", **options))


def test_rows_that_fit_come_first_by_their_rate_and_those_refused_last():
    found = sweep({"replicas": (1, 32, 4), "gradient_accumulation": (1, 8)})
    assert [row.settings["replicas"] for row in found.rows] == [4, 4, 1, 1, 32, 32]
    rates = [row.estimate.samples_per_second for row in found.rows[:4]]
    assert rates == sorted(rates, reverse=True)
    assert found.best is found.rows[0]
    assert found.rows[-1].refusal == "32 replicas of the model need 32 IPUs at least, but bow-pod16 has 16"


def test_a_model_is_captured_once(monkeypatch):
    calls = []
    export = aot.export
    monkeypatch.setattr(aot, "export", lambda *args, **kwargs: calls.append(1) or export(*args, **kwargs))
    sweep({"target": ("mk2", "bow"), "gradient_accumulation": (1, 2, 4)})
    assert len(calls) == 1


def test_machines_that_do_not_exist_are_swept_over_and_marked():
    half = torchipu.lookup_target("bow").replaced(exchange_bytes_per_cycle=2)
    found = sweep({"target": ("bow", half, "bow,exchange_bytes_per_cycle=16")})
    assert [row.settings["target"] for row in found.rows] == ["bow,exchange_bytes_per_cycle=16", "bow", half]
    assert any("no such machine was measured" in words for words in found.rows[0].estimate.trust.extrapolations)


def test_a_micro_batch_may_have_other_sizes():
    found = sweep({"micro_batch": (1, 4)})
    sizes = [row.estimate.profile.micro_batch_size for row in found.rows]
    assert (sizes, found.rows[0].settings) == ([4, 1], {"micro_batch": 4})


def test_one_share_of_memory_holds_for_all_ipus():
    found = sweep({"available_memory": (0.6, 2)})
    assert found.rows[0].estimate.options.available_memory == dict.fromkeys(range(16), 0.6)
    assert "above 0 and at most 1" in found.rows[1].refusal


def test_what_does_not_fit_stands_below_what_does():
    found = sweep({"target": ("bow,tile_memory_bytes=8192,code_region_bytes=4096,stack_bytes=1024", "bow")})
    assert [row.estimate.fits for row in found.rows] == [True, False]
    assert "does not fit" in str(found)


def test_a_table_says_how_far_nine_of_ten_rates_lie():
    found = sweep({"target": ("bow", "bow,tile_memory_bytes=319488,code_region_bytes=131072")})
    p90 = found.rows[0].estimate.trust.rate.p90
    assert "p90" in str(found)
    assert str(found).count(f" {p90:.0%} ") == 1
    assert str(found).count(f" {p90:.0%}* ") == 1


def test_a_table_says_what_is_extrapolated_and_how_far_to_trust_bytes(tmp_path):
    (tmp_path / "twice.toml").write_text('base = "bow"\nexchange_bytes_per_cycle = 8\n')
    found = sweep({"target": ("bow", str(tmp_path / "twice.toml"))})
    memory, words = found.rows[0].estimate.trust.memory, "hypothetical: bow with exchange_bytes_per_cycle=8"
    assert f"fullest tile: off by {memory.median:.1%} in the median of {memory.rows} rows" in str(found)
    assert f"* extrapolated: {words}: no such machine was measured" in str(found)
    by_target = {row["target"]: row for row in csv.DictReader(found.csv().splitlines())}
    assert by_target["bow"]["extrapolated"] == ""
    assert words in by_target[str(tmp_path / "twice.toml")]["extrapolated"]
    assert float(by_target["bow"]["memory_p90"]) == pytest.approx(memory.p90, rel=1e-3)


def test_a_table_says_what_share_of_cycles_is_a_guess():
    class Factored(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.cholesky(x)

    found = torchipu.sweep(Factored().eval(), torch.zeros(4, 64, 64), {"target": ("bow",)})
    (row,) = csv.DictReader(found.csv().splitlines())
    share = found.rows[0].estimate.trust.generic_share
    assert float(row["generic_share"]) == pytest.approx(share, abs=1e-3)
    assert share > 0.5
    assert f"generic: ops without a record are up to {share:.0%} of a row's cycles" in str(found)


def test_csv_has_a_line_for_each_row(tmp_path):
    found = sweep({"replicas": (2, 64)})
    found.write_csv(tmp_path / "rows.csv")
    rows = list(csv.DictReader((tmp_path / "rows.csv").open()))
    assert [(row["replicas"], row["fits"]) for row in rows] == [("2", "True"), ("64", "")]
    assert float(rows[0]["samples_per_second"]) == pytest.approx(found.rows[0].estimate.samples_per_second, rel=1e-4)
    assert rows[1]["refused"].startswith("64 replicas of the model need")


@pytest.mark.parametrize(("over", "words"), [
    ({"replica": (1,)}, "unknown option 'replica'; did you mean 'replicas'"),
    ({"replicas": 4}, "a sweep over replicas expects values in a list, got 4"),
    ({"target": "bow"}, "a sweep over target expects values in a list"),
    ({"replicas": ()}, "a sweep over replicas expects values in a list"),
])
def test_what_cannot_be_swept_over_is_refused(over, words):
    with pytest.raises(OptionsError, match=words):
        sweep(over)
