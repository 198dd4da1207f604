"""All architectures, and those among them that are quick enough for every run of the tests."""

from __future__ import annotations

import importlib.util
import random

from tests.models.architectures.architecture import Architecture
from tests.models.architectures.timm_models import TIMM
from tests.models.architectures.transformers_families import TRANSFORMERS_FAMILIES
from tests.models.architectures.transformers_models import TRANSFORMERS

ALL = (*TIMM, *TRANSFORMERS, *TRANSFORMERS_FAMILIES)
PACKAGES = ("timm", "transformers")

# Those that take a few seconds, and of which a seed draws.
QUICK = (
    "beit_base_patch16_224", "cait_xxs24_224", "pit_ti_224", "resnet18", "swin_tiny_patch4_window7_224",
    "vit_tiny_patch16_224", "vgg11_bn", "xcit_nano_12_p16_224", "bert", "bloom", "falcon", "gpt_neo", "gpt_neox",
    "gptj",
    "llama", "mistral", "mixtral", "modernbert", "opt", "qwen2", "roberta", "t5", "vit",
)


def named(name: str) -> Architecture:
    """Return the architecture of this name."""
    return next(architecture for architecture in ALL if architecture.name == name)


def drawn(seed: int, count: int = 8) -> list[Architecture]:
    """Return some of the quick architectures, the same for the same seed."""
    return [named(name) for name in sorted(random.Random(seed).sample(QUICK, count))]


def missing_libraries() -> list[str]:
    """Return the libraries that are not installed."""
    return [package for package in PACKAGES if importlib.util.find_spec(package) is None]
