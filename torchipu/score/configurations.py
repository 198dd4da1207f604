"""The run that a published row states, read from its words: any batch, number of IPUs or length of these models.

What a row leaves open is taken from rows of the same model, said beside the rule.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import gcd

import torch

from torchipu.score.programs import Frozen
from torchipu.score.rows import Line
from torchipu.score.runs import (
    BASE,
    PACKED,
    Cnn,
    Run,
    Swin,
    Vit,
    answering,
    bert,
    card,
    eight_ipus,
    images,
    resnet,
    vit,
)
from torchipu.target import TARGETS

RESNET_BATCHES = 22, 20  # V007 and V001
LARGE_BATCHES = {128: 8, 384: 2, 512: 2}  # V063, V067; at 384 as at 512
BASE_BATCHES = {128: 32, 512: 8}  # V073, V074
VIT_BATCH = 16  # 17 of V042 do not divide V039's update
MLPERF_BATCH, MLPERF_ACCUMULATION = 2, 192  # V011
EIGHT_ACCUMULATIONS = {16: 256, 64: 96}  # V016 and V017, by IPUs
MACHINES = {"GC200": ("mk2", "pod"), "Mk2": ("mk2", "pod"), "Bow": ("bow", "bow-pod")}
SWIN_SIDES = 224, 384  # of Swin-Large as it was published
MANY = 100  # micro-batches, of which one more or less changes a rate by less than 1 %
IPUS_OF_A_HOST = 16  # estimate: a larger system has a host, and a process there, for each POD16 that it is made of
IPUS_OF_ONE_CHIP = 64  # that a target named by its chip has; of more a system is named


def run_of(line: Line) -> Run | None:
    """Return what a row ran; None where its words do not say.

    Args:
        line: With ``chip``, ``n_ipu``, ``workload`` and ``config``.
    """
    words = f"{line.text('workload')} {line.text('config')}"
    if line.text("chip") == "C600":
        return _inference(words)
    if not _machine(line):
        return None
    run = _training(line, words)
    if run is None:
        return None
    processes = max(1, line.size_in("n_ipu") // IPUS_OF_A_HOST)
    return replace(run, options=replace(run.options, processes=gcd(processes, run.options.replicas)))


def _training(line: Line, words: str) -> Run | None:
    if "ResNet-50" in words and "press" not in words:
        return _resnet(line, words)
    if "BERT" in words:
        return _bert(line, words)
    if words.startswith("ViT-B/16"):
        return _vit(line, words)
    if words.startswith("128x128 CNN"):
        return Run(Cnn(_number(r"mb(\d+)", words) or 16), Frozen(_machine(line), replicas=line.size_in("n_ipu")))
    return None


def is_on_device(line: Line) -> bool:
    """Whether inputs are made on the device, so that the host's streams do not count."""
    return "synthetic" in line.text("workload") + line.text("config")


def _number(pattern: str, words: str) -> int | None:
    """Return the number that a pattern's group finds, whose thousands may be set apart by commas."""
    found = re.search(pattern, words)
    return int(found[1].replace(",", "")) if found else None


def _memory(words: str) -> float | None:
    found = re.search(r"AMP (\d*\.\d+)", words)
    return float(found[1]) if found else None


def _machine(line: Line) -> str:
    """Return the name of a target; empty where there is none for the chip, or for so many of them."""
    number = line.size_in("n_ipu")
    chip, system = MACHINES.get(line.text("chip"), ("", ""))
    name = f"{system}{number}"
    return name if name in TARGETS else chip if number <= IPUS_OF_ONE_CHIP else ""


def _accumulation(words: str, micro_batches: int, packing: float = 1.0, *, is_about: bool = False) -> int | None:
    """Return micro-batches of an update, from its samples and those of a micro-batch of all replicas.

    Args:
        words: Of the row.
        micro_batches: Samples of a micro-batch of all replicas.
        packing: Samples of an input.
        is_about: Whether the samples may be no multiple, where there are many: pages of results round them.
    """
    samples = _number(r"GBS([\d,]+)", words)
    if samples is None:
        return _number(r"GA(\d+)", words)
    count, rest = divmod(round(samples / packing), micro_batches)
    if rest and is_about and count >= MANY:
        return round(samples / packing / micro_batches)
    return None if rest else count


