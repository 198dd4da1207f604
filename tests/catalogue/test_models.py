"""Models and operators: what no program can hold, what changes after the first call, and what fails inside."""

from __future__ import annotations

from pathlib import Path

import poptorch
import pytest
import torch
import torch.nn.functional as F

from tests.catalogue.unharmed import unharmed
from torchipu import InferenceStep, Options, TrainStep
from torchipu.backend import COUNTS
from torchipu.errors import CaptureError, InternalError, IpuError, UnsupportedOpError


def compiled(function, fullgraph=False, **options):
    return torch.compile(function, backend="ipu", fullgraph=fullgraph, options=options or None)


def raised(call, *args):
    """Call what must fail, and return the error of ours that torch may have wrapped."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - torch's own class around ours
        call(*args)
    return getattr(caught.value, "inner_exception", None) or caught.value


class Lacking(torch.nn.Module):
    """Two operators without a record of their own, on lines of their own."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        turned = torch.linalg.qr(self.linear(x))[0]
        return turned + torch.linalg.matrix_exp(x)


@pytest.mark.case(20)
def test_unknown_operators(told):
    model = Lacking()
    with unharmed(model):
        text = told(
            raised(compiled(model, strict_ops=True), torch.eye(3)), "linalg_qr", "matrix_exp", "test_models.py",
        )
    assert "turned = torch.linalg.qr" in text
    torch.testing.assert_close(compiled(model)(torch.eye(3)), model(torch.eye(3)), rtol=1e-4, atol=1e-5)


@pytest.mark.case(21)
def test_a_type_that_an_operator_does_not_take(told):
    error = raised(compiled(lambda x: x & 3), torch.ones(4))
    assert isinstance(error, IpuError | TypeError | RuntimeError)
    told(error, "bits are combined of integers and bools, not of floats", "do")


class Connectionist(torch.nn.Module):
    def __init__(self, reduction, is_flat=False):
        super().__init__()
        self.linear = torch.nn.Linear(5, 5)
        self.loss = torch.nn.CTCLoss(reduction=reduction)
        self.is_flat = is_flat

    def forward(self, x, targets, lengths, target_lengths):
        return self.loss(F.log_softmax(self.linear(x), 2), targets, lengths, target_lengths)


def speech(is_flat=False):
    targets = torch.tensor([1, 2, 3, 4]) if is_flat else torch.tensor([[1, 2], [3, 4]])
    return torch.randn(6, 2, 5), targets, torch.tensor([6, 6]), torch.tensor([2, 2])


@pytest.mark.case(22)
def test_ctc_without_reduction_through_poptorch(told):
    model = Connectionist("none")
    with unharmed(model):
        error = raised(poptorch.inferenceModel(model), *speech())
    assert isinstance(error, poptorch.Error)
    told(error, 'CTCLoss with reduction="none" is currently not supported')


@pytest.mark.case(23)
def test_ctc_with_targets_in_one_row(told):
    model = Connectionist("mean", is_flat=True)
    with unharmed(model):
        error = raised(poptorch.inferenceModel(model), *speech(is_flat=True))
    told(error, "CTCLoss needs 2-dimensional targets: pad the label sequences to one length and stack them")
    batch = speech()
    torch.testing.assert_close(poptorch.inferenceModel(model)(*batch), model(*batch).detach(), rtol=1e-4, atol=1e-5)
    told(raised(compiled(model), *speech(is_flat=True)), "CTC loss takes targets [N, S], not one row of all", "pad")


@pytest.mark.case(24)
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize(("settings", "words"), [
    ({"num_layers": 2}, "Only {} with 1 layer supported"), ({"bidirectional": True}, "bidirectional {} not supported"),
])
def test_recurrent_layers(told, kind, settings, words):
    model, given = getattr(torch.nn, kind)(4, 3, **settings), torch.randn(5, 2, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(given)[0], model(given)[0], rtol=1e-4, atol=1e-5)
    told(raised(poptorch.inferenceModel(model), given), words.format(kind))


@pytest.mark.case(25)
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_interpolation(mode):
    class Larger(torch.nn.Module):
        def forward(self, x):
            return F.interpolate(x, scale_factor=2, mode=mode)

    given = torch.randn(1, 2, 4, 4)
    torch.testing.assert_close(compiled(Larger())(given), Larger()(given), rtol=1e-4, atol=1e-5)
    got = poptorch.inferenceModel(Larger())(given)
    torch.testing.assert_close(got, Larger()(given), rtol=1e-4, atol=1e-5)


@pytest.mark.case(25)
def test_interpolation_that_poptorch_lacks(told):
    class Longer(torch.nn.Module):
        def forward(self, x):
            return F.interpolate(x, scale_factor=2, mode="linear")

    given = torch.randn(1, 2, 4)
    torch.testing.assert_close(compiled(Longer())(given), Longer()(given), rtol=1e-4, atol=1e-5)
    told(raised(poptorch.inferenceModel(Longer()), given), "'linear'", "only 'nearest' is supported")


def branching(x):
    doubled = x * 2
    return doubled + 1 if doubled.sum() > 0 else doubled - 1


