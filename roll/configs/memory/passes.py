"""Estimates of what a pass holds beside the states: activations, logits, gradients of the head.

Per token and layer a pass that keeps everything for the backward pass holds the inputs of its matrices, norms and
activation functions (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv
2205.05198, section 4, with the terms of attention scores left out: the kernels in use keep none). Counted here from
the model's own widths and by its kinds of norms and activation functions, because the paper's 34 bytes per token and
hidden unit are those of torch's LayerNorm and a 4h MLP without gates. `tests/unit/configs/memory/test_kept.py` holds
them against what autograd saves of every type.
"""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import replace

from roll.configs.memory.layer_shape import Eager, LayerShape, ModelShape, Recurrence, SavedElements
from roll.configs.memory.parts import Part, RoleFacts, gigabytes
from roll.configs.memory.reader import LOOKED_UP
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.model import LOGITS_PER_CHUNK_OF_SHARES, LOGITS_PER_CHUNK_ON_GPUS, Recomputed
from roll.configs.tables.families import Norm

_FP32 = 4
_CHUNK_COPIES = 4  # of a chunk in fp32: logits, their exponentials, the gradient, and one on the way


NORMS: Mapping[Norm, SavedElements] = {
    "rms": SavedElements(low=1, fp32=1),
    "rms in fp32": SavedElements(low=0, fp32=2),
    "layer": SavedElements(low=1, fp32=0),
    "layer in fp32": SavedElements(low=0, fp32=3),
    "without weights": SavedElements(low=0, fp32=1),
}
"""Numbers that a norm keeps for each of its own, beside its result, which is the input of another layer."""

ACTIVATIONS: Mapping[str, float] = {
    "relu": 0,
    "quick_gelu": 2,
    "gelu_python": 3,
    "gelu_new": 4,
    "swigluoai": 4,
    "gelu_accurate": 4,
    "xielu": 4.5,
    "gelu_fast": 7,
}
"""Numbers that an activation function keeps for each of its own, beside its result, by its name in config.json. Others
keep their input, as torch's own do."""


def layer_bytes(
    shape: ModelShape,
    layer: LayerShape,
    dtype_bytes: int,
    tensor: int = 1,
    by_position: bool = False,
    kernels: Collection[str] = (),
    in_parts: bool = False,
) -> float:
    """Bytes per token that a layer keeps for its backward pass.

    `tensor` ranks share the matrices; with `by_position` (sequence parallel) also what is between them. `kernels`:
    packages that are installed; `in_parts`: see `recurrence_bytes`. Example: Qwen2.5-7B in bf16 keeps 225 kB per token.
    """
    norm = NORMS[shape.norm].num_bytes(dtype_bytes)
    between = (layer.num_norms * norm + layer.num_inputs * dtype_bytes) * shape.hidden_size
    mixer = 0.0
    if (attention := layer.attention) is not None:
        mixer += dtype_bytes * attention.saved + norm * attention.normed + _FP32 * attention.heads
    if layer.recurrence is not None:
        mixer += recurrence_bytes(layer.recurrence, dtype_bytes, kernels, in_parts)
    inside = ACTIVATIONS.get(shape.activation, 1) + (3 if layer.is_gated else 1)  # its result, up, their product
    mlp = dtype_bytes * inside * layer.ffn_width
    routed = dtype_bytes * 2 * layer.experts_per_token * shape.hidden_size  # inputs and outputs of the experts
    routed += _FP32 * layer.routes_in_fp32 * shape.hidden_size
    return between / (tensor if by_position else 1) + (mixer + mlp + routed) / tensor


def recurrence_bytes(
    recurrence: Recurrence, dtype_bytes: int, kernels: Collection[str], in_parts: bool = False
) -> float:
    """Bytes per token that a recurrence keeps for its backward pass. `in_parts`: without the kernel for all of it,
    which knows neither adapters nor passes that only score."""
    with_kernels = recurrence.in_parts if in_parts else recurrence.in_kernels
    return (with_kernels if recurrence.package in kernels else recurrence.in_torch).num_bytes(dtype_bytes)


