"""Costs of a pass over tokens in floating-point operations, from the shape of the model, and what devices can do."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from roll.configs.memory.layer_shape import ModelShape
from roll.configs.memory.model_shape import model_shape
from roll.configs.sections.model import Head


@dataclass(frozen=True)
class Gpu:
    """A device of gpus.yaml, in its units."""

    name: str
    tflops: float
    bandwidth: float
    link: float
    memory: float


_NO_MATTER = re.compile(r"\d+GB|HBM\d\w*|SXM\d*|PCIE")  # what may follow: another word is another device


def forward_flops(shape: ModelShape, tokens: float, pairs: float) -> float:
    """Floating-point operations of a forward pass over `tokens` tokens.

    Products with weights need 2 per weight and token (Kaplan et al. 2020, arXiv 2001.08361, section 2.1). q.k and the
    sum over v need 4 * layers * heads * head size per pair of a token with itself or an earlier one (Chowdhery et al.
    2022, PaLM, arXiv 2204.02311, appendix B, which also counts pairs with later tokens: twice as many). In latent
    attention, values have a size of their own. Layers with a sliding window are counted as if they saw all tokens. A
    recurrence is counted as transformers computes it in torch.

    Example: 10 tokens in a row make 55 pairs; 1e9 weights and 16 layers of 32 heads of 64: 2e10 + 7.2e6.
    """
    attention = 2 * sum(layer.pair_products for layer in shape.layers)
    return 2.0 * (shape.products + shape.head_products) * tokens + attention * pairs


def training_flops(shape: ModelShape, tokens: float, pairs: float) -> float:
    """Floating-point operations of a forward and a backward pass, which computes two gradients for every product: three
    times `forward_flops`, but for passes through a layer that have no gradient. Indexers (DeepSeek-V3.2) have none
    either, and are counted as if they had."""
    return 3 * forward_flops(shape, tokens, pairs) - 4.0 * (shape.products - shape.trained_products) * tokens


@dataclass(frozen=True)
class ModelFlops:
    """Floating-point operations of passes of a model."""

    shape: ModelShape

    def forward(self, tokens: float, pairs: float) -> float:
        return forward_flops(self.shape, tokens, pairs)

    def training(self, tokens: float, pairs: float) -> float:
        return training_flops(self.shape, tokens, pairs)


def model_flops(model: Mapping[str, Any], head: Head) -> ModelFlops | None:
    """Return those of the model of a config.json; None where its shape is not known."""
    shape, _ = model_shape(model, head)
    return None if shape is None else ModelFlops(shape)


@cache
def gpu_of(device_name: str) -> Gpu | None:
    """Return the device of this name; None if gpus.yaml lacks it. Example: "NVIDIA A100-SXM4-80GB", "a100"."""
    words = device_name.upper().replace("-", " ").split()
    table = yaml.safe_load(Path(__file__).with_name("gpus.yaml").read_text(encoding="utf-8"))
    for gpu in (Gpu(name, **figures) for name, figures in table.items()):
        wanted = gpu.name.upper().split()
        for place in range(len(words)):
            here, rest = words[place:], [word for word in words[place:] if word not in wanted]
            if here[0] == wanted[0] and {*wanted} <= {*here} and all(map(_NO_MATTER.fullmatch, rest)):
                return gpu
    return None


def peak_flops(device_name: str) -> float | None:
    """Return the peak FLOPs per second of a device, by its name in CUDA; None if gpus.yaml does not have it."""
    gpu = gpu_of(device_name)
    return None if gpu is None else gpu.tflops * 1e12