def reading(x):
    return x * int(x.argmax())


def counting(x):
    return (x > 0).nonzero() * 2


@pytest.mark.case(26)
@pytest.mark.parametrize("function", [branching, reading, counting])
def test_branches_on_values(told, function):
    before = COUNTS.graphs
    for given in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(compiled(function)(given), function(given))
    assert COUNTS.graphs > before
    torch._dynamo.reset()
    error = raised(compiled(function, fullgraph=True), torch.ones(3))
    told(error, "test_models.py")
    torch._dynamo.reset()
    error = raised(compiled(function, strict=True), torch.ones(3))
    assert isinstance(error, CaptureError), repr(error)


@pytest.mark.case(27)
def test_a_branch_through_poptorch(told):
    class Branching(torch.nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x - 1

    error = raised(poptorch.inferenceModel(Branching()), torch.ones(2))
    assert isinstance(error, poptorch.Error)
    told(error, "Cannot force a non-constant 'aten::gt' node to a bool", "test_models.py", "if x.sum() > 0")


@pytest.mark.case(29)
def test_random_operators():
    def noisy(x):
        return F.dropout(x, 0.5) + torch.randn_like(x)

    given, run = torch.ones(64), compiled(noisy)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(run(given))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(run(given), run(given))


@pytest.mark.case(30)
def test_a_mode_that_changes():
    model, given = torch.nn.Dropout(0.5), torch.ones(64)
    run = compiled(model)
    assert (run(given) == 0).any()
    model.eval()
    assert torch.equal(run(given), given)
    model.train()
    assert (run(given) == 0).any()


@pytest.mark.case(30)
def test_a_mode_that_changes_through_poptorch():
    model, given = torch.nn.Sequential(torch.nn.Dropout(0.5)).eval(), torch.ones(64)
    run = poptorch.inferenceModel(model)
    assert torch.equal(run(given), given)
    model.train()
    assert torch.equal(run(given), given)


class Counting(torch.nn.Module):
    """Has a buffer that forward does something to."""

    def __init__(self, change):
        super().__init__()
        self.register_buffer("steps", torch.zeros(2))
        self.change = change

    def forward(self, x):
        self.change(self)
        return x + 1


def assign(model):
    model.steps = model.steps + 1


def remove(model):
    del model.steps


def write(model):
    model.steps.add_(1)


@pytest.mark.case(31)
def test_a_buffer_that_is_assigned(told):
    model = Counting(assign)
    with unharmed(model):
        error = raised(poptorch.inferenceModel(model), torch.ones(2))
    told(error, "steps is reassigned within the model when calling the forward method", "copy_")


@pytest.mark.case(32)
def test_a_buffer_that_is_removed(told):
    model = Counting(remove)
    error = raised(poptorch.inferenceModel(model), torch.ones(2))
    told(error, "steps is removed from the model when calling the forward method")


@pytest.mark.case(33)
def test_a_buffer_that_replicas_write(told):
    model = Counting(write)
    error = raised(
        poptorch.inferenceModel(model, poptorch.Options().replicationFactor(2)), torch.ones(4, 2),
    )
    told(error, "broadcastBuffers(False)")
    assert model.steps.tolist() == [0, 0]


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(7, 4)
        self.head = torch.nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words, labels):
        return F.cross_entropy(self.head(self.embedding(words)), labels)


@pytest.mark.case(34)
def test_shared_parameters():
    model, words = Tied(), torch.tensor([1, 2, 3])
    eager = Tied()
    eager.load_state_dict(model.state_dict())
    step = TrainStep(model, torch.optim.SGD(model.parameters(), 0.1))
    step(words, words)
    optimiser = torch.optim.SGD(eager.parameters(), 0.1)
    eager(words, words).backward()
    optimiser.step()
    assert model.head.weight is model.embedding.weight
    torch.testing.assert_close(model.state_dict(), eager.state_dict(), rtol=1e-5, atol=1e-6)


@pytest.mark.case(35)
def test_a_parameter_that_is_replaced():
    model, given = torch.nn.Linear(3, 2), torch.randn(4, 3)
    run = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(run(given), model(given))
        model.weight = torch.nn.Parameter(torch.randn(2, 3))
        torch.testing.assert_close(run(given), model(given))
        model.weight, model.bias = torch.nn.Parameter(torch.randn(5, 3)), torch.nn.Parameter(torch.randn(5))
        torch.testing.assert_close(run(given), model(given))


@pytest.mark.case(36)
@pytest.mark.parametrize("function", [
    lambda x: x, lambda x: None, lambda x: (), lambda x: torch.ones(3), lambda x: x.view(-1), lambda x: 5,
])
def test_little_models(function):
    given = torch.ones(2, 3)
    expected, got = function(given), compiled(lambda x: function(x))(given)
    assert type(got) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert torch.equal(got, expected)


@pytest.mark.case(36)
@pytest.mark.parametrize("returned", [None, 3, (4, "five")])
def test_a_model_without_results_through_poptorch(returned):
    class Empty(torch.nn.Module):
        def forward(self, x):
            return returned

    assert poptorch.inferenceModel(Empty())(torch.ones(2)) == returned


