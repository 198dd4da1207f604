"""Facts of ONNX models as modules, judged by onnx's own evaluator, and of what is refused in words."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
if find_spec("onnx2pytorch") is None:
    pytest.skip("the extra onnx is not installed", allow_module_level=True)

import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import torchipu
from torchipu.cli import main

FLOAT = TensorProto.FLOAT
RANDOM = np.random.default_rng(3)


def weight(name, *shape):
    return numpy_helper.from_array(RANDOM.standard_normal(shape).astype(np.float32), name)


def numbers(name, *values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


def scalar(name, value):
    return numpy_helper.from_array(np.array(value, np.int64), name)


def model_of(nodes, weights=(), shape=("batch", 4), kind=FLOAT, opset=18, name="x"):
    graph = helper.make_graph(
        nodes, "small", [helper.make_tensor_value_info(name, kind, shape)],
        [helper.make_tensor_value_info("y", FLOAT, [])], list(weights),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def saved(tmp_path, model, **options):
    onnx.save(model, tmp_path / "m.onnx", **options)
    return str(tmp_path / "m.onnx")


def node(kind, *inputs, y="y", **attributes):
    return helper.make_node(kind, list(inputs), [y], **attributes)


PERCEPTRON = model_of(
    [node("MatMul", "x", "w", y="a"), node("Add", "a", "b", y="c"), node("Relu", "c")],
    [weight("w", 4, 3), weight("b", 3)],
)
# A head of attention that computes the sizes of its reshapes from its input, as exporters write it.
BY_SHAPE = model_of(
    [
        node("Shape", "x", y="s"), node("Gather", "s", "zero", y="n"), node("Unsqueeze", "n", "zeros", y="u"),
        node("Concat", "u", "rest", y="t", axis=0), node("Reshape", "x", "t", y="r"),
        node("Transpose", "r", y="q", perm=[0, 2, 1]), node("MatMul", "r", "q", y="m"), node("Softmax", "m", axis=-1),
    ],
    [numpy_helper.from_array(np.array(0, np.int64), "zero"), numbers("zeros", 0), numbers("rest", 2, 2)],
)
IMAGES = ("batch", 3, 8, 8)
CONVOLUTIONS = model_of(
    [
        node("Conv", "x", "w", "b", y="a", pads=[1, 1, 1, 1]),
        node("MaxPool", "a", y="p", kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", "p", y="g"), node("Flatten", "g", y="f"), node("Gemm", "f", "v", "c", transB=1),
    ],
    [weight("w", 5, 3, 3, 3), weight("b", 5), weight("v", 2, 5), weight("c", 2)], shape=IMAGES,
)
CASES = {
    "perceptron": (PERCEPTRON, (3, 4)),
    "sizes computed from the input": (BY_SHAPE, (3, 4)),
    "convolutions": (CONVOLUTIONS, (2, 3, 8, 8)),
    "slice backwards": (model_of(
        [node("Slice", "x", "a", "b", "c", "d")],
        [numbers("a", -1), numbers("b", -100), numbers("c", 1), numbers("d", -2)],
    ), (3, 4)),
    "pad of an axis": (model_of([node("Pad", "x", "p", "", "a")], [numbers("p", 1, 2), numbers("a", 1)]), (3, 4)),
    "pad by edges": (model_of([node("Pad", "x", "p", mode="edge")], [numbers("p", 0, 1, 0, 2)]), (3, 4)),
    "mean": (model_of([node("ReduceMean", "x", "a", keepdims=0)], [numbers("a", -1)]), (3, 4)),
    "product": (model_of([node("ReduceProd", "x", "a")], [numbers("a", 0, 1)]), (3, 4)),
    "sums before": (model_of([node("CumSum", "x", "a", exclusive=1, reverse=1)],
                              [numpy_helper.from_array(np.array(1, np.int64), "a")]), (3, 4)),
    "quotients": (model_of([node("Div", "x", "w")], [weight("w", 4)]), (3, 4)),
    "quotients of whole numbers": (model_of([
        node("Mul", "x", "f", y="m"), node("Cast", "m", y="i", to=TensorProto.INT64), node("Div", "i", "d", y="q"),
        node("Cast", "q", to=FLOAT),
    ], [numbers("d", -3), numpy_helper.from_array(np.array(50, np.float32), "f")]), (3, 4)),
    "a triangle": (model_of([node("Trilu", "x", "k", upper=0)], [scalar("k", -1)]), (3, 4)),
    "one hot": (model_of(
        [node("ArgMax", "x", y="a", axis=1, keepdims=0), node("OneHot", "a", "d", "v", axis=0)],
        [scalar("d", 5), numpy_helper.from_array(np.array([-1, 2], np.float32), "v")],
    ), (3, 4)),
    "folded columns": (model_of([node("Col2Im", "x", "i", "b")], [numbers("i", 5, 5), numbers("b", 2, 2)],
                                shape=("batch", 8, 16)), (2, 8, 16)),
    "cropped": (model_of([node("CenterCropPad", "x", "s")], [numbers("s", 2, 7)]), (3, 4)),
    "frequencies": (model_of([node("DFT", "x", "", "a", onesided=1)], [scalar("a", 1)],
                             shape=("batch", 6, 1), opset=20), (2, 6, 1)),
    "reversed sequences": (model_of([node("ReverseSequence", "x", "n", batch_axis=0, time_axis=1)],
                                    [numbers("n", 1, 4, 3)]), (3, 4)),
    "choices": (model_of([node("Greater", "x", "w", y="c"), node("Where", "c", "x", "w")], [weight("w", 4)]), (3, 4)),
    "expand": (model_of([node("Expand", "x", "s")], [numbers("s", 2, 1, 1)]), (3, 4)),
    "tile": (model_of([node("Tile", "x", "s")], [numbers("s", 2, 3)]), (3, 4)),
    "squeeze": (model_of([node("Unsqueeze", "x", "a", y="u"), node("Squeeze", "u", "b")],
                         [numbers("a", 0, 3), numbers("b", 3)]), (3, 4)),
    "upsample": (model_of(
        [node("Resize", "x", "", "s", coordinate_transformation_mode="asymmetric", nearest_mode="floor")],
        [numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "s")], shape=IMAGES,
    ), (2, 3, 8, 8)),
    "gather of negative indices": (model_of([node("Gather", "x", "i", axis=1)], [numbers("i", -1, 0)]), (3, 4)),
    "lstm from states of zeros": (model_of(
        [helper.make_node("LSTM", ["x", "w", "r", "b", "", "h", "c"], ["y"], hidden_size=5)],
        [weight("w", 1, 20, 4), weight("r", 1, 20, 5), weight("b", 1, 40),
         numpy_helper.from_array(np.zeros((1, 2, 5), np.float32), "h"),
         numpy_helper.from_array(np.zeros((1, 2, 5), np.float32), "c")], shape=(3, 2, 4),
    ), (3, 2, 4)),
}


@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_onnx_own_evaluator(tmp_path, case):
    model, shape = CASES[case]
    x = RANDOM.standard_normal(shape).astype(np.float32)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    first = model.graph.input[0].type.tensor_type.shape.dim[0]
    sizes = {"batch": shape[0]} if first.dim_param else {}
    module = torchipu.from_onnx(saved(tmp_path, model), sizes)
    found = torchipu.InferenceStep(module)(torch.from_numpy(x))
    torch.testing.assert_close(found.detach(), torch.from_numpy(np.array(expected)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [17, 18, "length"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("mode", "first"), [("SAME_UPPER", False), ("SAME_LOWER", True)])
def test_convolutions_padded_to_the_same_size_are_dilated(tmp_path, mode, first, stride, size):
    model = model_of(
        [node("Conv", "x", "w", auto_pad=mode, dilations=[3], strides=[stride], kernel_shape=[4])],
        [weight("w", 3, 2, 4)], shape=(2, 2, size),
    )
    length = 17 if size == "length" else size
    x = torch.from_numpy(RANDOM.standard_normal((2, 2, length)).astype(np.float32))
    total = (-(-length // stride) - 1) * stride + 10 - length
    less, more = total // 2, total - total // 2
    padded = torch.nn.functional.pad(x.double(), (more, less) if first else (less, more))
    kernel = torch.from_numpy(numpy_helper.to_array(model.graph.initializer[0]).copy()).double()
    expected = torch.nn.functional.conv1d(padded, kernel, stride=stride, dilation=3)
    found = torchipu.from_onnx(saved(tmp_path, model), {"length": 17} if size == "length" else {})
    torch.testing.assert_close(found(x).double(), expected, rtol=1e-5, atol=1e-5)


def test_weights_of_the_file_are_trained(tmp_path):
    module = torchipu.from_onnx(saved(tmp_path, PERCEPTRON))
    before = [parameter.detach().clone() for parameter in module.parameters()]
    assert sorted(each.numel() for each in before) == [3, 12]  # the converter joins the product and the sum

    class WithLoss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = module

        def forward(self, x):
            return self.network(x).square().mean()

    with_loss = WithLoss()
    torchipu.TrainStep(with_loss, torch.optim.SGD(with_loss.parameters(), lr=0.1))(torch.ones(2, 4))
    assert not any(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


def test_operators_that_cannot_be_converted_are_all_named(tmp_path):
    strange = model_of([
        helper.make_node("Gelu", ["x"], ["a"], domain="com.example"),
        helper.make_node("Magic", ["a"], ["y"], domain="com.example"),
    ])
    strange.opset_import.append(helper.make_opsetid("com.example", 1))
    words = r"cannot be converted: com\.example\.Gelu, com\.example\.Magic"
    with pytest.raises(torchipu.UnsupportedOpError, match=words):
        torchipu.from_onnx(saved(tmp_path, strange))


def test_operators_of_no_standard_are_all_named(tmp_path):
    strange = model_of([node("Conjure", "x", y="a"), node("Vanish", "a", y="b"), node("Relu", "b")])
    with pytest.raises(torchipu.UnsupportedOpError, match="has not in version 18: Conjure, Vanish"):
        torchipu.from_onnx(saved(tmp_path, strange))


def test_damaged_empty_and_absent_files_are_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no ONNX model"):
        torchipu.from_onnx(tmp_path / "none.onnx")
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(torchipu.OnnxError, match="has 0 bytes, and an ONNX model has 1 to"):
        torchipu.from_onnx(tmp_path / "empty.onnx")
    cut = PERCEPTRON.SerializeToString()[:60]
    for name, data in {"noise": b"\xff" * 100, "text": b"hello, this is no model", "cut": cut}.items():
        (tmp_path / f"{name}.onnx").write_bytes(data)
        with pytest.raises(torchipu.OnnxError, match=r"is no ONNX model, or is damaged|is not valid"):
            torchipu.from_onnx(tmp_path / f"{name}.onnx")


def test_weights_in_other_files_are_read_and_missed(tmp_path):
    model = onnx.ModelProto.FromString(PERCEPTRON.SerializeToString())
    path = saved(tmp_path, model, save_as_external_data=True, location="weights.bin", size_threshold=0)
    x = np.ones((2, 4), np.float32)
    (expected,) = ReferenceEvaluator(PERCEPTRON).run(None, {"x": x})
    torch.testing.assert_close(torchipu.from_onnx(path)(torch.from_numpy(x)).detach(), torch.from_numpy(expected))
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(torchipu.OnnxError, match=r"is not valid: .*weights\.bin"):
        torchipu.from_onnx(path)


def test_weights_outside_the_folder_are_not_read(tmp_path):
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    folder = tmp_path / "model"
    folder.mkdir()
    model = onnx.ModelProto.FromString(PERCEPTRON.SerializeToString())
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret.bin")
    with open(folder / "m.onnx", "wb") as file:
        file.write(model.SerializeToString())
    with pytest.raises(torchipu.OnnxError, match="is not valid"):
        torchipu.from_onnx(folder / "m.onnx")


def test_a_constant_larger_than_can_be_meant_is_refused(tmp_path):
    huge = model_of([node("ConstantOfShape", "s", y="c"), node("Add", "x", "c")], [numbers("s", 1 << 40)])
    with pytest.raises(torchipu.OnnxError, match=r"larger than can be meant|do not go together"):
        torchipu.from_onnx(saved(tmp_path, huge))


def test_sizes_have_names(tmp_path):
    with pytest.raises(torchipu.CaptureError, match=r"the model has no size 'bacth' to set: it has batch"):
        torchipu.from_onnx(saved(tmp_path, PERCEPTRON), {"bacth": 2})


# ---------------------------------------------------------------------- the command
def test_run_prints_outputs_and_cycles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, x = saved(tmp_path, PERCEPTRON), np.ones((2, 4), np.float32)
    np.save(tmp_path / "x.npy", x)
    assert main(["run", path, "--input", f"x={tmp_path / 'x.npy'}", "--output", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "y: float32 [2, 3], from " in printed
    assert "cycles" in printed
    (expected,) = ReferenceEvaluator(PERCEPTRON).run(None, {"x": x})
    np.testing.assert_allclose(np.load(tmp_path / "out" / "y.npy"), expected, rtol=1e-5)


def test_run_asks_for_a_size_that_is_left_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", saved(tmp_path, PERCEPTRON)]) == 2
    told = capsys.readouterr().err
    assert "input x has the shape [batch, 4], which leaves a size open" in told
    assert "add --size batch=NUMBER or --input x=FILE.npy" in told
    assert main(["run", saved(tmp_path, PERCEPTRON), "--size", "batch=5"]) == 0


@pytest.mark.parametrize(("array", "words"), [
    (np.ones((2, 5), np.float32), "input x has the shape [batch, 4], and its file has [2, 5]"),
    (np.ones((2, 4)), "input x has the type float32, and its file has float64"),
    (np.array([{}], dtype=object), "is no array of numbers"),
])
def test_run_refuses_an_array_that_does_not_fit(tmp_path, capsys, array, words):
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    assert main(["run", saved(tmp_path, PERCEPTRON), "--input", f"x={tmp_path / 'x.npy'}"]) == 2
    assert words in capsys.readouterr().err


def test_estimate_and_report_take_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, PERCEPTRON)
    assert main(["estimate", path, "--size", "batch=2", "--target", "bow"]) == 0
    assert "cycles" in capsys.readouterr().out
    assert main(["estimate", path, "--size", "batch=2", "--target", "bow", "--target", "mk2"]) == 0
    assert "mk2" in capsys.readouterr().out
    assert main(["report", "--what-if", "0", "--size", "batch=2", "--output", str(tmp_path / "out"), path]) == 0
    assert (tmp_path / "out" / "1-inference" / "report.html").is_file()
