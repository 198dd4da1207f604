"""``torchipu estimate script.py``: what it says of a script's programs, none of which runs, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchipu.cli import main
from torchipu.cli.estimate import values_of

MODEL = """
import sys
import torch, poptorch, torchipu
from torch import nn

class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x, labels=None):
        out = torch.nn.functional.gelu(self.layer(x))
        return out if labels is None else (out, torch.nn.functional.cross_entropy(out, labels))

x, labels = torch.randn(8, 6), torch.randint(0, 3, (8,))
model = Classifier()
"""
STEPS = MODEL + """
options = torchipu.Options(gradient_accumulation=4)
step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), options)
for _ in range(3):
    out, loss = step(x, labels)
assert out.shape == (2, 3) and float(loss) == 0
before = [parameter.clone() for parameter in model.parameters()]
assert torchipu.InferenceStep(Classifier().eval())(x).shape == (8, 3)
print("the end of the script", *sys.argv[1:])
"""
POPTORCH = MODEL + """
options = poptorch.Options()
options.Training.gradientAccumulation(4)
training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))
training(x, labels)
print("never reached")
"""
COMPILED = MODEL + """
out, loss = torch.compile(model, backend="ipu")(x, labels)
loss.backward()
assert float(loss.detach()) == 0
"""
ENDLESS = MODEL + """
step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), torchipu.Options(strict_ops=True))
while step(x, labels)[1] < 1:
    pass
"""
CHOSEN = MODEL + """
class Chosen(nn.Module):
    def forward(self, x):
        return x[x > 0].sum()

torchipu.InferenceStep(Chosen())(x)
"""


CHOSEN_OF_COMPILE = MODEL + """
class Chosen(nn.Module):
    def forward(self, x):
        return x[x > 0].sum()

torch.compile(Chosen(), backend="ipu")(x)
"""
TRAINER = MODEL + """
import lightning as L

class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Classifier()

    def training_step(self, batch, number):
        return self.model(*batch)[1]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

