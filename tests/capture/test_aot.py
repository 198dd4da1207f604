"""A captured module gives the values, gradients and updates that eager PyTorch gives."""

import contextlib
import copy
import functools
import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchipu
from tests.capture.evaluate import evaluate
from torchipu.capture.aot import capture_inference, capture_joint
from torchipu.errors import CaptureError
from torchipu.ir.types import Leg, Role


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * 9, 5)

    def forward(self, x, y):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        x = self.fc(x.flatten(1))
        return x, F.cross_entropy(x, y)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.mid = nn.Linear(6, 6)
        self.out = nn.Linear(6, 11, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens, targets):
        logits = self.out(torch.tanh(self.mid(self.embed(tokens))))
        return {"loss": F.cross_entropy(logits.flatten(0, 1), targets.flatten()), "logits": logits}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, 3)

    def forward(self, x, y=None):
        logits = self.head(self.encoder(x).mean(1))
        return logits if y is None else (logits, F.cross_entropy(logits, y))


class Views(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        h = self.fc(x)
        return h.t(), (h.view(-1), None, 3), [x, x[0]], h, (h * h).mean()


class Mutating(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x, scale=2.0, *, shift=None):
        h = self.fc(x * scale)
        if shift is not None:
            h = h + shift
        self.seen.add_(h.detach().sum(0))
        return h.pow(2).sum()


def takers(captured):
    """Return the inputs that the tensors of a call go to."""
    return [tensor for tensor in captured.arguments if tensor is not None]


def values_of(captured, module, args, kwargs=None):
    """Evaluate a captured graph on the module's present tensors."""
    given = dict(captured.constants)
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    given.update({tensor: parameters[name] for name, tensor in captured.parameters.items()})
    given.update({tensor: buffers[name] for name, tensor in captured.buffers.items()})
    given.update(zip(takers(captured), captured.flatten(args, kwargs), strict=True))
    return evaluate(captured.graph, given)


def check_training(module, args, kwargs=None, loss_of=lambda out: out[-1]):
    """Capture, run, and compare results, gradients and buffers with eager."""
    captured = capture_joint(module, args, kwargs)
    values = values_of(captured, module, args, kwargs)
    returned = captured.restore([values[tensor] for tensor in captured.graph.outputs])
    next_value = dict(captured.graph.updates)
    buffers = {name: values[next_value[tensor]] for name, tensor in captured.buffers.items() if tensor in next_value}
    expected = module(*copy.deepcopy(args), **(kwargs or {}))
    loss_of(expected).backward()
    torch.testing.assert_close(returned, expected, check_stride=False)
    torch.testing.assert_close(values[captured.loss], loss_of(expected).detach())
    gradients = {name: values[gradient] for name, gradient in captured.gradients.items()}
    torch.testing.assert_close(gradients, {n: p.grad for n, p in module.named_parameters() if p.grad is not None})
    eager_buffers = dict(module.named_buffers())
    torch.testing.assert_close(buffers, {name: eager_buffers[name] for name in buffers})
    return captured


def test_cnn_with_batch_norm():
    captured = check_training(Cnn(), (torch.randn(3, 1, 8, 8), torch.tensor([0, 4, 2])))
    assert {state.name for state, _ in captured.graph.updates} == {
        "norm.running_mean", "norm.running_var", "norm.num_batches_tracked",
    }


def test_tied_weights_are_one_parameter_with_the_summed_gradient():
    tokens = torch.randint(0, 11, (2, 5))
    captured = check_training(Tied(), (tokens, tokens), loss_of=lambda out: out["loss"])
    assert set(captured.gradients) == {"embed.weight", "mid.weight", "mid.bias"}


def test_transformer_encoder_with_dropout_is_captured():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
    captured = capture_inference(nn.TransformerEncoder(layer, 2), (torch.randn(2, 5, 8),))
    assert sum(op.target == "aten.native_dropout.default" for op in captured.graph.ops) >= 6


def test_transformer_encoder_classifier():
    check_training(Classifier(), (torch.randn(2, 5, 8), torch.tensor([0, 2])))


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 16), nn.Dropout(0.4), nn.Linear(16, 16), nn.Dropout(0.2), nn.Linear(16, 3),
        )

    def forward(self, x, y):
        return F.cross_entropy(self.layers(x), y)