def product_bytes(shape: ModelShape, layer: LayerShape, dtype_bytes: int) -> float:
    """Bytes per token of a layer's input and of the results of its matrix products and its attention. A recurrence is
    computed again from what its matrices put out.

    Example: Qwen2.5-7B in bf16: 2 x (3 x 3584 + 4608 + 3584 + 2 x 18,944) = 114 kB, where `layer_bytes` are 225 kB.
    """
    mixers = sum(each is not None for each in (layer.attention, layer.recurrence))
    experts = max(1, layer.experts_per_token) + layer.has_shared if layer.ffn_width else 0
    outside = (1 + mixers + experts) * shape.hidden_size  # the input, and results
    attention = 0 if layer.attention is None else layer.attention.projected + layer.attention.mixed
    recurrence = 0 if layer.recurrence is None else layer.recurrence.projected
    products = layer.ffn_width * (2 if layer.is_gated else 1)
    return dtype_bytes * (outside + attention + recurrence + products)


def saved_bytes(
    shape: ModelShape,
    layer: LayerShape,
    dtype_bytes: int,
    recomputed: Recomputed,
    tensor: int = 1,
    by_position: bool = False,
    kernels: Collection[str] = (),
    in_parts: bool = False,
) -> float:
    """Bytes per token of a layer between its forward and its backward pass. Layers that are recomputed in full keep
    their input only."""
    if recomputed == "selective":
        return product_bytes(shape, layer, dtype_bytes)
    if recomputed == "full":
        return dtype_bytes * shape.hidden_size / (tensor if by_position else 1)
    return layer_bytes(shape, layer, dtype_bytes, tensor, by_position, kernels, in_parts)


def trained_layers(shape: ModelShape) -> list[LayerShape]:
    """Return the layers in whose passes something is kept, as often as it is."""
    return [layer for layer in shape.layers for _ in range(layer.trained_passes)]


def training_parts(facts: RoleFacts) -> tuple[Part, ...]:
    """Memory of a training pass on a rank that holds whole layers: the saved activations of each layer, one layer that
    is recomputed, and the log-probs. With enable_activation_offload, two layers' activations are on the device at a
    time."""
    tokens, needed = facts.train_tokens, _activation_bytes(facts, facts.kernels)
    head = head_parts(facts.shape, tokens, facts.dtype_bytes, logits=_logits(facts))
    lacking = sorted({each.package for each in facts.shape.recurrences} - facts.kernels - {""})
    with_kernels = tokens * _activation_bytes(facts, facts.kernels.union(lacking))
    note = f" ({_WITH} {' and '.join(lacking)} ~{gigabytes(with_kernels)})" if lacking else ""
    return (Part(f"activations{note}", tokens * needed, True), *head)


_WITH = "with the kernels of"


def _activation_bytes(facts: RoleFacts, kernels: Collection[str]) -> float:
    """Bytes per token of all layers, and of the one that is recomputed."""
    args, layers = facts.worker.model_args, trained_layers(facts.shape)
    saved = [_saved_bytes(facts, layer, args.recomputed, kernels) for layer in layers]
    whole = [_saved_bytes(facts, layer, "nothing", kernels) for layer in layers]
    stored = sum(sorted(saved)[-2:]) if args.enable_activation_offload else sum(saved)
    match args.recomputed:
        case "nothing":
            return stored
        case "full":
            return stored + max(whole)
        case "selective":
            return stored + max(0.0, *(every - part for every, part in zip(whole, saved, strict=True)))


def _saved_bytes(facts: RoleFacts, layer: LayerShape, recomputed: Recomputed, kernels: Collection[str]) -> float:
    """Bytes per token of a layer of this role between its forward and its backward pass."""
    has_lora = facts.worker.model_args.has_lora
    own = saved_bytes(facts.shape, layer, facts.dtype_bytes, recomputed, kernels=kernels, in_parts=has_lora)
    return own + (_score_bytes(facts, layer) + _fill_bytes(facts, layer, kernels) if recomputed == "nothing" else 0.0)


