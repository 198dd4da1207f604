"""Bad input is refused in clear words, and a call that fails or is interrupted leaves everything as it was before."""

import copy
import gc
import signal
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torchipu import (
    Block,
    CaptureError,
    ConstraintError,
    ExecutionError,
    InferenceStep,
    Options,
    OptionsError,
    OutOfTileMemoryError,
    PlacementError,
    TrainStep,
)
from torchipu.capture import fx_types


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """Keep recompilations of one test from counting against the next."""
    torch._dynamo.reset()


class Classifier(nn.Module):
    def __init__(self, width=8, ipus=(0, 0)):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 3)
        self.ipus = ipus

    def forward(self, x, y):
        with Block("front", self.ipus[0]):
            h = F.dropout(self.norm(torch.tanh(self.first(x))), 0.1)
        with Block("back", self.ipus[1]):
            logits = self.second(h)
            return logits, F.cross_entropy(logits, y)


def optimisers(model):
    return {
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True),
        "rmsprop": lambda: torch.optim.RMSprop(model.parameters(), lr=0.01, momentum=0.5),
    }


def held(model, optimiser):
    """Return copies of all that a failed call must leave alone."""
    return copy.deepcopy((model.state_dict(), optimiser.state_dict()["state"]))


def assert_same(left, right):
    torch.testing.assert_close(left, right, rtol=0, atol=0)


GOOD = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 2, 1, 0])
BAD = GOOD[0], torch.tensor([0, 1, 2, 2, 1, 7])
OPTIONS = Options(seed=5, gradient_accumulation=2)


def trained(kind, calls):
    """Return a model after good calls, its optimiser and the step."""
    torch.manual_seed(0)
    model = Classifier()
    optimiser = optimisers(model)[kind]()
    step = TrainStep(model, optimiser, OPTIONS)
    for _ in range(calls):
        step(*GOOD)
    return model, optimiser, step


# ---------------------------------------------------------------------- calls that fail
@pytest.mark.parametrize("calls", [0, 2], ids=["first-call", "third-call"])
@pytest.mark.parametrize("kind", ["sgd", "adamw", "rmsprop"])
def test_a_label_out_of_range_changes_nothing_and_the_next_call_is_as_if_undisturbed(kind, calls):
    model, optimiser, step = trained(kind, calls)
    before = held(model, optimiser)
    words = r"an index is out of range: expected 'target' from 0 to 2, of a tensor of \[3, 3\]"
    with pytest.raises(ExecutionError, match=words) as caught:
        step(*BAD)
    assert "test_faults.py" in str(caught.value)
    assert_same(held(model, optimiser), before)
    _, loss = step(*GOOD)
    twin, twin_optimiser, twin_step = trained(kind, calls)
    assert_same(loss, twin_step(*GOOD)[1])
    assert_same(held(model, optimiser), held(twin, twin_optimiser))


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize(("places", "names", "told"), [
    (1, {"labels": 1}, "'labels'"), (2, {"labels": 1}, "'labels'"), (0, {"x": 0, "y": 1, "z": 1}, "'z'"),
])
def test_a_keyword_that_forward_does_not_take_is_named_whatever_is_missing(is_first, places, names, told):
    model, optimiser, step = trained("sgd", 1)
    if not is_first:
        step(*GOOD)
    before = held(model, optimiser)
    with pytest.raises(CaptureError, match=f"got an unexpected keyword argument {told}") as caught:
        step(*GOOD[:places], **{name: GOOD[place] for name, place in names.items()})
    assert "by place or by name: x, y" in caught.value.remedy
    assert_same(held(model, optimiser), before)