# --------------------------------------------------------------------------- training
def _resnet(line: Line, words: str) -> Run | None:
    replicas, memory = line.size_in("n_ipu"), _memory(words) or 0.15
    batch = _number(r"mb(\d+)", words) or _number(r"\d+ x (\d+) x GA", words)
    accumulation = _number(r"GA(\d+)", words)
    if batch is None or accumulation is None:
        counts = ((one, _accumulation(words, one * replicas)) for one in RESNET_BATCHES)
        batch, accumulation = next(((one, count) for one, count in counts if count), (None, None))
    if batch is None or accumulation is None:
        return None
    return resnet(_machine(line), replicas, batch, accumulation, memory, layerwise="LARS" in words)


def _bert(line: Line, words: str) -> Run | None:
    length = _number(r"SL(\d+)", words)
    ipus, is_base = line.size_in("n_ipu"), "BERT-Base" in words
    is_of_mlcommons = "LAMB" in words and not is_base
    if is_of_mlcommons and line.text("chip") == "Bow":  # V020 says that it is as V016
        micro_batches = _number(r"GA(\d+)", words) or EIGHT_ACCUMULATIONS.get(ipus)
        return None if micro_batches is None else eight_ipus(_machine(line), micro_batches, ipus // 8)
    replicas = ipus // 4
    batches = BASE_BATCHES if is_base else LARGE_BATCHES
    if length not in batches or not replicas:
        return None
    is_packed = re.search(r"\bpacked", words) is not None
    if is_of_mlcommons:
        return _mlperf(line, words, length, replicas)
    batch = _number(r"mb(\d+)", words) or batches[length]
    accumulation = _accumulation(words, batch * replicas, is_about=True)
    if accumulation is None:
        return None
    answers = "SQuAD" in words
    if is_base:
        return bert(_machine(line), length, batch, accumulation, replicas=replicas, size=BASE, layers=(0, 4, 4, 4),
                    memory=(0.25,) * 4, packed=is_packed, answers=answers)
    return bert(_machine(line), length, batch, accumulation, replicas=replicas, packed=is_packed, answers=answers)


def _mlperf(line: Line, words: str, length: int, replicas: int) -> Run | None:
    """Of MLCommons: samples of an update are sequences, of which a pack has several."""
    batch, accumulation = _number(r"mb(\d+)", words), _number(r"GA(\d+)", words) or MLPERF_ACCUMULATION
    if batch is None:
        per_batch = _accumulation(words, accumulation * replicas, PACKED[length]) if "GBS" in words else None
        batch = per_batch or MLPERF_BATCH
    return bert(_machine(line), length, batch, accumulation, replicas=replicas, memory=(0.2, 0.2, 0.25, 0.25),
                packed=True)


def _vit(line: Line, words: str) -> Run | None:
    batch = _number(r"mb(\d+)", words) or VIT_BATCH
    replicas = max(1, line.size_in("n_ipu") // 4)
    accumulation = _accumulation(words, batch * replicas)
    return None if accumulation is None else vit(_machine(line), batch, accumulation, replicas)


# --------------------------------------------------------------------------- inference
def _inference(words: str) -> Run | None:
    batch, length = _number(r"batch (\d+)", words), _number(r"SL(\d+)", words)
    is_narrow = re.search(r"fp8", words, re.IGNORECASE) is not None
    if batch is None or "packed" in words:
        return None
    dtype = torch.float if "fp32" in words else torch.half
    if words.startswith("ResNet-50"):
        narrow = "" if not is_narrow else "all" if "all-FP8" in words else "blocks"
        return images(batch, dtype, overlap="synthetic" not in words, bytes_in="8-bit input" in words, narrow=narrow)
    if words.startswith("BERT-Base") and length is not None:
        # PopRT's table for SQuAD converts an ONNX model and names no option; rows that do are of tuned examples.
        exported = "SQuAD" in words and _memory(words) is None
        return answering(batch, length, dtype, _memory(words), narrow=is_narrow, exported=exported)
    if words.startswith("ViT-B/16") and not is_narrow:
        return card(Vit(batch, (12,), trains=False), memory=_memory(words))
    side = _number(r"^Swin-Large (\d+)", words)
    if side in SWIN_SIDES and dtype is torch.half and not is_narrow:
        return card(Swin(batch, side), memory=_memory(words))
    return None