def test_dropout_keeps_the_same_elements_in_forward_and_backward():
    module = Dropping()
    args = (torch.randn(2, 8), torch.tensor([0, 2]))
    captured = capture_joint(module, args)
    torch.manual_seed(5)
    values = values_of(captured, module, args)
    torch.manual_seed(5)
    torch.compile(module, backend="aot_eager", fullgraph=True)(*args).backward()
    gradients = {name: values[gradient] for name, gradient in captured.gradients.items()}
    torch.testing.assert_close(gradients, {name: p.grad for name, p in module.named_parameters()})


def test_views_aliases_none_and_numbers_come_back_in_their_structure():
    captured = check_training(Views(), (torch.randn(4, 4),))
    x = torch.randn(4, 4)
    module = Views()
    returned = captured.restore([values_of(captured, module, (x,))[t] for t in captured.graph.outputs])
    assert returned[1][1] is None
    assert returned[1][2] == 3
    assert isinstance(returned[2], list)


def test_keyword_arguments_numbers_and_written_buffers():
    module = Mutating()
    captured = check_training(
        module, (torch.randn(2, 4),), {"scale": 3.0, "shift": torch.ones(4)}, loss_of=lambda out: out,
    )
    assert len(takers(captured)) == 2
    with pytest.raises(CaptureError, match="another structure"):
        captured.flatten((torch.randn(2, 4),))


class Filling(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("last", torch.zeros(2, 4))

    def forward(self, x):
        h = self.fc(x)
        with torch.no_grad():
            torch.mul(h, 2, out=self.last)
        return h.pow(2).sum()


def test_a_buffer_that_is_only_written_is_an_input_of_the_graph():
    captured = check_training(Filling(), (torch.randn(2, 4),), loss_of=lambda out: out)
    assert list(captured.buffers) == ["last"]
    assert captured.buffers["last"] in captured.graph.inputs
    assert [state for state, _ in captured.graph.updates] == [captured.buffers["last"]]


class InPlaceInput(nn.Module):
    def forward(self, x):
        x.mul_(2)
        return x.sum()


def test_a_written_input_is_read_as_written_and_warned_of():
    with pytest.warns(UserWarning, match="writes into its input"):
        captured = capture_inference(InPlaceInput(), (torch.ones(3),))
    assert not captured.graph.updates
    values = evaluate(captured.graph, {takers(captured)[0]: torch.ones(3)})
    assert values[captured.graph.outputs[0]].item() == 6


class Indexing(nn.Module):
    def forward(self, x, rows, columns):
        a = x[:, rows]
        picked = x[rows, columns].view(-1, 1, 1).expand(-1, a.shape[1], 1)[: a.shape[0]]
        b = torch.cat([a, picked.repeat(1, 1, a.shape[2])])
        first, rest = b.split([1, b.shape[0] - 1])
        return first + torch.tensor([1.5]), rest.to(torch.int32), rows * 2, (x > 0).any(), torch.arange(3)


def test_lists_holes_constants_and_integer_inputs():
    args = (torch.randn(3, 4, 5), torch.tensor([0, 2, 1]), torch.tensor([1, 1, 3]))
    captured = capture_inference(Indexing(), args)
    values = values_of(captured, Indexing(), args)
    returned = captured.restore([values[tensor] for tensor in captured.graph.outputs])
    torch.testing.assert_close(returned, Indexing()(*args))
    assert any(operand == "indices[_x]" for op in captured.graph.ops for operand in op.operands)
    assert any(tensor.role is Role.CONSTANT for tensor in captured.graph.inputs)


@pytest.mark.parametrize("module", [Classifier(), nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout())])
def test_inference_in_eval_mode(module):
    x = torch.randn(2, 5, 8) if isinstance(module, Classifier) else torch.randn(2, 1, 5, 5)
    module = module.eval()
    captured = capture_inference(module, (x,))
    values = values_of(captured, module, (x,))
    with torch.no_grad():
        torch.testing.assert_close(captured.restore([values[t] for t in captured.graph.outputs]), module(x))
    assert captured.loss is None
    assert not captured.graph.updates
    assert not captured.gradients
    assert all(op.leg is Leg.FORWARD for op in captured.graph.ops)