@pytest.mark.parametrize(("arguments", "words", "remedy"), [
    (GOOD[:1], "the model cannot be called with these arguments: missing a required argument: 'y'",
     "pass what its forward takes, by place or by name"),
    ((*GOOD, 1), "the model cannot be called with these arguments: too many positional arguments",
     "pass what its forward takes, by place or by name"),
    ((GOOD[0].half(), GOOD[1]), "operands must be of one element type, got float and half and float",
     "convert them with .to(), .half() or .float(), or convert the model"),
    ((GOOD[0], GOOD[1].float()), "Expected dtype int32/int64 for index, but got torch.float32",
     "pass inputs of the types that the model was made for"),
    ((torch.randn(6, 5), GOOD[1]), "expected 4 features in the last dimension and got 5",
     "pass inputs of the sizes that the model was made for"),
], ids=["too few", "too many", "another type", "no index", "another size"])
def test_arguments_that_do_not_fit_say_what_does_and_change_nothing(arguments, words, remedy):
    model, optimiser, step = trained("sgd", 1)
    before = held(model, optimiser)
    with pytest.raises(CaptureError) as caught:
        step(*arguments)
    assert words in caught.value.message
    assert caught.value.remedy == remedy
    assert "inspect.py" not in str(caught.value.source)
    assert_same(held(model, optimiser), before)
    step(*GOOD)


class Row(nn.Module):
    def __init__(self, choose):
        super().__init__()
        self.table, self.choose = nn.Parameter(torch.arange(12.0).reshape(4, 3)), choose

    def forward(self, i):
        return self.choose(self.table, i) * 2


@pytest.mark.parametrize("choose", [lambda table, i: table[i], lambda table, i: table[(i % 4).long()]])
def test_a_row_chosen_by_a_number_on_the_host_says_how_to_choose_it_on_the_device(choose):
    with pytest.raises(CaptureError, match="depends on data") as caught:
        InferenceStep(Row(choose))(torch.tensor(2))
    assert "x[i.reshape(1)][0]" in caught.value.remedy
    assert "test_faults.py" in str(caught.value)
    assert InferenceStep(Row(lambda table, i: table[i.reshape(1)][0]))(torch.tensor(2)).tolist() == [12.0, 14.0, 16.0]


@pytest.mark.parametrize("calls", [0, 1], ids=["first-call", "second-call"])
def test_a_program_that_does_not_fit_changes_nothing(calls):
    model = Classifier(40_000)
    optimiser = optimisers(model)["adamw"]()
    step = TrainStep(model, optimiser)
    if calls:
        step(*GOOD)
    before = held(model, optimiser)
    with pytest.raises(OutOfTileMemoryError):
        step(torch.randn(6000, 4), torch.zeros(6000, dtype=torch.int64))
    assert_same(held(model, optimiser), before)
    if calls:
        step(*GOOD)  # the program for these sizes is still there


def test_a_failed_forward_of_torch_compile_changes_nothing_and_the_next_is_as_if_undisturbed():
    def run(disturbed):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = Classifier()
        called = torch.compile(model, backend="ipu", options={"seed": 5})
        called(*GOOD)
        if disturbed:
            before = copy.deepcopy(model.state_dict())
            with pytest.raises(ExecutionError, match="an index is out of range"):
                called(*BAD)
            assert_same(model.state_dict(), before)
        _, loss = called(*GOOD)
        loss.backward()
        return loss.detach(), [parameter.grad for parameter in model.parameters()], model.state_dict()

    assert_same(run(disturbed=True), run(disturbed=False))


# ---------------------------------------------------------------------- calls that are interrupted
class Interrupted(Exception):  # noqa: N818 - as KeyboardInterrupt
    """What a signal handler of the user's raises."""


def raise_interrupted(number, frame):
    raise Interrupted


def press_ctrl_c(number, frame):
    signal.raise_signal(signal.SIGINT)


ITERATIONS = 40_000


def long_step(calls):
    """Return a model after short calls, its optimiser, and a step of many weight updates, compiled."""
    torch.manual_seed(0)
    model = Classifier(64)
    optimiser = optimisers(model)["adamw"]()
    for _ in range(calls):
        TrainStep(model, optimiser, OPTIONS)(*GOOD)
    step = TrainStep(model, optimiser, Options(seed=5, device_iterations=ITERATIONS))
    x, y = torch.randn(ITERATIONS * 2, 4), torch.randint(3, (ITERATIONS * 2,))
    step.compile(x, y)
    if not calls:
        optimiser.state.clear()  # as before the compilation
    return model, optimiser, step, (x, y)


