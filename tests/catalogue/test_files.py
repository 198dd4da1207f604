"""Files: cut, changed, foreign, newer, and places where none can be written."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import zipfile

import poptorch
import pytest
import torch

from tests.catalogue.unharmed import unharmed
from torchipu.poptorch.stored import executable
from torchipu.stored import tensor_file


class Net(torch.nn.Module):
    def __init__(self, features=3):
        super().__init__()
        self.linear = torch.nn.Linear(2, features)

    def forward(self, x):
        return self.linear(x).tanh()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """An executable, and the executor that wrote it."""
    path = tmp_path_factory.mktemp("saved") / "net.poptorch"
    run = poptorch.inferenceModel(Net())
    run(torch.ones(1, 2))
    run.save(path)
    return path, run


@pytest.mark.case(74)
def test_a_file_cut_anywhere_or_with_any_byte_changed(saved, tmp_path, told):
    path, run = saved
    data, broken = path.read_bytes(), tmp_path / "broken.poptorch"
    words = set()
    for place in range(len(data)):
        for content in (data[:place], data[:place] + bytes([data[place] ^ (1 << place % 8)]) + data[place + 1:]):
            broken.write_bytes(content)
            with pytest.raises(ValueError, match=r"^(it|its) ") as caught:
                tensor_file.read(broken)
            words.add(str(caught.value).partition(":")[0])
    assert {"it is cut short", "its checksum is wrong"} <= words
    with pytest.raises(AssertionError) as caught:
        poptorch.load(broken)
    told(caught.value, "Invalid file", "broken.poptorch")
    broken.write_bytes(data)
    assert torch.equal(poptorch.load(broken)(torch.ones(1, 2)), run(torch.ones(1, 2)))


def rewritten(path, place, **texts):
    tensors, before = tensor_file.read(path)
    tensor_file.write(place, tensors, {**before, **texts})
    return place


@pytest.mark.case(75)
@pytest.mark.parametrize(("texts", "words"), [
    ({"version": "9.9.0"}, ("9.9.0", executable.VERSION)),
    ({"layout": "99"}, ("layout 99", f"layout {executable.LAYOUT}")),
])
def test_a_newer_file(saved, tmp_path, told, texts, words):
    newer = rewritten(saved[0], tmp_path / "newer.poptorch", **texts)
    newer.write_bytes(newer.read_bytes()[:-3])  # what follows the header is not looked at
    with pytest.raises(AssertionError) as caught:
        poptorch.load(newer)
    told(caught.value, "PopTorch version mismatch", *words)


@pytest.mark.case(76)
def test_an_older_file(saved, tmp_path, told):
    older = rewritten(saved[0], tmp_path / "older.poptorch", version="2.6.0")
    with pytest.raises(AssertionError) as caught:
        poptorch.load(older)
    told(caught.value, "created with version 2.6.0", executable.VERSION)


@pytest.mark.case(77)
def test_an_executable_of_another_wrapper(saved, told):
    model = Net()
    run = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), 0.1))
    with unharmed(model), pytest.raises(poptorch.Error) as caught:
        run.loadExecutable(saved[0])
    told(caught.value, "it was written by another kind of wrapper")


class Executed:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


def hostile_files(folder, trace):
    """Yield files that are no executables, by what they are."""
    pickled = pickle.dumps(Executed(trace))
    yield "a pickle", pickled
    buffer = io.BytesIO()
    torch.save({"model": Executed(trace)}, buffer)
    yield "a checkpoint of torch", buffer.getvalue()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../../evil", pickled)
    yield "an archive", buffer.getvalue()
    yield "compressed", gzip.compress(b"\0" * 10**7)
    yield "empty", b""
    yield "a length of 2^63", (2**63).to_bytes(8, "little") + b"{}"
    for name, header in {
        "deep": b"[" * 10**5, "no object": b"[1, 2]", "no texts": b'{"a": {}}',
        "numbers": b'{"__metadata__": {"a": NaN}}',
        "no sizes": b'{"__metadata__": {}, "a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}',
        "another type": b'{"__metadata__": {}, "a": {"dtype": "X", "shape": [1], "data_offsets": [0, 4]}}',
        "overlapping": b'{"__metadata__": {}, "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, '
                       b'"b": {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]}}',
        "beyond": b'{"__metadata__": {}, "a": {"dtype": "F32", "shape": [4611686018427387904], '
                  b'"data_offsets": [0, 18446744073709551616]}}',
    }.items():
        yield name, len(header).to_bytes(8, "little") + header + b"\0" * 8


@pytest.mark.case(78)
def test_files_that_are_none(tmp_path, told):
    trace = tmp_path / "executed"
    path = tmp_path / "hostile.poptorch"
    for name, content in hostile_files(tmp_path, trace):
        path.write_bytes(content)
        with pytest.raises(AssertionError, match="Invalid file") as caught:
            poptorch.load(path)
        assert not trace.exists(), name
    told(caught.value, "hostile.poptorch")


@pytest.mark.case(78)
def test_places_that_are_no_files(tmp_path, told):
    pipe, sparse = tmp_path / "pipe", tmp_path / "sparse"
    os.mkfifo(pipe)
    with sparse.open("wb") as file:
        file.truncate(1 << 40)
    for place, words in ((pipe, "a pipe"), (sparse, "no header"), ("/dev/zero", "a device"), (tmp_path, "No such")):
        with pytest.raises(AssertionError, match="Invalid file") as caught:
            poptorch.load(place)
        told(caught.value, words)


@pytest.mark.case(79)
def test_an_executable_without_its_model(tmp_path, told):
    model = Net()
    run = poptorch.inferenceModel(model)
    run(torch.ones(1, 2))
    run.save(tmp_path / "bare.poptorch", export_model=False)
    with pytest.raises(AssertionError) as caught:
        poptorch.load(tmp_path / "bare.poptorch")
    told(caught.value, "loadExecutable")
    other = poptorch.inferenceModel(model)
    other.loadExecutable(tmp_path / "bare.poptorch")
    assert torch.equal(other(torch.ones(1, 2)), run(torch.ones(1, 2)))


@pytest.mark.case(80)
def test_weights_that_do_not_fit(saved, told):
    model = Net(features=5)
    run = poptorch.inferenceModel(model)
    with unharmed(model), pytest.raises(poptorch.Error) as caught:
        run.loadExecutable(saved[0])
    told(caught.value, "linear", "[3", "[5")


@pytest.mark.case(81)
def test_a_full_disk(saved, tmp_path, told, monkeypatch):
    run = saved[1]
    place = tmp_path / "kept.poptorch"
    run.save(place)
    before = place.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left on device") as caught:
            run.save(place)
    told(caught.value, "kept.poptorch")
    assert place.read_bytes() == before
    assert os.listdir(tmp_path) == ["kept.poptorch"]
    run.save(place)
    assert json.loads(tensor_file.read_texts(place)["description"])["has_model"]


def cached(folder):
    options = poptorch.Options()
    options.enableExecutableCaching(str(folder))
    return options


@pytest.mark.case(87)
def test_versions_with_one_cache(tmp_path, monkeypatch):
    for version in ("0.1.0", "0.2.0", "0.1.0"):
        monkeypatch.setattr("torchipu.poptorch.stored.cache.__version__", version)
        assert poptorch.inferenceModel(torch.nn.ReLU(), cached(tmp_path))(-torch.ones(2)).tolist() == [0, 0]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.case(88)
def test_an_entry_that_goes_while_it_is_read(tmp_path, told, capsys, monkeypatch):
    run = poptorch.inferenceModel(torch.nn.ReLU(), cached(tmp_path))
    assert run(-torch.ones(2)).tolist() == [0, 0]
    read = tensor_file.read

    def too_late(path):
        path.unlink()
        return read(path)

    monkeypatch.setattr(tensor_file, "read", too_late)
    assert poptorch.inferenceModel(torch.nn.ReLU(), cached(tmp_path))(-torch.ones(2)).tolist() == [0, 0]
    told(capsys.readouterr().err, "of the executable cache is not used", "No such file")
    assert len(list(tmp_path.iterdir())) == 1
