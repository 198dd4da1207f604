"""Facts of exported programs, and of packages that are refused in words."""

from __future__ import annotations

import zipfile

import pytest
import torch
from torch.compiler._cache import CacheArtifactManager

import torchipu
from torchipu.backend import COUNTS


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 3)
        self.register_buffer("shift", torch.arange(3.0))

    def forward(self, x, scale):
        return torch.relu(self.linear(x)) * scale + self.shift


INPUTS = (torch.randn(4, 8), torch.randn(3))


def test_an_exported_program_runs_from_memory_and_from_a_file(tmp_path):
    model = Model().eval()
    exported = torch.export.export(model, INPUTS)
    torch.export.save(exported, tmp_path / "model.pt2")
    for program in (exported, tmp_path / "model.pt2", str(tmp_path / "model.pt2")):
        step = torchipu.compile(program)
        torch.testing.assert_close(step(*INPUTS).detach(), model(*INPUTS).detach())


def test_sizes_of_a_static_export_are_those_of_every_call():
    step = torchipu.compile(torch.export.export(Model(), INPUTS), torchipu.Options(device_iterations=2))
    scale = INPUTS[1].repeat(2)
    assert step(torch.randn(8, 8), scale).shape == (8, 3)
    with pytest.raises(torchipu.CaptureError, match=r"x\.size\(\)\[0\] == 4, got \[5, 8\], \[3\] in one") as refusal:
        step(torch.randn(10, 8), scale)
    assert "dynamic_shapes" in str(refusal.value)
    assert step(torch.randn(8, 8), scale).shape == (8, 3)


def test_sizes_that_an_export_lets_change_do_so_within_its_bounds():
    batch = torch.export.Dim("batch", max=6)
    step = torchipu.compile(torch.export.export(Model(), INPUTS, dynamic_shapes=({0: batch}, None)))
    for size in (4, 2, 6):
        assert step(torch.randn(size, 8), INPUTS[1]).shape == (size, 3)
    with pytest.raises(torchipu.CaptureError, match=r"size\(\)\[0\] <= 6, got \[7, 8\]"):
        step(torch.randn(7, 8), INPUTS[1])


def test_other_inputs_than_the_exported_ones_are_told():
    step = torchipu.compile(torch.export.export(Model(), (INPUTS[0],), {"scale": INPUTS[1]}))
    assert step(INPUTS[0], scale=INPUTS[1]).shape == (4, 3)
    with pytest.raises(torchipu.CaptureError, match="expected 1 by place and scale, got 1 by place"):
        step(INPUTS[0])


def test_an_aot_package_is_refused_with_what_to_save_instead(tmp_path):
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data/aotinductor/model/x.wrapper.so", b"code")
    with pytest.raises(torchipu.CaptureError, match="is an AOT package: it holds machine code") as refusal:
        torchipu.compile(path)
    assert "torch.export.save" in str(refusal.value)


@pytest.mark.parametrize("data", [b"", b"no archive"])
def test_a_damaged_file_is_told(tmp_path, data):
    (tmp_path / "model.pt2").write_bytes(data)
    with pytest.raises(torchipu.CaptureError, match="is no exported program, or is damaged"):
        torchipu.compile(tmp_path / "model.pt2")


def test_an_archive_of_something_else_is_told(tmp_path):
    with zipfile.ZipFile(tmp_path / "model.pt2", "w") as archive:
        archive.writestr("a.txt", "a")
    with pytest.raises(torchipu.CaptureError, match="is no exported program, or is damaged"):
        torchipu.compile(tmp_path / "model.pt2")


def test_an_absent_file_and_a_module_are_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no exported program"):
        torchipu.compile(tmp_path / "none.pt2")
    with pytest.raises(torchipu.CaptureError, match="takes an exported program, got Model"):
        torchipu.compile(Model())


def test_cache_artifacts_of_torch_hold_no_program_and_programs_are_compiled_again():
    torch._dynamo.reset()
    model, x = Model(), INPUTS
    compiled = torch.compile(model, backend="ipu")
    with CacheArtifactManager.with_fresh_cache():  # without what other tests had Inductor compile
        expected = compiled(*x)
        assert torch.compiler.save_cache_artifacts() is None
    torch._dynamo.reset()
    before = COUNTS.programs
    torch.testing.assert_close(compiled(*x), expected, rtol=0, atol=0)
    assert COUNTS.programs == before + 1
