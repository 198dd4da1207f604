"""Read words from made-up speech: CTC loss over frames whose letters are not aligned, then a beam search.

    python examples/speech.py
    python examples/speech.py --half --epochs 10
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import poptorch
import torch
from torch import nn
from torch.utils.data import TensorDataset
from tqdm import tqdm

from command_line import make_parser, positive

LETTERS = "aeioubdgkt"
BLANK = 0  # class 0 stands for no letter; letter k is class k + 1
CHANNELS, FRAMES, LONGEST = 20, 36, 5


@dataclass(frozen=True)
class Speech:
    """Utterances: sounds `[N, T, C]`, their lengths `[N]`, letters `[N, S]` padded with blanks, their lengths `[N]`."""

    sounds: torch.Tensor
    num_frames: torch.Tensor
    letters: torch.Tensor
    num_letters: torch.Tensor

    def dataset(self) -> TensorDataset:
        """Return the utterances as a dataset."""
        return TensorDataset(self.sounds, self.num_frames, self.letters, self.num_letters)


def speak(count: int, generator: torch.Generator, noise: float = 0.4) -> Speech:
    """Make up utterances: every letter is a spectrum that is held for two to five frames, with noise over all.

    Args:
        count: Utterances.
        generator: Chooses words, durations and noise; the spectra of the letters are always the same.
        noise: Standard deviation beside spectra of 1.
    """
    spectra = torch.randn(len(LETTERS), CHANNELS, generator=torch.Generator().manual_seed(5))
    sounds = noise * torch.randn(count, FRAMES, CHANNELS, generator=generator)
    letters = torch.full((count, LONGEST), BLANK)
    num_letters = torch.randint(2, LONGEST + 1, (count,), generator=generator)
    num_frames = torch.empty(count, dtype=torch.int64)
    for number, length in enumerate(num_letters.tolist()):
        word = torch.randint(len(LETTERS), (length,), generator=generator)
        held = torch.randint(2, 6, (length,), generator=generator)
        pauses = torch.randint(0, 3, (length,), generator=generator)
        frame = 0
        for letter, duration, pause in zip(word.tolist(), held.tolist(), pauses.tolist(), strict=True):
            frame += pause
            sounds[number, frame : frame + duration] += spectra[letter]
            frame += duration
        letters[number, :length] = word + 1
        num_frames[number] = frame
    return Speech(sounds, num_frames, letters, num_letters)


class Listener(nn.Module):
    """A convolution over neighbouring frames, a GRU, and the probabilities of letters and blank in each frame."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.near = nn.Conv1d(CHANNELS, width, 3, padding=1)
        self.far = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, len(LETTERS) + 1)
        self.loss = nn.CTCLoss(blank=BLANK, reduction="mean", zero_infinity=True)

    def forward(
        self, sounds: torch.Tensor, num_frames: torch.Tensor, letters: torch.Tensor | None = None,
        num_letters: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Return the loss of sounds `[N, T, C]` when letters `[N, S]` are given; else what the beam search reads."""
        near = torch.relu(self.near(sounds.transpose(1, 2))).transpose(1, 2)
        log_probabilities = torch.log_softmax(self.head(self.far(near)[0]), dim=2).transpose(0, 1)
        if letters is None:
            return poptorch.ctc_beam_search_decoder(log_probabilities, num_frames, blank=BLANK, beam_width=8)
        return log_probabilities, self.loss(log_probabilities, letters, num_frames, num_letters)


@dataclass(frozen=True)
class Result:
    """What a run reached: the loss of each call, and the share of new words that are read without a fault."""

    losses: tuple[float, ...]
    words_read: float


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    number, real = positive(int), positive(float)
    parser.add_argument("--half", action="store_true", help="keep weights and sounds in half, with a loss scale of 128")
    parser.add_argument("--width", type=number, default=64, help="of the hidden layers")
    parser.add_argument("--batch-size", type=number, default=16, help="utterances in a micro-batch")
    parser.add_argument("--device-iterations", type=number, default=8, help="weight updates in one call")
    parser.add_argument("--epochs", type=number, default=6, help="passes over the utterances")
    parser.add_argument("--learning-rate", type=real, default=0.004, help="of Adam")
    parser.add_argument("--num-utterances", type=number, default=2_048, help="to learn from")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the utterances")
    return parser.parse_args(arguments)


def train(model: Listener, speech: Speech, flags: argparse.Namespace) -> list[float]:
    """Train and return the loss of each call."""
    options = poptorch.Options()
    options.deviceIterations(flags.device_iterations)
    options.randomSeed(flags.seed)
    options.Precision.enableStochasticRounding(flags.half)
    loader = poptorch.DataLoader(options, speech.dataset(), batch_size=flags.batch_size, shuffle=True)
    if len(loader) == 0:
        raise SystemExit(f"one call takes {loader.combinedBatchSize} utterances: raise --num-utterances")
    optimiser = poptorch.optim.Adam(
        model.parameters(), lr=flags.learning_rate, loss_scaling=128.0 if flags.half else 1.0,
    )
    training_model = poptorch.trainingModel(model, options, optimizer=optimiser)
    losses: list[float] = []
    for epoch in range(flags.epochs):
        bar = tqdm(loader, desc=f"Epoch {epoch + 1}/{flags.epochs}")
        for batch in bar:
            _, loss = training_model(*batch)
            losses.append(float(loss))
            bar.set_postfix(loss=f"{losses[-1]:.4f}")
    training_model.detachFromDevice()
    return losses


def words_read(model: Listener, speech: Speech) -> float:
    """Return the share of utterances whose word the beam search finds."""
    reader = poptorch.inferenceModel(model.eval())
    _, lengths, found = reader(speech.sounds, speech.num_frames)
    lengths, found = lengths[:, 0].long(), found[:, 0, :LONGEST].long()
    width = torch.arange(LONGEST)
    same = (found == speech.letters) | (width >= speech.num_letters[:, None])
    return float((same.all(dim=1) & (lengths == speech.num_letters)).float().mean())


def run(arguments: Sequence[str] | None = None) -> Result:
    """Run the example with the arguments of a command line."""
    flags = parse_arguments(arguments)
    torch.manual_seed(flags.seed)
    generator = torch.Generator().manual_seed(flags.seed)
    heard, unheard = speak(flags.num_utterances, generator), speak(256, generator)
    model = Listener(flags.width)
    if flags.half:
        model = model.half()
        heard, unheard = (
            Speech(one.sounds.half(), one.num_frames, one.letters, one.num_letters) for one in (heard, unheard)
        )
    losses = train(model, heard, flags)
    read = words_read(model, unheard)
    print(f"loss {losses[0]:.4f} at first, {losses[-1]:.4f} at last; {read:.2%} of the new words read without a fault")
    return Result(tuple(losses), read)


if __name__ == "__main__":
    run()