@pytest.mark.slow
@pytest.mark.case(37)
def test_three_thousand_layers(is_thorough):
    count = 3000 if is_thorough else 1100  # the interpreter nests a thousand calls
    model = torch.nn.Sequential(*(torch.nn.Tanh() for _ in range(count)))
    given = torch.full((2,), 0.5)
    torch.testing.assert_close(InferenceStep(model)(given), model(given))


@pytest.mark.case(38)
def test_recompilations_beyond_the_limit(told, caught_warnings):
    def scaled(x, number):
        return x * (len("a" * number) + 1)

    with torch._dynamo.config.patch(recompile_limit=3, automatic_dynamic_shapes=False, assume_static_by_default=True):
        run = torch.compile(scaled, backend="ipu", dynamic=False)
        for number in range(6):
            assert torch.equal(run(torch.ones(2), number), torch.full((2,), number + 1.0))
        of_ours = [warning.message for warning in caught_warnings if "eager" in str(warning.message)]
        assert len(of_ours) == 1
        told(of_ours[0], "compilation 3 of the same code", "test_models.py")
        torch._dynamo.reset()
        run = torch.compile(scaled, backend="ipu", dynamic=False, options={"strict": True})
        assert isinstance(raised(lambda: [run(torch.ones(2), number) for number in range(6)]), CaptureError)


@pytest.mark.case(39)
def test_errors_that_dynamo_suppresses(told, caught_warnings):
    def refused(x):
        return torch.linalg.qr(x)[1]

    with torch._dynamo.config.patch(suppress_errors=True):
        got = compiled(refused, strict_ops=True)(torch.eye(3))
    torch.testing.assert_close(got, refused(torch.eye(3)))
    of_ours = [warning.message for warning in caught_warnings if "suppress_errors" in str(warning.message)]
    assert len(of_ours) == 1
    told(of_ours[0], "aten.linalg_qr", "eager")


class Classifier(torch.nn.Module):
    def __init__(self, losses=1):
        super().__init__()
        self.linear = torch.nn.Linear(3, 4)
        self.losses = losses

    def forward(self, x, labels):
        out = self.linear(x)
        losses = [F.cross_entropy(out, labels) * (index + 1) for index in range(self.losses)]
        return (out, *losses)


@pytest.mark.case(40)
def test_backward_by_the_user(told):
    model = Classifier()
    wrapped = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), 0.1))
    loss = wrapped(torch.ones(2, 3), torch.tensor([0, 1]))[1]
    told(raised(loss.backward), "backward() cannot be called explicitly on outputs of a PopTorch model")
    wrapped(torch.ones(2, 3), torch.tensor([0, 1]))


@pytest.mark.case(41)
@pytest.mark.parametrize("losses", [0, 2])
def test_losses_that_are_none_or_several(told, losses):
    model = Classifier(losses)
    optimiser = poptorch.optim.SGD(model.parameters(), 0.1)
    with unharmed(model):
        error = raised(
            poptorch.trainingModel(model, optimizer=optimiser), torch.ones(2, 3), torch.tensor([0, 1]),
        )
    assert isinstance(error, poptorch.Error)
    told(error, "loss" if losses == 0 else "identity_loss")


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        raise ArithmeticError("the user's own words")

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@pytest.mark.case(42)
def test_a_function_of_the_users_that_fails(told):
    error = raised(compiled(lambda x: Failing.apply(x * 2)), torch.ones(2, requires_grad=True))
    told(error, "the user's own words")
    assert torch.equal(compiled(lambda x: x * 2)(torch.ones(2)), torch.full((2,), 2.0))


@pytest.mark.case(42)
def test_a_custom_op_without_a_fake(told):
    @torch.library.custom_op("catalogue::without_fake", mutates_args=())
    def without_fake(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    error = raised(compiled(lambda x: without_fake(x) + 1, fullgraph=True), torch.ones(2))
    told(error, "catalogue::without_fake")
    assert not isinstance(error, UnsupportedOpError) or "fake" in str(error)


@pytest.mark.case(43)
@pytest.mark.parametrize("door", ["compile", "step"])
def test_a_pass_that_fails(told, monkeypatch, door, tmp_path):
    def broken(*_, **__):
        raise IndexError("list index out of range")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model, given = torch.nn.Linear(3, 2), torch.ones(1, 3)
    expected = model(given)
    with monkeypatch.context() as patched, unharmed(model), torch.no_grad():
        patched.setattr("torchipu.compiler.ordered_for_memory", broken)
        error = raised(compiled(model) if door == "compile" else InferenceStep(model, Options()), given)
    text = told(error, "IndexError: list index out of range", "defect of torchipu")
    assert isinstance(error.__cause__, IndexError)
    script = next(word for word in text.split() if word.endswith(".py") and str(tmp_path) in word)
    source = Path(script).read_text()
    exec(compile(source, script, "exec"), {})
    with monkeypatch.context() as patched:
        patched.setattr("torchipu.compiler.ordered_for_memory", broken)
        with pytest.raises(InternalError, match="list index out of range"):
            exec(compile(source, script, "exec"), {})
    torch._dynamo.reset()
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(given), expected)
