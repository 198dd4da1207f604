"""`torch.nn.AdaptiveLogSoftmaxWithLoss` in shapes that no target decides: each cluster sees all rows, and masks choose.

torch picks the rows of each cluster, which costs less on the host, and whose number only the targets know.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import AdaptiveLogSoftmaxWithLoss
from torch.nn.modules import adaptive

from torchipu.capture.process_wide import replaced


@contextlib.contextmanager
def clusters_masked() -> Iterator[None]:
    """Let such layers compute so meanwhile."""
    with (
        replaced(AdaptiveLogSoftmaxWithLoss, "forward", forward),
        replaced(AdaptiveLogSoftmaxWithLoss, "predict", predict),
    ):
        yield


def forward(self: AdaptiveLogSoftmaxWithLoss, input_: Tensor, target_: Tensor) -> Any:
    """Return the logarithms of the targets' probabilities, `[N]`, and their mean with the sign turned.

    A target beyond the classes ends the run, as in torch.

    Args:
        self: The layer.
        input_: `[N, C]`, or `[C]`.
        target_: `[N]`, or without dimension.

    Raises:
        RuntimeError: Sizes that torch refuses, in its words.
    """
    _check_sizes(input_, target_)
    is_batched = target_.dim() > 0
    input, target = (input_, target_) if is_batched else (input_.unsqueeze(0), target_.unsqueeze(0))
    head = F.log_softmax(self.head(input), dim=1)
    output = head.gather(1, target.clamp(0, self.shortlist_size - 1).unsqueeze(1)).squeeze(1)
    for place, (first, end) in enumerate(itertools.pairwise(self.cutoffs)):
        cluster = F.log_softmax(self.tail[place](input), dim=1)
        within = cluster.gather(1, (target - first).clamp(0, end - first - 1).unsqueeze(1)).squeeze(1)
        output = torch.where(target >= first, within + head[:, self.shortlist_size + place], output)
    are_classes = ((target >= 0) & (target < self.n_classes)).all()
    torch._assert_async(are_classes, f"Target values should be in [0, {self.n_classes - 1}]")
    loss = (-output).mean()
    return adaptive._ASMoutput(output if is_batched else output.squeeze(0), loss)


def predict(self: AdaptiveLogSoftmaxWithLoss, input: Tensor) -> Tensor:
    """Return the likeliest class of each row, `[N]`.

    Args:
        self: The layer.
        input: `[N, C]`.
    """
    head = self.head(input)
    likeliest = torch.argmax(head, dim=1)
    among_all = torch.argmax(self._get_full_log_prob(input, head), dim=1)
    return torch.where(likeliest >= self.shortlist_size, among_all, likeliest)


def _check_sizes(input: Tensor, target: Tensor) -> None:
    if target.dim() > 1:
        raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
    if target.dim() == 1 and input.shape[0] != target.shape[0]:
        raise RuntimeError("Input and target should have the same size in the batch dimension.")
    if input.dim() != target.dim() + 1:
        raise RuntimeError(
            f"{target.dim()}D target tensor expects {target.dim() + 1}D input tensors, but found inputs with size "
            f"{input.size()}"
        )


TRACED: Mapping[Callable[..., Any], Callable[..., Any]] = {
    AdaptiveLogSoftmaxWithLoss.forward: forward, AdaptiveLogSoftmaxWithLoss.predict: predict,
}
"""What Dynamo traces in the place of the layer's own methods."""
