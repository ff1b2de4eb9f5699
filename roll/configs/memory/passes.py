"""Estimates of what a pass holds beside the states: activations, logits, gradients of the head."""

from roll.configs.memory.layer_shape import Eager, LayerShape, ModelShape
from roll.configs.memory.parts import Part, RoleFacts
from roll.configs.sections.model import LOGITS_PER_CHUNK_OF_SHARES, LOGITS_PER_CHUNK_ON_GPUS, Recomputed

_FP32 = 4
_CHUNK_COPIES = 4  # of a chunk in fp32: logits, their exponentials, the gradient, and one on the way


def layer_bytes(layer: LayerShape, dtype_bytes: int, tensor: int = 1, by_position: bool = False) -> float:
    """Bytes per token that a layer keeps for its backward pass.

    `tensor` ranks share what is inside attention and MLP; with `by_position` (sequence parallel) also what is between
    them. Example: Qwen2.5-7B in bf16 keeps 225 kB per token.
    """
    between, inside = (part.num_bytes(dtype_bytes) for part in (layer.between, layer.inside))
    return between / (tensor if by_position else 1) + inside / tensor


def saved_bytes(
    shape: ModelShape,
    layer: LayerShape,
    dtype_bytes: int,
    recomputed: Recomputed,
    tensor: int = 1,
    by_position: bool = False,
) -> float:
    """Bytes per token of a layer between its forward and its backward pass. Layers that are recomputed in full keep
    their input only; with "selective", also the results of matrix products and attention.

    Example: Qwen2.5-7B in bf16 keeps 2 x (3 x 3584 + 4608 + 3584 + 2 x 18,944) = 114 kB so, and 225 kB of everything.
    """
    if recomputed == "selective":
        return dtype_bytes * layer.products
    if recomputed == "full":
        return dtype_bytes * shape.hidden_size / (tensor if by_position else 1)
    return layer_bytes(layer, dtype_bytes, tensor, by_position)


def trained_layers(shape: ModelShape) -> list[LayerShape]:
    """Return the layers in whose passes something is kept, as often as it is."""
    return [layer for layer in shape.layers for _ in range(layer.trained_passes)]


def training_parts(facts: RoleFacts) -> tuple[Part, ...]:
    """Memory of a training pass on a rank that holds whole layers: the saved activations of each layer, one layer that
    is recomputed, and the log-probs. With enable_activation_offload, two layers' activations are on the device at a
    time."""
    head = head_parts(facts.shape, facts.train_tokens, facts.dtype_bytes, logits=_logits(facts))
    lacking = " and ".join(facts.shape.lacking)
    name = f"activations (less with the kernels of {lacking}, not installed here)" if lacking else "activations"
    return (Part(name, facts.train_tokens * _activation_bytes(facts), True), *head)


def _activation_bytes(facts: RoleFacts) -> float:
    """Bytes per token of all layers, and of the one that is recomputed."""
    args, layers = facts.worker.model_args, trained_layers(facts.shape)
    saved = [_saved_bytes(facts, layer, args.recomputed) for layer in layers]
    whole = [_saved_bytes(facts, layer, "nothing") for layer in layers]
    stored = sum(sorted(saved)[-2:]) if args.enable_activation_offload else sum(saved)
    match args.recomputed:
        case "nothing":
            return stored
        case "full":
            return stored + max(whole)
        case "selective":
            return stored + max(0.0, *(every - part for every, part in zip(whole, saved, strict=True)))


def _saved_bytes(facts: RoleFacts, layer: LayerShape, recomputed: Recomputed) -> float:
    """Bytes per token of a layer of this role between its forward and its backward pass."""
    own = saved_bytes(facts.shape, layer, facts.dtype_bytes, recomputed)
    return own + (_score_bytes(facts, layer) if recomputed == "nothing" else 0.0)


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
    return of_pair * layer.heads * row


def waiting_parts(facts: RoleFacts) -> tuple[Part, ...]:
    """Return the parts of a training pass that wait in host memory."""
    args = facts.worker.model_args
    if not args.enable_activation_offload:
        return ()
    stored = (_saved_bytes(facts, layer, args.recomputed) for layer in trained_layers(facts.shape))
    return (Part("activations (enable_activation_offload)", facts.train_tokens * sum(stored), True),)


def whole_scoring_parts(facts: RoleFacts) -> tuple[Part, ...]:
    """Memory of a pass without gradient on a rank that holds whole layers."""
    scores = facts.score_tokens * max(_score_bytes(facts, layer) for layer in facts.shape.layers)
    parts = scoring_parts(facts.shape, facts.dtype_bytes, facts.score_tokens, logits=_logits(facts))
    return (*parts, *((Part("scores of attention", scores, True),) if scores else ()))


def scoring_parts(
    shape: ModelShape, dtype_bytes: int, tokens: int, tensor: int = 1, logits: int = LOGITS_PER_CHUNK_OF_SHARES
) -> tuple[Part, ...]:
    """Memory of a pass without gradient: one layer at its widest, and one chunk of `logits` logits."""
    widest = max(layer.widest.num_bytes(dtype_bytes) for layer in shape.layers) / tensor
    per_token = (3 * dtype_bytes + _FP32) * shape.hidden_size + widest
    return (Part("activations", tokens * per_token, True), _chunk(shape, tokens, tensor, logits, copies=2))


def head_parts(
    shape: ModelShape, tokens: int, gradient_bytes: int, tensor: int = 1, logits: int = LOGITS_PER_CHUNK_OF_SHARES
) -> tuple[Part, ...]:
    """Return the memory that the log-probs of a training pass add: a chunk of logits, and the head's gradient before it
    is reduced over the ranks."""
    if shape.is_critic:
        return ()
    gradient = gradient_bytes * shape.vocab_size * shape.hidden_size / tensor
    return (_chunk(shape, tokens, tensor, logits, _CHUNK_COPIES), Part("gradient of the head", gradient, True))


def _logits(facts: RoleFacts) -> int:
    """Number of logits that exist at once."""
    return facts.worker.model_args.fused_kernel_options.logits_per_chunk or LOGITS_PER_CHUNK_ON_GPUS


def _chunk(shape: ModelShape, tokens: int, tensor: int, logits: int, copies: int) -> Part:
    elements = 0 if shape.is_critic else min(logits, tokens * shape.vocab_size / tensor)
    return Part("logits", copies * _FP32 * elements, True)