def _fill_bytes(facts: RoleFacts, layer: LayerShape, kernels: Collection[str]) -> float:
    """Bytes per token of what fills up the last chunk of each padded row. Example: rows of 300 tokens take two chunks
    of 256."""
    recurrence, row = layer.recurrence, facts.row
    if recurrence is None or not row or recurrence.package in kernels:
        return 0.0
    return (-row % recurrence.chunk) / row * recurrence_bytes(recurrence, facts.dtype_bytes, kernels)


def _score_bytes(facts: RoleFacts, layer: LayerShape) -> float:
    """Bytes per token of the scores of one layer of this role."""
    chosen = facts.worker.model_args.attn_implementation
    kind = facts.shape.eager
    if chosen == "eager" and kind == "no":
        kind = "plain"
    elif chosen not in (None, "auto", "eager"):
        kind = "no"
    return score_bytes(kind, layer, facts.dtype_bytes, facts.row)


def score_bytes(kind: Eager, layer: LayerShape, dtype_bytes: int, row: int) -> float:
    """Bytes per token of the scores of one layer's eager attention, which has all pairs with the tokens of a row: its
    softmax in fp32 and as the model computes, what a soft cap needs in place of the latter, or with sinks one copy."""
    plain = _FP32 + (dtype_bytes if dtype_bytes < _FP32 else 0)
    of_pair = {"no": 0, "plain": plain, "capped": 2 * _FP32, "sinks": dtype_bytes}[kind]
    return 0.0 if layer.attention is None else of_pair * layer.attention.heads * row


def waiting_parts(facts: RoleFacts) -> tuple[Part, ...]:
    """Return the parts of a training pass that wait in host memory."""
    args = facts.worker.model_args
    if not args.enable_activation_offload:
        return ()
    stored = (_saved_bytes(facts, layer, args.recomputed, facts.kernels) for layer in trained_layers(facts.shape))
    return (Part("activations (enable_activation_offload)", facts.train_tokens * sum(stored), True),)


def whole_scoring_parts(facts: RoleFacts) -> tuple[Part, ...]:
    """Memory of a pass without gradient on a rank that holds whole layers."""
    scores = facts.score_tokens * max(_score_bytes(facts, layer) for layer in facts.shape.layers)
    parts = scoring_parts(
        facts.shape, facts.dtype_bytes, facts.score_tokens, logits=_logits(facts), kernels=facts.kernels
    )
    return (*parts, *((Part("scores of attention", scores, True),) if scores else ()))


def scoring_parts(
    shape: ModelShape,
    dtype_bytes: int,
    tokens: int,
    tensor: int = 1,
    logits: int = LOGITS_PER_CHUNK_OF_SHARES,
    kernels: Collection[str] = (),
) -> tuple[Part, ...]:
    """Memory of a pass without gradient: one layer at its widest, and one chunk of `logits` logits. A recurrence has
    at most what it would keep for a backward pass."""
    widest = max(_widest(shape, layer, dtype_bytes, kernels) for layer in shape.layers) / tensor
    per_token = (3 * dtype_bytes + _FP32) * shape.hidden_size + widest
    return (Part("activations", tokens * per_token, True), _chunk(shape, tokens, tensor, logits, copies=2))


def _widest(shape: ModelShape, layer: LayerShape, dtype_bytes: int, kernels: Collection[str]) -> float:
    """Bytes per token of a layer's attention, recurrence or MLP, whichever has the most."""
    attention = 0 if layer.attention is None else layer.attention.projected + layer.attention.mixed
    recurrence = 0.0
    if layer.recurrence is not None:
        recurrence = recurrence_bytes(layer.recurrence, dtype_bytes, kernels, in_parts=True)
    mlp = (3 if layer.is_gated else 2) * layer.ffn_width + 2 * layer.experts_per_token * shape.hidden_size
    return max(dtype_bytes * attention, dtype_bytes * mlp, recurrence)


def head_parts(
    shape: ModelShape, tokens: int, gradient_bytes: int, tensor: int = 1, logits: int = LOGITS_PER_CHUNK_OF_SHARES
) -> tuple[Part, ...]:
    """Return the memory that the log-probs of a training pass add: a chunk of logits, and the head's gradient before it
    is reduced over the ranks."""
    if shape.is_critic:
        return ()
    gradient = gradient_bytes * shape.vocab_size * shape.hidden_size / tensor
    return (_chunk(shape, tokens, tensor, logits, _CHUNK_COPIES), Part("gradient of the head", gradient, True))