def test_frozen_parameters_have_no_gradient():
    module = Cnn()
    module.conv.requires_grad_(False)
    captured = check_training(module, (torch.randn(3, 1, 8, 8), torch.tensor([0, 4, 2])))
    assert "conv.weight" not in captured.gradients
    assert "fc.weight" in captured.gradients


def test_loss_scale_multiplies_every_gradient():
    module, args = Cnn(), (torch.randn(3, 1, 8, 8), torch.tensor([0, 4, 2]))
    plain, scaled = capture_joint(module, args), capture_joint(module, args, loss_scale=8.0)
    one, eight = values_of(plain, module, args), values_of(scaled, module, args)
    for name in plain.gradients:
        torch.testing.assert_close(one[plain.gradients[name]] * 8, eight[scaled.gradients[name]])
    assert torch.equal(one[plain.loss], eight[scaled.loss])


class TwoLosses(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        h = self.fc(x)
        return h.sum(), h, h.pow(2).sum()


def test_two_possible_losses_need_the_loss_argument():
    args = (torch.randn(2, 3),)
    with pytest.raises(CaptureError, match="2 scalars that could be the loss") as caught:
        capture_joint(TwoLosses(), args)
    assert "give loss= one of [0, 2]" in str(caught.value)
    assert "[1] float32[2, 3]" in str(caught.value)
    module = TwoLosses()
    captured = capture_joint(module, args, loss=-1)
    values = values_of(captured, module, args)
    module(*args)[2].backward()
    torch.testing.assert_close(values[captured.gradients["fc.weight"]], module.fc.weight.grad)


def test_a_loss_that_is_no_scalar_is_refused():
    with pytest.raises(CaptureError, match="loss=1 is not a scalar"):
        capture_joint(TwoLosses(), (torch.randn(2, 3),), loss=1)


def test_a_model_without_a_loss_is_refused():
    with pytest.raises(CaptureError, match="returns no scalar that needs a gradient"):
        capture_joint(nn.Linear(3, 3), (torch.randn(2, 3),))


class Branching(nn.Module):
    def forward(self, x):
        if x.sum() > 0:  # the branch
            return x.cos()
        return x.exp()


class DataSized(nn.Module):
    def forward(self, x):
        return x[x > 0].sum()


class Raising(nn.Module):
    def forward(self, x):
        return x @ torch.ones(7, 7)


@pytest.mark.parametrize(("module", "line"), [
    (Branching(), "if x.sum() > 0:"), (DataSized(), "x[x > 0]"), (Raising(), "x @ torch.ones(7, 7)"),
])
def test_what_cannot_be_captured_names_the_line_and_keeps_the_reason(module, line):
    with pytest.raises(CaptureError) as caught:
        capture_inference(module, (torch.ones(3),))
    assert line in str(caught.value)
    assert "test_aot.py" in str(caught.value)
    assert caught.value.__cause__ is not None


class Complex(nn.Module):
    def forward(self, x):
        return torch.fft.fft(x).abs()


def test_ops_on_parts_of_complex_numbers_name_the_line_and_the_module():
    graph = capture_inference(nn.Sequential(nn.Linear(4, 4), Complex()), (torch.ones(2, 4),)).graph
    transforms = [op for op in graph.ops if "torch.fft.fft(x)" in op.source.code]
    assert transforms
    assert {op.source.module for op in transforms} == {"1"}
    assert {op.source.module for op in graph.ops} == {"0", "1"}


def test_sources_name_the_users_line_and_the_module():
    graph = capture_joint(Cnn(), (torch.randn(3, 1, 8, 8), torch.tensor([0, 4, 2]))).graph
    assert [op.target for op in graph.ops if "test_aot.py" not in op.source.file] == []
    convolution = next(op for op in graph.ops if op.target == "aten.convolution.default")
    assert "self.norm(self.conv(x))" in convolution.source.code
    assert convolution.source.module == "conv"
    backward = next(op for op in graph.ops if op.target == "aten.convolution_backward.default")
    assert backward.source.module == "conv"
    assert backward.leg is Leg.BACKWARD


def state_of(module):
    return (
        copy.deepcopy(module.state_dict()), {n: p.grad for n, p in module.named_parameters()},
        [m.training for m in module.modules()], torch.get_rng_state(),
        [(n, id(p)) for n, p in module.named_parameters()],
    )


@pytest.mark.parametrize("failing", [False, True])
def test_capture_leaves_the_module_as_it_was(failing):
    last = Branching() if failing else nn.Flatten()
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(), last)
    x = torch.randn(2, 1, 5, 5)
    before = state_of(module)
    with contextlib.suppress(CaptureError):
        capture_inference(module, (x,))
    after = state_of(module)
    torch.testing.assert_close(before[0], after[0], rtol=0, atol=0)
    assert before[1:3] == after[1:3]
    assert torch.equal(before[3], after[3])
    assert before[4] == after[4]
    with contextlib.suppress(CaptureError):
        capture_joint(module, (x,))
    torch.testing.assert_close(before[0], module.state_dict(), rtol=0, atol=0)