rows = torch.utils.data.TensorDataset(torch.randn(32, 6), torch.randint(0, 3, (32,)))
L.Trainer(
    accelerator="ipu", devices=2, accumulate_grad_batches=2, max_epochs=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
).fit(Module(), torch.utils.data.DataLoader(rows, batch_size=8))
"""


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def call(script: str, *arguments: str) -> tuple[int, str]:
        path = tmp_path / "script.py"
        path.write_text(script)
        status = main(["estimate", str(path), *arguments])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return call


def test_steps_give_zeros_and_a_script_goes_on(run):
    status, text = run(STEPS, "--target", "bow-pod16", "--", "--flag")
    assert status == 0
    assert "the end of the script --flag" in text
    assert text.count("Bow Pod16, 1 IPU (modelled)") == 2
    assert "training of Classifier: estimated in" in text
    assert "inference of Classifier: estimated in" in text


def test_a_script_of_poptorch_ends_at_its_first_call(run):
    status, text = run(POPTORCH, "--replicas", "2")
    assert status == 0
    assert "never reached" not in text
    assert "2 replicas of 1 IPU (modelled)\nweight update" in text
    assert "(4 x 2 samples x 2 replicas)" in text
    assert "what follows the first call" in text


def test_programs_of_torch_compile_are_estimated_for_another_machine(run):
    status, text = run(COMPILED, "--target", "c600")
    assert status == 0
    assert text.count("Graphcore C600") == 2
    assert ".forward: estimated" in text
    assert ".backward: estimated" in text


def test_torch_compile_has_no_replicas(run):
    status, text = run(COMPILED, "--replicas", "2")
    assert status == 1
    assert "replicas=2 needs a whole step as one program" in text


def test_torch_compile_has_the_batches_of_the_script(run):
    status, text = run(COMPILED, "--micro-batch", "4")
    assert status == 1
    assert "micro_batch=4 needs a step that is captured here" in text


def test_a_trainer_keeps_its_replicas_and_its_accumulation(run):
    pytest.importorskip("lightning")
    status, text = run(TRAINER, "--target", "bow-pod16")
    assert status == 0
    assert "Trainer, training_step: estimated" in text
    assert "2 replicas of 1 IPU (modelled)" in text
    assert "(2 x 8 samples x 2 replicas)" in text


def test_a_trainer_says_where_its_replicas_are_set(run):
    pytest.importorskip("lightning")
    status, text = run(TRAINER, "--target", "bow-pod16", "--replicas", "2,4")
    assert status == 0
    assert "replicas=4, but the Trainer has compiled for 2" in text


def test_a_program_whose_inputs_depend_on_data_is_marked(run):
    _, text = run(CHOSEN_OF_COMPILE)
    assert "extrapolated         inputs without samples: their number depends on data" in text


def test_several_values_make_a_table(run, tmp_path):
    file = tmp_path / "rows.csv"
    status, text = run(
        STEPS, "--target", "pod4", "--target", "bow-pod16", "--replicas", "1,8", "--set", "recompute=none",
        "--csv", str(file),
    )
    assert status == 0
    assert "8 replicas of the model need 8 IPUs at least, but pod4 has 4" in text
    assert [line.split(",")[:2] for line in file.read_text().splitlines()] == [
        ["target", "replicas"], ["bow-pod16", "8"], ["bow-pod16", "1"], ["pod4", "1"], ["pod4", "8"],
    ]


def test_a_table_that_cannot_be_written_is_printed_all_the_same(run, tmp_path):
    status, text = run(STEPS, "--replicas", "1,2", "--csv", str(tmp_path / "nowhere" / "rows.csv"))
    assert status == 2
    assert "training of Classifier: best first, modelled" in text
    assert "No such file or directory" in text


def test_parameters_may_be_on_the_meta_device(run):
    status, text = run(STEPS + "assert all(p.is_meta for p in model.parameters())", "--meta")
    assert (status, "the end of the script" in text) == (0, True)


def test_a_script_that_waits_for_a_loss_is_ended(run):
    status, text = run(ENDLESS)
    assert status == 0
    assert "the script was ended after 1000 calls of Classifier" in text


def test_what_depends_on_data_is_told_and_no_crash(run):
    status, text = run(CHOSEN)
    assert status == 1
    assert "inference of Chosen: not estimated: the model cannot be captured as one graph: the shape of" in text
    assert "the script ended early" not in text


def test_a_script_without_a_model_is_told(run):
    status, text = run("print(1)")
    assert status == 1
    assert "no model was compiled: estimate looks at torchipu.TrainStep" in text


def test_an_error_of_a_script_is_told_with_what_was_found(run):
    status, text = run(STEPS + "raise KeyError('mine')")
    assert status == 1
    assert "training of Classifier: estimated in" in text
    assert "the script ended early: KeyError: 'mine'" in text


@pytest.mark.parametrize(("arguments", "words"), [
    (("--target", "pod5"), "unknown target 'pod5'"),
    (("--set", "replica=2"), "unknown option 'replica'; did you mean 'replicas'"),
    (("--set", "replicas"), "--set expects option=value, got 'replicas'"),
    (("--csv", "rows.csv"), "there is no table to write"),
])
def test_a_wrong_call_is_refused(run, arguments, words):
    status, text = run(STEPS, *arguments)
    assert status == 2
    assert words in text


@pytest.mark.parametrize("value", ["0", "1.5", "-1"])
def test_a_wrong_value_is_told_for_the_program(run, value):
    status, text = run(STEPS, "--available-memory", value)
    assert status == 1
    assert f"available_memory must be above 0 and at most 1, got {value}" in text


def test_arguments_of_a_script_without_the_dashes_are_told(capsys):
    with pytest.raises(SystemExit):
        main(["estimate", "train.py", "--epochs", "3"])
    assert "torchipu estimate train.py -- --epochs 3" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "extrapolated"), [
    (("--target", "bow"), False), (("--target", "bow,exchange_bytes_per_cycle=8"), True),
])
def test_all_that_is_printed_says_how_far_to_trust_it(run, arguments, extrapolated):
    for script in (STEPS, POPTORCH, COMPILED):
        _, text = run(script, *arguments)
        estimated = text.count("not run\nmachine")
        assert estimated > 0
        for label in ("trust in rate ", "trust in memory ", "trust in fits "):
            assert text.count(f"\n{label}") == estimated
        assert text.count("no such machine was measured") == estimated * extrapolated


def test_there_has_to_be_a_script(capsys):
    assert main(["estimate", "nowhere.py"]) == 2
    assert "there is no script nowhere.py" in capsys.readouterr().err


def test_values_of_a_command_line():
    assert values_of("1,2.5,true,none,stage") == [1, 2.5, True, "none", "stage"]
    assert values_of("{0: 0.2, 1: 0.4},0.3") == [{0: 0.2, 1: 0.4}, 0.3]