def fewer_to_train_on(worker: WorkerConfig) -> str:
    """Say how to make the micro batches of a trainer smaller, with the keys."""
    if worker.packed_tokens_in_train is None:
        keys = "training_args.per_device_train_batch_size, max_tokens_per_microbatch_in_train"
        return f"fewer rows or tokens in a micro batch ({keys})"
    key = "sequence_packing_args.max_packed_sequence_length_train"
    by_args = worker.sequence_packing_args.by_tokens
    return f"fewer tokens in a pack ({key if by_args else 'max_tokens_per_microbatch_in_train'})"


def fewer_to_score(worker: WorkerConfig) -> str:
    """Say how to make the micro batches of passes without gradient smaller, with the key."""
    if worker.packed_tokens_in_infer is None:
        return "a smaller infer_batch_size"
    key = "sequence_packing_args.max_packed_sequence_length_forward"
    return f"a smaller {key if worker.sequence_packing_args.by_tokens else 'max_tokens_per_microbatch_in_infer'}"


def _logits(facts: RoleFacts) -> int:
    """Number of logits that exist at once."""
    return facts.worker.model_args.fused_kernel_options.logits_per_chunk or LOGITS_PER_CHUNK_ON_GPUS


def _chunk(shape: ModelShape, tokens: int, tensor: int, logits: int, copies: int) -> Part:
    elements = 0 if shape.is_critic else min(logits, tokens * shape.vocab_size / tensor)
    return Part("logits", copies * _FP32 * elements, True)


# What a pass over tokens costs in floating-point operations, from the shape of the model, and what devices can do.

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
    """Weights that a token is multiplied with: of a mixture those of its experts, of the embedding and other tables
    none (they are looked up), but as the head where that is tied. Norms and biases are left out."""
    total = 0
    for weight in shape.weights:
        if len(weight.shape) < 2 or weight.block == LOOKED_UP or (weight.block == "embedding" and not shape.ties_head):
            continue
        in_layer = 0 <= weight.layer < shape.num_layers
        experts = shape.layers[weight.layer].experts_per_token if weight.cut == "expert" else 1
        total += math.prod(weight.shape) * experts * (shape.layers[weight.layer].passes if in_layer else 1)
    return total


def forward_flops(shape: ModelShape, tokens: float, pairs: float) -> float:
    """Floating-point operations of a forward pass over `tokens` tokens.

    Products with weights need 2 per weight and token (Kaplan et al. 2020, arXiv 2001.08361, section 2.1). q.k and the
    sum over v need 4 * layers * heads * head size per pair of a token with itself or an earlier one (Chowdhery et al.
    2022, PaLM, arXiv 2204.02311, appendix B, which also counts pairs with later tokens: twice as many). In latent
    attention, values have a size of their own. Layers with a sliding window are counted as if they saw all tokens. A
    recurrence is counted token by token, whatever its chunks compute beside that.

    Example: 10 tokens in a row make 55 pairs; 1e9 weights and 16 layers of 32 heads of 64: 2e10 + 7.2e6.
    """
    attention = 2 * sum(layer.passes * layer.attention.products for layer in shape.layers if layer.attention)
    recurrence = 2 * sum(recurrence.products for recurrence in shape.recurrences)
    return (2.0 * matrix_elements(shape) + recurrence) * tokens + attention * pairs


def training_flops(shape: ModelShape, tokens: float, pairs: float) -> float:
    """Floating-point operations of a forward and a backward pass, which computes two gradients for every product: three
    times `forward_flops`, but for passes through a layer that have no gradient. Indexers (DeepSeek-V3.2) have none
    either, and are counted as if they had."""
    backward = replace(shape, layers=tuple(replace(layer, passes=layer.trained_passes) for layer in shape.layers))
    return forward_flops(shape, tokens, pairs) + 2 * forward_flops(backward, tokens, pairs)


def peak_flops(device_name: str) -> float | None:
    """Return the peak FLOPs per second of a device, by its name in CUDA; None if the table does not have it.

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