@pytest.mark.parametrize(("handler", "error"), [(raise_interrupted, Interrupted), (press_ctrl_c, KeyboardInterrupt)])
@pytest.mark.parametrize("calls", [0, 1], ids=["first-call", "second-call"])
@pytest.mark.usefixtures("ctrl_c_interrupts")
def test_an_interrupted_call_changes_nothing_and_the_next_is_as_if_undisturbed(handler, error, calls):
    model, optimiser, step, inputs = long_step(calls)
    before = held(model, optimiser)
    gc.collect()  # Python swallows what is raised while it frees what earlier tests have left
    previous = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(error):
            step(*inputs)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert_same(held(model, optimiser), before)
    _, loss = step(*inputs)
    twin, twin_optimiser, twin_step, _ = long_step(calls)
    assert_same(loss, twin_step(*inputs)[1])
    assert_same(held(model, optimiser), held(twin, twin_optimiser))


# ---------------------------------------------------------------------- input that is refused
def step_of(model, **options):
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), Options(**options))


def test_a_misspelt_option_of_torch_compile_names_the_nearest():
    words = "unknown option 'gradient_acumulation'; did you mean 'gradient_accumulation'"
    with pytest.raises(Exception, match=words) as e:
        torch.compile(nn.Linear(2, 2), backend="ipu", options={"gradient_acumulation": 2})(torch.ones(1, 2))
    assert isinstance(e.value.inner_exception, OptionsError)


def test_an_option_of_the_wrong_type_is_refused():
    words = r"option 'gradient_accumulation' expects an int of at least 1, got '10' \(str\)"
    with pytest.raises(OptionsError, match=words):
        Options(gradient_accumulation="10")


@pytest.mark.parametrize("number", [99, 4096])
def test_an_ipu_beyond_those_allowed_is_refused(number):
    with pytest.raises(PlacementError, match=f"ipu {number}|IPU {number}|ipu_id {number}") as caught:
        step_of(Classifier(ipus=(0, number)), num_ipus=2).compile(*GOOD)
    assert "do  " in str(caught.value)


def test_a_list_of_blocks_that_leaves_an_op_out_is_refused():
    with pytest.raises(PlacementError, match=r"block 'back' is not in options\.blocks") as caught:
        step_of(Classifier(ipus=(0, 1)), blocks=("front",)).compile(*GOOD)
    assert "test_faults.py" in str(caught.value)
    assert "known blocks: front" in str(caught.value)


def test_blocks_for_a_model_without_any_are_refused():
    with pytest.raises(PlacementError, match=r"options\.blocks leaves . ops unplaced: no op of the model"):
        InferenceStep(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), Options(blocks=("front",)))(torch.ones(1, 2))


def test_a_batch_that_cannot_be_cut_is_refused_with_sizes_that_can():
    with pytest.raises(ConstraintError) as caught:
        step_of(Classifier(), gradient_accumulation=4, device_iterations=5).compile(torch.ones(50, 4), torch.zeros(50))
    assert str(caught.value) == (
        "batch of 50 is not divisible by device_iterations 5 x gradient_accumulation 4 = 20\n"
        "  do      pass 40 or 60 samples along dimension 0"
    )


def test_double_is_computed_as_float_with_one_warning(monkeypatch):
    monkeypatch.setattr(fx_types, "_WARNED", set())
    model = nn.Linear(3, 2).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = InferenceStep(model)(x)
        compiled = torch.compile(model, backend="ipu")(x)
    narrowed = [str(one.message) for one in caught if "torch.float64 does not exist on the IPU" in str(one.message)]
    assert len(narrowed) == 1
    assert "computed as float" in narrowed[0]
    assert found.dtype is compiled.dtype is torch.float64
    assert not torch.equal(found, model(x))  # the digits of float
    torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-6)


def test_a_double_model_trains_in_its_own_type():
    torch.manual_seed(0)
    model = Classifier().double()
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
    _, loss = TrainStep(model, optimiser)(GOOD[0].double(), GOOD[1])
    assert {parameter.dtype for parameter in model.parameters()} == {loss.dtype} == {torch.float64}
