"""Small models, their training on one process's share of each batch, and what eager makes of the same."""

import copy
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

SAMPLES = 16  # of a batch, over all processes
WIDTH = 512  # a layer of 1 MiB, the size of the first bucket of DDP


class Layer(nn.Module):
    """A linear layer with layer normalisation, or with batch normalisation."""

    def __init__(self, inputs: int, outputs: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(inputs, outputs), norm(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.linear(x)))


class Net(nn.Module):
    """A few layers; ``extra`` takes part where it is asked for."""

    def __init__(
        self, width: int = 24, norm: Callable[[int], nn.Module] = nn.LayerNorm, has_extra: bool = False
    ) -> None:
        super().__init__()
        self.first, self.second, self.third = (Layer(size, width, norm) for size in (12, width, width))
        self.last = nn.Linear(width, 10)
        self.extra = nn.Linear(width, width) if has_extra else None
        self.uses_extra = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(self.first(x))
        if self.extra is not None and self.uses_extra:
            x = x + self.extra(x)
        return self.last(self.third(x))


def net(**kwargs: object) -> Net:
    """Return the same model on every process."""
    torch.manual_seed(3)
    return Net(**kwargs)  # type: ignore[arg-type]


def batches(steps: int, *, joined: bool = False) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield inputs and labels: this process's share of each batch, or all of it."""
    generator = torch.Generator().manual_seed(11)
    for _ in range(steps):
        x, y = torch.randn(SAMPLES, 12, generator=generator), torch.randint(0, 10, (SAMPLES,), generator=generator)
        share = slice(None) if joined else slice(dist.get_rank(), None, dist.get_world_size())
        yield x[share], y[share]


def train(model: nn.Module, *, steps: int = 3, joined: bool = False, parameters: object = None) -> nn.Module:
    """Train a model, compiled and distributed or not, and return it."""
    optimiser = torch.optim.SGD(parameters or model.parameters(), lr=0.05, momentum=0.9)
    for x, y in batches(steps, joined=joined):
        loss = F.cross_entropy(model(x).float(), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model


def alone(model: nn.Module, steps: int = 3) -> nn.Module:
    """Return a copy trained by one process on whole batches, in float64."""
    twin = copy.deepcopy(model).double()
    optimiser = torch.optim.SGD(twin.parameters(), lr=0.05, momentum=0.9)
    for x, y in batches(steps, joined=True):
        loss = F.cross_entropy(twin(x.double()), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return twin


def whole_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return weights and buffers, put together where processes hold shares, under the names of the plain model."""
    whole = {}
    for name, value in model.state_dict().items():
        plain = name.replace("module.", "").replace("_orig_mod.", "")
        whole[plain] = (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().clone()
    return whole


def assert_same(found: nn.Module, expected: nn.Module, **tolerance: float) -> None:
    """Compare all weights and buffers."""
    ours, theirs = whole_state(found), whole_state(expected)
    assert ours.keys() == theirs.keys()
    limits = tolerance or {"rtol": 2e-5, "atol": 2e-6}
    for name, value in ours.items():
        torch.testing.assert_close(
            value, theirs[name].to(value.dtype), **limits, msg=lambda text, name=name: f"{name}: {text}",
        )
