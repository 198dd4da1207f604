"""Results on the bytes of operands: vertices compute there, and what still reads such an operand is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import torchipu
from tests.device.tilings.simulated import groups_of
from tests.device.trained import Classifier, Trained
from torchipu.device.memory.in_place import operands_below
from torchipu.device.memory.liveness import Liveness
from torchipu.errors import DeviceProgramError


@pytest.fixture(scope="module")
def run() -> Trained:
    torch.manual_seed(0)
    model = Classifier(
        torch.nn.Linear(12, 40), torch.nn.Tanh(), torch.nn.Sigmoid(), torch.nn.GELU(), torch.nn.Softmax(-1),
        torch.nn.Linear(40, 5),
    )
    batch = torch.randn(8, 12), torch.randint(0, 5, (8,))
    return Trained(model, lambda given: torch.optim.SGD(given, lr=0.5), torchipu.Options(), batch)


def below(run: Trained) -> dict[str, str]:
    lives = Liveness(run.executable).lifetimes
    return {life.variable.name: life.over.name for life in lives if life.over is not None}


def moved(run: Trained, name: str, begin: int):
    low, high = run.executable.addresses[name]
    return replace(run.executable, addresses={**run.executable.addresses, name: (begin, begin + high - low)})


def test_programs_with_results_on_their_operands_train_as_eager_does(run: Trained) -> None:
    places = below(run)
    assert len(places) >= 3
    for result, operand in places.items():
        assert run.executable.addresses[result] == run.executable.addresses[operand]
    machine = run.tile_machine()
    machine.run()
    assert not machine.whole
    for name, wanted in run.by_eager().items():
        np.testing.assert_allclose(run.weights(machine)[name], wanted, 1e-3, 1e-5)


@pytest.mark.parametrize("shift", [-8, 4, 8])
def test_a_result_that_lies_beside_the_elements_that_it_is_made_of_is_refused(run: Trained, shift: int) -> None:
    for result, operand in below(run).items():
        begin = run.executable.addresses[operand][0] + shift
        with pytest.raises(DeviceProgramError):
            run.tile_machine(moved(run, result, begin)).run()


def test_a_result_on_an_operand_that_is_read_again_is_refused(run: Trained) -> None:
    groups, done = groups_of(run.executable), 0
    for number, group in enumerate(groups):
        others = [later for later in groups[number + 1 :] if later.op is not group.op]
        read_again = {variable for later in others for variable in later.fields.values()}
        for operand in read_again.intersection(operands_below(group, run.executable.views)):
            result = group.fields["out"].name
            with pytest.raises(DeviceProgramError, match=r"was written|on the same bytes"):
                run.tile_machine(moved(run, result, run.executable.addresses[operand.name][0])).run()
            done += 1
    assert done
