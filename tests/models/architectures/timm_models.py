"""Architectures of timm: images `[4, 3, H, W]` to ten classes, with fewer blocks where the model lets one choose."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.architectures.architecture import Architecture, Inputs
from tests.models.architectures.torchvision_schemas import import_torchvision

NUM_CLASSES = 10
BATCH = 4

# Side of the images and what differs from the package's defaults. A side of 64 leaves 2x2 positions at the usual
# stride of 32, so that batch normalisation sees 16 values; with 4 the gradients of inception_v3 are rounding errors.
MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "densenet121": (64, {"block_config": (2, 2, 2, 2)}),
    "dla34": (64, {}),
    "dpn48b": (64, {}),
    "efficientnet_b0": (64, {}),
    "ghostnet_050": (64, {}),
    "hrnet_w18_small": (64, {}),
    "inception_v3": (128, {}),
    "mnasnet_small": (64, {}),
    "mobilenetv2_100": (64, {}),
    "mobilenetv3_small_050": (64, {}),
    "nf_regnet_b0": (64, {}),
    "regnetx_002": (64, {}),
    "regnety_002": (64, {}),
    "res2net50_14w_8s": (64, {"layers": (1, 1, 1, 1)}),
    "resnest14d": (64, {}),
    "resnet18": (64, {}),
    "resnet50": (64, {}),
    "resnext50_32x4d": (64, {"layers": (1, 2, 2, 1)}),
    "seresnet50": (64, {"layers": (1, 2, 2, 1)}),
    "tf_efficientnetv2_b0": (64, {}),
    "vgg11_bn": (64, {"mlp_ratio": 1 / 64}),
    "nasnetalarge": (96, {"stem_size": 8, "num_features": 96}),
    "pnasnet5large": (96, {}),
    "rdnet_tiny": (64, {}),
    "beit_base_patch16_224": (32, {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 48, "num_heads": 4}),
    "cait_xxs24_224": (32, {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 48, "num_heads": 4}),
    "coat_lite_tiny": (64, {"img_size": 64}),
    "convnext_atto": (64, {"depths": (1, 1, 2, 1)}),
    "deepseek_vit_412m": (32, {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 48, "num_heads": 4}),
    "deit3_small_patch16_224": (32, {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 48, "num_heads": 4}),
    "edgenext_xx_small": (64, {}),
    "eva02_tiny_patch14_224": (32, {"img_size": 32, "patch_size": 8, "depth": 2}),
    "levit_128s": (128, {"img_size": 128}),
    "mixer_s32_224": (128, {"img_size": 128}),
    "mobilevit_xxs": (64, {}),
    "pit_ti_224": (64, {"img_size": 64, "depth": (1, 1, 1)}),
    "poolformer_s12": (64, {}),
    "repvgg_a0": (64, {}),
    "resmlp_12_224": (64, {"img_size": 64}),
    "swin_tiny_patch4_window7_224": (
        64, {"img_size": 64, "window_size": 4, "depths": (2, 2, 1, 1), "embed_dim": 24, "num_heads": (1, 2, 2, 2)},
    ),
    "vit_tiny_patch16_224": (32, {"img_size": 32, "patch_size": 8, "depth": 2}),
    "xcit_nano_12_p16_224": (64, {"img_size": 64, "depth": 2}),
}


class Classifier(nn.Module):
    """A model with the loss that it is trained with."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        logits = self.model(images)
        # Some models have two heads, and return the results of both when they train.
        several = list(logits) if isinstance(logits, tuple) else [logits]
        loss = torch.stack([F.cross_entropy(each, labels) for each in several]).sum()
        return loss, several


def make(name: str) -> tuple[nn.Module, Inputs]:
    """Return a model of timm, and images and labels."""
    import_torchvision()
    import timm

    side, changes = MODELS[name]
    model = timm.create_model(name, pretrained=False, num_classes=NUM_CLASSES, **changes)
    images = torch.randn(BATCH, 3, side, side)
    return Classifier(model), {"images": images, "labels": torch.randint(NUM_CLASSES, (BATCH,))}


TIMM = tuple(Architecture(name, "timm", functools.partial(make, name)) for name in MODELS)
