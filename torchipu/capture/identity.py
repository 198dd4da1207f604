"""Whether two models make the same graph, told from one run of forward and backward on tensors without values.

Capture proper traces more than once, functionalises and takes ops apart; this run only writes down what is called.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx import traceback
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._python_dispatch import TorchDispatchMode

from torchipu.capture.bodies import Body, WithBodies, fresh
from torchipu.capture.running import Running

NOTED = ("stack_trace", "nn_module_stack", "custom")
"""What the nodes of a graph carry beside the calls: the user's line, the module, the block."""


def identity_of(running: Running, tensors: Sequence[torch.Tensor], more: str = "") -> str | None:
    """Return a digest that is the same for two captures only if their graphs are.

    It covers every call of forward and backward with its numbers and operands, the user's lines and modules, names
    and types of parameters and buffers, values of constants, and the version of torch.

    Args:
        running: Calls the module; its ``loss_scale`` says whether there is a backward.
        tensors: Example inputs.
        more: What else has to agree.

    Returns:
        64 hexadecimal digits, or None for a model that cannot be run this way: it raises, or calls with arguments
        that have no text of their own, such as the bodies of torch's own control flow.
    """
    recorder = _Recorder()
    is_training = running.loss_scale != 0.0
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with (
            torch.inference_mode(False), torch.set_grad_enabled(is_training), torch.random.fork_rng(devices=[]), mode,
            FunctionalTensorMode(),  # as capture proper has it: what runs within tells by it what is on the device
        ):
            inputs = [_functional(mode.from_tensor(tensor.detach())) for tensor in tensors]
            members: dict[str, torch.Tensor] = {
                name: _functional(mode.from_tensor(tensor, static_shapes=True))
                for name, tensor in [*running.named_parameters(), *running.named_buffers()]
            }
            recorder.write(torch.__version__, more, running.loss_scale)
            for name, fake in [*members.items(), *((f"input {place}", fake) for place, fake in enumerate(inputs))]:
                recorder.write(name, recorder.describe(fake), fake.requires_grad)
            with _reparametrize_module(running, members), recorder:
                results = running(*inputs)
                if is_training and running.loss is not None:
                    loss = results[running.loss]
                    trained = [fake for fake in members.values() if fake.requires_grad]
                    torch.autograd.grad(loss, trained, torch.ones_like(loss), allow_unused=True)
            recorder.write(running.loss, *(recorder.describe(result) for result in results))
    except Exception:
        return None  # Capture proper says what is wrong, with all that it knows.
    return recorder.digest.hexdigest()


def _functional(tensor: torch.Tensor) -> torch.Tensor:
    wrapped: torch.Tensor = FunctionalTensor.to_functional(tensor)
    return wrapped.requires_grad_(tensor.requires_grad)


class _Recorder(TorchDispatchMode):
    """Digests every call below autograd; tensors go by the number of the call that made them."""

    supports_higher_order_operators = True  # as `Body` has it; others are refused for their arguments

    def __init__(self) -> None:
        super().__init__()
        self.digest = hashlib.sha256()
        self.numbers: dict[int, int] = {}
        self.kept: list[torch.Tensor] = []

    def write(self, *values: object) -> None:
        """Add values to the digest."""
        self.digest.update("\x1f".join(map(str, values)).encode() + b"\x1e")

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if isinstance(function, WithBodies):
            return self._call_bodies(function, *args, **(kwargs or {}))
        operands = list(self._words((args, kwargs or {})))
        result = function(*args, **(kwargs or {}))
        meta = [str(traceback.current_meta.get(key)) for key in NOTED]
        self.write(function, *operands, *self._words(result), *meta)
        return result

    def _call_bodies(
        self, function: WithBodies, bodies: Sequence[Body], trips: int, head: Sequence[torch.Tensor],
        operands: Sequence[torch.Tensor],
    ) -> list[torch.Tensor]:
        """Digest control flow by what its bodies call."""
        self.write(function, trips, len(bodies), *self._words((head, operands)))
        results = []
        for body in bodies:
            with self:  # torch takes the mode away while it handles the call
                results.append(body(*function.given(head, operands)))
            self.write("end of a body", *self._words(results[-1]))
        return fresh(results[0])

    def describe(self, tensor: torch.Tensor) -> str:
        """Return the number of a tensor; with sizes and type, or the values of a constant, when it is new."""
        known = self.numbers.get(id(tensor))
        if known is not None:
            return f"%{known}"
        number = self.numbers[id(tensor)] = len(self.numbers)
        self.kept.append(tensor)  # so that its id is not given to another
        text = f"%{number} {tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}"
        if isinstance(tensor, FunctionalTensor):
            tensor = torch._from_functional_tensor(tensor.elem)
        if isinstance(tensor, FakeTensor):
            return text
        with torch.utils._python_dispatch._disable_current_modes():
            values = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            return f"{text} {hashlib.sha256(values.numpy().tobytes()).hexdigest()}"

    def _words(self, value: Any) -> Iterator[str]:
        if isinstance(value, torch.Tensor):
            yield self.describe(value)
        elif isinstance(value, (tuple, list)):
            yield f"({len(value)}"
            for member in value:
                yield from self._words(member)
        elif isinstance(value, dict):
            for name in sorted(value):
                yield name
                yield from self._words(value[name])
        elif value is None or isinstance(
            value, (bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format),
        ):
            yield repr(value)
        else:
            raise TypeError(f"{type(value).__name__} has no text of its own")
