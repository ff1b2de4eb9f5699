"""What a pass over tokens costs in floating-point operations, from the shape of the model, and what devices can do."""

import re
from collections.abc import Mapping

from roll.configs.memory.model_shape import ModelShape

TRAINING_PASSES = 3
"""Of a training step, in forward passes: the backward pass computes two gradients for every product."""

_PEAK_TFLOPS: Mapping[str, float] = {
    "B200": 2250,
    "GH200": 989.4,
    "H200 NVL": 835.5,
    "H200": 989.4,
    "H100 NVL": 835.5,
    "H100 PCIe": 756,
    "H100 80GB HBM3": 989.4,
    "H800 PCIe": 756,
    "H800": 989.4,
    "H20": 148,
    "A100": 312,
    "A800": 312,
    "A40": 149.7,
    "A30": 165,
    "A10": 125,
    "RTX A6000": 154.8,
    "L40S": 362.05,
    "L40": 181.05,
    "L20": 119.5,
    "L4": 121,
    "GeForce RTX 4090": 165.2,
    "GeForce RTX 3090": 71,
    "V100 PCIE": 112,
    "V100": 125,
    "T4": 65,
}
"""Dense bf16 on tensor cores (fp16 where there is no bf16), with fp32 sums, from NVIDIA's data sheets."""
_NO_MATTER = re.compile(r"\d+GB|HBM\d\w*|SXM\d*|PCIe|PCIE")  # what may follow: another word is another device


def matrix_elements(shape: ModelShape) -> int:
    """Weights that a token is multiplied with: of a mixture those of its experts, of the embedding none (it is looked
    up), but as the head where that is tied. Norms and biases are left out."""
    total = 0
    for weight in shape.weights:
        if len(weight.shape) < 2 or (weight.block == "embedding" and not shape.ties_head):
            continue
        rows, columns = weight.shape
        total += rows * columns * (shape.experts_per_token if weight.cut == "expert" else 1)
    return total


def forward_flops(shape: ModelShape, tokens: float, pairs: float) -> float:
    """Floating-point operations of a forward pass over `tokens` tokens.

    Products with weights need 2 per weight and token (Kaplan et al. 2020, arXiv 2001.08361, section 2.1). q.k and the
    sum over v need 4 * layers * heads * head size per pair of a token with itself or an earlier one (Chowdhery et al.
    2022, PaLM, arXiv 2204.02311, appendix B, which also counts pairs with later tokens: twice as many). In latent
    attention, values have a size of their own. Layers with a sliding window are counted as if they saw all tokens.

    Example: 10 tokens in a row make 55 pairs; 1e9 weights and 16 layers of 32 heads of 64: 2e10 + 7.2e6.
    """
    attention = 2 * shape.num_layers * shape.attention.products
    return 2.0 * matrix_elements(shape) * tokens + attention * pairs


def peak_flops(device_name: str) -> float | None:
    """What one device of this name, as CUDA has it, can do per second; None where the table does not say.

    Example: "NVIDIA A100-SXM4-80GB" -> 3.12e14.
    """
    words = device_name.replace("-", " ").split()
    for name, tflops in _PEAK_TFLOPS.items():
        wanted = name.split()
        for place in range(len(words)):
            head, rest = words[place : place + len(wanted)], words[place + len(wanted) :]
            if head == wanted and all(_NO_MATTER.fullmatch(word) for word in rest):
                return tflops * 1e12
    return None