def test_two_batch_sizes_are_both_captured_with_fixed_sizes():
    module = Classifier()
    for batch in (2, 3, 4):
        captured = capture_inference(module.eval(), (torch.randn(batch, 5, 8),))
        assert captured.graph.outputs[0].shape == (batch, 3)


# ---------------------------------------------------------------------- what capture leaves behind
class SharedUnderTwoNames(nn.Module):
    """A layer that is a member of two others, and a parameter that two layers have."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.BatchNorm1d(4)
        self.first, self.second = nn.Sequential(nn.Linear(4, 4), layer), nn.Sequential(layer, nn.Linear(4, 4))
        self.second[1].weight = self.first[0].weight

    def forward(self, x):
        return self.second(self.first(x)).square().mean()


@pytest.mark.parametrize("door", ["inference", "training"])
def test_the_tensors_of_a_module_with_two_names_are_its_own_afterwards(door):
    torch.manual_seed(0)
    model = SharedUnderTwoNames().eval()
    before = {name: (tensor, tensor.detach().clone()) for name, tensor in model.state_dict(keep_vars=True).items()}
    x = torch.randn(3, 4)
    if door == "inference":
        torch.testing.assert_close(torchipu.InferenceStep(model)(x), model(x))
    else:
        torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.0))(x)
    after = model.state_dict(keep_vars=True)
    assert after.keys() == before.keys()
    for name, (tensor, value) in before.items():
        assert after[name] is tensor
        torch.testing.assert_close(after[name].detach(), value)


LOGGER = logging.getLogger(__name__)


class Talkative(nn.Module):
    def forward(self, x):
        LOGGER.warning("a batch of %d", len(x))
        LOGGER.warning_once("once")
        return x * 2


def test_what_a_model_logs_is_no_part_of_its_graph(monkeypatch):
    once = functools.lru_cache(None)(lambda self, *args: self.warning(*args))
    monkeypatch.setattr(logging.Logger, "warning_once", once, raising=False)
    x = torch.ones(2)
    assert torchipu.InferenceStep(Talkative())(x).equal(x * 2)
