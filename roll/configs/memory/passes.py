"""Estimates of what a pass holds beside the states: activations, logits, gradients of the head.

Per token and layer a pass that keeps everything for the backward pass holds the inputs of its matrices, norms and
activation functions (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv
2205.05198, section 4, with the terms of attention scores left out: the kernels in use keep none). Counted here from
the model's own widths, because the paper's 34 bytes per token and hidden unit are those of a 4h MLP without gates.
"""

from roll.configs.memory.model_shape import ModelShape
from roll.configs.memory.parts import Part, RoleFacts
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.model import LOGITS_PER_CHUNK_OF_SHARES, LOGITS_PER_CHUNK_ON_GPUS

_FP32 = 4
_CHUNK_COPIES = 4  # of a chunk in fp32: logits, their exponentials, the gradient, and one on the way


def layer_bytes(shape: ModelShape, dtype_bytes: int, tensor: int = 1, by_position: bool = False) -> float:
    """Bytes per token that one layer keeps for its backward pass.

    `tensor` ranks share the matrices; with `by_position` (sequence parallel) also what is between them. Example:
    Qwen2.5-7B in bf16 keeps 234 kB per token.
    """
    between = 2 * (_FP32 + 2 * dtype_bytes) * shape.hidden_size  # two norms: fp32 inside, their inputs and outputs
    attention = dtype_bytes * (2 * shape.attention.projected + shape.attention.mixed)
    mlp = dtype_bytes * 4 * shape.ffn_width  # gate, up, activation, product
    routed = dtype_bytes * 2 * shape.experts_per_token * shape.hidden_size  # inputs and outputs of the experts
    return between / (tensor if by_position else 1) + (attention + mlp + routed) / tensor


def kept_bytes(
    shape: ModelShape, dtype_bytes: int, recomputes: bool, tensor: int = 1, by_position: bool = False
) -> float:
    """Bytes per token of a layer between its forward and its backward pass. Recomputed layers keep their input only."""
    if recomputes:
        return dtype_bytes * shape.hidden_size / (tensor if by_position else 1)
    return layer_bytes(shape, dtype_bytes, tensor, by_position)


def training_parts(facts: RoleFacts) -> tuple[Part, ...]:
    """Memory of a training pass on a rank that holds whole layers: the saved activations of each layer, one layer that
    is recomputed, and the log-probs. With enable_activation_offload, two layers' activations are on the device at a
    time."""
    shape, size = facts.shape, facts.dtype_bytes
    args = facts.worker.model_args
    recomputes = not args.disable_gradient_checkpointing
    there = min(2, shape.num_layers) if args.enable_activation_offload else shape.num_layers
    kept = there * kept_bytes(shape, size, recomputes)
    again = layer_bytes(shape, size) if recomputes else 0
    activations = Part("activations", facts.train_tokens * (kept + again), True)
    return (activations, *head_parts(shape, facts.train_tokens, size, logits=_logits(facts)))


def waiting_parts(facts: RoleFacts) -> tuple[Part, ...]:
    """What of a training pass waits in host memory."""
    args = facts.worker.model_args
    if not args.enable_activation_offload:
        return ()
    kept = kept_bytes(facts.shape, facts.dtype_bytes, not args.disable_gradient_checkpointing)
    num_bytes = facts.train_tokens * facts.shape.num_layers * kept
    return (Part("activations (enable_activation_offload)", num_bytes, True),)


def whole_scoring_parts(facts: RoleFacts) -> tuple[Part, ...]:
    """Memory of a pass without gradient on a rank that holds whole layers."""
    return scoring_parts(facts.shape, facts.dtype_bytes, facts.score_tokens, logits=_logits(facts))


def scoring_parts(
    shape: ModelShape, dtype_bytes: int, tokens: int, tensor: int = 1, logits: int = LOGITS_PER_CHUNK_OF_SHARES
) -> tuple[Part, ...]:
    """Memory of a pass without gradient: one layer at its widest, and one chunk of `logits` logits."""
    attention = shape.attention.projected + shape.attention.mixed
    routed = 2 * shape.experts_per_token * shape.hidden_size
    widest = max(3 * shape.ffn_width + routed, attention) / tensor
    per_token = dtype_bytes * (3 * shape.hidden_size + widest) + _FP32 * shape.hidden_size
    return (Part("activations", tokens * per_token, True), _chunk(shape, tokens, tensor, logits, copies=2))


def head_parts(
    shape: ModelShape, tokens: int, gradient_bytes: int, tensor: int = 1, logits: int = LOGITS_PER_CHUNK_OF_SHARES
) -> tuple[Part, ...]:
    """What the log-probs of a training pass add: a chunk of logits, and the head's gradient before it goes to the
    others."""
    if shape.is_critic:
        return ()
    gradient = gradient_bytes * shape.vocab_size * shape.hidden_size / tensor
    return (_chunk(shape, tokens, tensor, logits, _CHUNK_COPIES), Part("gradient of the head", gradient, True))


def fewer_to_train_on(worker: WorkerConfig) -> str:
    """What makes the micro batches of a trainer smaller, with its keys."""
    if worker.packed_tokens_in_train is None:
        keys = "training_args.per_device_train_batch_size, max_tokens_per_microbatch_in_train"
        return f"fewer rows or tokens in a micro batch ({keys})"
    key = "sequence_packing_args.max_packed_sequence_length_train"
    by_args = worker.sequence_packing_args.by_tokens
    return f"fewer tokens in a pack ({key if by_args else 'max_tokens_per_microbatch_in_train'})"


def fewer_to_score(worker: WorkerConfig) -> str:
    """The same of passes without gradient."""
    if worker.packed_tokens_in_infer is None:
        return "a smaller infer_batch_size"
    key = "sequence_packing_args.max_packed_sequence_length_forward"
    return f"a smaller {key if worker.sequence_packing_args.by_tokens else 'max_tokens_per_microbatch_in_infer'}"


def _logits(facts: RoleFacts) -> int:
    """That exist at once."""
    return facts.worker.model_args.fused_kernel_options.logits_per_chunk or LOGITS_PER_CHUNK_ON_GPUS


def _chunk(shape: ModelShape, tokens: int, tensor: int, logits: int, copies: int) -> Part:
    elements = 0 if shape.is_critic else min(logits, tokens * shape.vocab_size / tensor)
    return Part("logits", copies * _FP32 * elements, True)
