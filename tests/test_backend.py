"""torch.compile(backend=ipu_backend) gives eager's values and gradients, for any sizes, and errors of ours."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.capture.test_aot import Classifier, Cnn, Dropping, Indexing, Tied, Views
from torchipu.backend import COUNTS, ipu_backend
from torchipu.capture.block import Block
from torchipu.errors import CaptureError, OptionsError, UnsupportedOpError
from torchipu.host.executor import HOST_THREADS, GraphExecutor
from torchipu.report.recorder import recording


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """Keep recompilations of one test from counting against the next."""
    torch._dynamo.reset()


def compiled(module, **kwargs):
    return torch.compile(module, backend=ipu_backend, **kwargs)


def check(module, args, loss_of=lambda out: out[-1], **kwargs):
    """Compare results, gradients and buffers with eager; assert that the backend was called."""
    twin = copy.deepcopy(module)
    before = COUNTS.graphs
    returned = compiled(module, fullgraph=True, **kwargs)(*args)
    expected = twin(*copy.deepcopy(args))
    torch.testing.assert_close(returned, expected)
    assert COUNTS.graphs > before
    loss_of(returned).backward()
    loss_of(expected).backward()
    for (name, ours), theirs in zip(module.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, msg=lambda text, name=name: f"{name}: {text}")
    torch.testing.assert_close(dict(module.named_buffers()), dict(twin.named_buffers()))


def test_cnn_with_batch_norm_trains():
    check(Cnn(), (torch.randn(3, 1, 8, 8), torch.tensor([0, 4, 2])))


def test_tied_weights_train():
    tokens = torch.randint(0, 11, (2, 5))
    check(Tied(), (tokens, tokens), loss_of=lambda out: out["loss"])


def test_transformer_encoder_trains():
    check(Classifier(), (torch.randn(2, 5, 8), torch.tensor([0, 2])))


def test_views_and_aliases_have_eagers_strides():
    check(Views(), (torch.randn(4, 4),))


def test_lists_holes_and_integers():
    args = (torch.randn(3, 4, 5), torch.tensor([0, 2, 1]), torch.tensor([1, 1, 3]))
    torch.testing.assert_close(compiled(Indexing(), fullgraph=True)(*args), Indexing()(*args))


def test_two_seeds_drop_other_elements_and_one_seed_the_same():
    module, args = Dropping(), (torch.randn(2, 8), torch.tensor([0, 2]))
    run = compiled(module, options={"seed": 3})
    first = run(*args).item()
    assert run(*args).item() != first
    torch._dynamo.reset()
    assert compiled(module, options={"seed": 3})(*args).item() == first
    torch._dynamo.reset()
    assert compiled(module, options={"seed": 4})(*args).item() != first


def test_a_written_input_is_written():
    def double(x):
        x.mul_(2)
        return x + 1

    x = torch.ones(3)
    y = compiled(double)(x)
    assert torch.equal(x, torch.full((3,), 2.0))
    assert torch.equal(y, torch.full((3,), 3.0))


def test_results_share_no_memory_with_inputs_or_each_other():
    def copies(x):
        h = x * 2
        return x.clone(), h, h.clone(), h.t().clone()

    x = torch.randn(3, 3)
    returned = compiled(copies)(x)
    places = {value.untyped_storage().data_ptr() for value in (x, *returned)}
    assert len(places) == 5
    torch.testing.assert_close(returned, copies(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex128])
@pytest.mark.parametrize("values", [3.0, [3.0, 1.0, -2.0]])
def test_constants_of_forward_have_their_values_in_every_type(dtype, values):
    def scaled(x):
        return x.to(dtype) * torch.tensor(values, dtype=dtype)

    x = torch.tensor([0.5, -4.0, 8.0])  # exact in every type
    assert torch.equal(compiled(scaled)(x), scaled(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_border_keeps_the_callers_element_type(dtype):
    def formula(x, w):
        return (x @ w).tanh(), x.sum(0)

    x, w = torch.randn(4, 5, dtype=dtype), torch.randn(5, 3, dtype=dtype, requires_grad=True)
    a, b = compiled(formula)(x, w)
    assert (a.dtype, b.dtype) == (dtype, dtype)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype is not torch.float64 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close((a, b), formula(x, w), **tolerance)
    a.sum().backward()
    assert w.grad.dtype is dtype


@pytest.mark.parametrize("dynamic", [None, True])
def test_any_batch_size_runs(dynamic):
    module = Classifier()
    twin = copy.deepcopy(module)
    run = compiled(module, dynamic=dynamic)
    for batch in (2, 3, 7, 3):
        args = (torch.randn(batch, 5, 8), torch.randint(0, 3, (batch,)))
        logits, loss = run(*args)
        expected, expected_loss = twin(*args)
        torch.testing.assert_close(logits, expected)
        loss.backward()
        expected_loss.backward()
    for ours, theirs in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


DATA = torch.arange(48.0).reshape(6, 8)
VIEWS = {
    "of a view with gaps": (lambda x: x.view(x.shape), [DATA[:, ::2], DATA[:4, ::4], DATA[:, :4]]),
    "of a view with an offset": (lambda x: x[1:].view(-1, 2, x.shape[1] // 2), [DATA, DATA[2:5], DATA[3:]]),
    "expanded": (lambda x: x[:1].expand(x.shape), [DATA, DATA[1:4], DATA[:, 1:5]]),
    "transposed": (lambda x: x.view(x.shape).t()[1:], [DATA, DATA[1:].clone(), DATA[1:]]),
    "overlapping": (lambda x: x.view(x.shape).unfold(0, 2, 1), [DATA, DATA[1:], DATA[:5].clone()]),
    "of a result": (lambda x: (x * 2).view(x.shape)[:, 1:], [DATA, DATA[1:4]]),
}


@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize("name", VIEWS)
def test_views_of_tensors_of_any_size_are_returned_as_eager_has_them(name, needs_gradient):
    function, inputs = VIEWS[name]
    run = compiled(function, dynamic=True)
    for x in inputs:
        x = x.detach().requires_grad_(needs_gradient)
        returned, expected = run(x), function(x)
        torch.testing.assert_close(returned, expected, rtol=0, atol=0)
        assert (returned.stride(), returned.storage_offset()) == (expected.stride(), expected.storage_offset())
        assert (returned._base is x) == (expected._base is x)
        if needs_gradient:
            mine, theirs = (torch.autograd.grad((r * r).sum(), x)[0] for r in (returned, expected))
            torch.testing.assert_close(mine, theirs)


def test_a_program_serves_a_size_at_any_offset():
    run = compiled(lambda x: x * 2, dynamic=True)
    data = torch.arange(24.0).reshape(6, 4)
    run(data[:3])
    before = COUNTS.programs
    torch.testing.assert_close(run(data[3:]), data[3:] * 2)
    assert COUNTS.programs == before


class TwoBlocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        with Block("front", 0):
            x = F.relu(self.first(x))
        with Block("back", 1):
            return self.second(x)


@pytest.mark.parametrize("dynamic", [False, True])
def test_blocks_place_forward_and_backward_on_their_ipus(dynamic):
    with recording() as programs:
        compiled(TwoBlocks(), dynamic=dynamic)(torch.randn(3, 4)).sum().backward()
    assert len(programs) == 2
    for program in programs:
        by_block = {op.placement.block: op.placement.ipu for op in program.graph.ops}
        assert by_block["front"] == 0
        assert by_block["back"] == 1


def test_the_backward_reads_weights_as_they_are_and_no_transposed_copies():
    with recording() as programs:
        compiled(TwoBlocks())(torch.randn(3, 4)).sum().backward()
    forward, backward = (program.graph for program in programs)
    assert [tensor.shape for tensor in forward.outputs] == [(3, 2), (3, 8)]
    assert (2, 8) in [tensor.shape for tensor in backward.inputs]


def test_inference_mode_runs():
    module = Cnn().eval()
    x, y = torch.randn(2, 1, 8, 8), torch.tensor([0, 1])
    with torch.no_grad():
        torch.testing.assert_close(compiled(module)(x, y), module(x, y))


def test_an_unknown_option_is_an_options_error():
    with pytest.raises(Exception, match="unknown option 'strct'") as caught:
        compiled(nn.Linear(2, 2), options={"strct": True})(torch.randn(1, 2))
    assert isinstance(caught.value.inner_exception, OptionsError)


def test_mode_is_ignored_with_a_warning():
    ipu = torch.compile(nn.Linear(2, 2), backend=ipu_backend, mode="max-autotune")
    with pytest.warns(UserWarning, match="mode='max-autotune' has no meaning"):
        ipu(torch.randn(1, 2))


def test_an_unknown_mode_is_an_options_error():
    with pytest.raises(Exception, match=r"unknown mode 'max-autotun'.*max-autotune") as caught:
        torch.compile(nn.Linear(2, 2), backend=ipu_backend, mode="max-autotun")(torch.randn(1, 2))
    assert isinstance(caught.value.inner_exception, OptionsError)


def test_strict_ops_lists_every_unsupported_op():
    def rare(x):
        return torch.geqrf(torch.linalg.qr(x)[1])[0]

    with pytest.raises(Exception, match="has no lowering for the IPU") as caught:
        compiled(rare, options={"strict_ops": True})(torch.randn(3, 3))
    error = caught.value.inner_exception
    assert isinstance(error, UnsupportedOpError)
    assert "linalg_qr" in str(error)
    assert "geqrf" in str(error)
    torch._dynamo.reset()
    x = torch.randn(3, 3)
    torch.testing.assert_close(compiled(rare)(x), rare(x))


def breaking(x):
    x = x * 2
    print(end="")
    torch._dynamo.graph_break()
    return x + 1


def test_strict_refuses_a_graph_break_and_names_the_line():
    assert compiled(breaking)(torch.ones(2)).tolist() == [3, 3]
    torch._dynamo.reset()
    with pytest.raises(Exception, match="strict: the model breaks into several graphs") as caught:
        compiled(breaking, options={"strict": True})(torch.ones(2))
    assert isinstance(caught.value.inner_exception, CaptureError)
    assert "test_backend.py" in str(caught.value.inner_exception)


def test_strict_refuses_the_last_recompilation():
    run = compiled(lambda x, n: x * n, options={"strict": True}, dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=3):
        for size in (2, 3):
            run(torch.ones(size), 2)
        with pytest.raises(Exception, match="strict: this is compilation 3"):
            run(torch.ones(4), 2)


@pytest.mark.parametrize("make", [
    lambda weights: torch.optim.AdamW(weights, lr=torch.tensor(1e-2)),
    lambda weights: torch.optim.Adam(weights, amsgrad=True),
    lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, nesterov=True),
    lambda weights: torch.optim.RMSprop(weights, centered=True),
], ids=["AdamW", "Adam", "SGD", "RMSprop"])
def test_compiled_updates_are_those_of_eager(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    """Judged by the same optimiser in float64; none of its operators is left to ATen."""
    torch.manual_seed(0)
    ours = torch.nn.Linear(6, 5)
    theirs = copy.deepcopy(ours).double()
    optimiser, judge = make(ours.parameters()), make(theirs.parameters())
    update = torch.compile(optimiser.step, backend=ipu_backend, options={"strict_ops": True})
    for turn in range(4):
        x = torch.randn(3, 6, generator=torch.Generator().manual_seed(turn))
        for model, values, step in ((ours, x, update), (theirs, x.double(), judge.step)):
            model.zero_grad()
            model(values).square().mean().backward()
            step()
    for mine, exact in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-5, atol=1e-6)


def test_threads_are_those_of_torch_unless_options_or_a_launcher_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are the same for any number; those who call ``torch.set_num_threads`` leave cores to others."""
    found: list[int] = []
    made = GraphExecutor.__init__

    def init(self: GraphExecutor, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        found.append(self.threads)

    monkeypatch.setattr(GraphExecutor, "__init__", init)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.delenv(HOST_THREADS, raising=False)
    function = torch.compile(torch.sin, backend="ipu")
    before = torch.get_num_threads()
    try:
        for threads in (2, 3, 8):
            torch.set_num_threads(threads)
            function(torch.ones(3))
        torch.compile(torch.cos, backend="ipu", options={"host_threads": 7})(torch.ones(3))
        monkeypatch.setenv(HOST_THREADS, "2")
        torch.compile(torch.tan, backend="ipu")(torch.ones(3))
    finally:
        torch.set_num_threads(before)
    assert found == [2, 3, 4, 7, 2]
