"""megatron_train and megatron_infer: what tensor, pipeline, expert and data parallel leave on a rank.

Weights are cut as `roll/models/megatron` cuts them. Gradients are a buffer in fp32. AdamW holds fp32 weights and two
moments, with `use_distributed_optimizer` divided by the ranks that hold the same weights (data x context parallel; for
experts the ranks of a stage over expert and expert-tensor parallel). Activations: `passes.py`; a pipeline's first
stage keeps those of as many micro batches as there are stages (1F1B; Narayanan et al., arXiv 2104.04473, section 2.2).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from roll.configs.memory.layer_shape import ModelShape, Weight
from roll.configs.memory.parts import Part, RankMemory, RoleFacts, pinned, total
from roll.configs.memory.passes import head_parts, layer_bytes, saved_bytes, scoring_parts
from roll.configs.memory.trained import held_weights, is_frozen
from roll.configs.plan.layout import ParallelSizes, parallel_sizes
from roll.configs.sections.model import LOGITS_PER_CHUNK_OF_SHARES
from roll.configs.strategies.megatron_config import MegatronSettings, split_settings


@dataclass(frozen=True)
class StageWeights:
    """Elements that a rank of one pipeline stage holds. `tensors`: each tensor's own size, of the trained ones."""

    dense: float
    experts: float
    frozen: float
    tensors: tuple[float, ...]

    @property
    def trained(self) -> float:
        return self.dense + self.experts

    @property
    def all(self) -> float:
        return self.trained + self.frozen


def train_memory(facts: RoleFacts) -> RankMemory:
    """Memory of a training role: that of the pipeline stage which needs most while it trains."""
    stages = list(stage_weights(facts))
    candidates = [_train_memory(facts, stage, index) for index, stage in enumerate(stages)]
    return max(
        candidates,
        key=lambda memory: total(p for parts in (*memory.states.values(), memory.passes["training"]) for p in parts),
    )


def score_memory(facts: RoleFacts) -> RankMemory:
    """Memory of a scoring role."""
    sizes, weights = parallel_sizes(facts.worker), max(stage.all for stage in stage_weights(facts))
    tokens = facts.score_tokens // sizes.context
    return RankMemory(
        states={"weights": (Part("weights", facts.dtype_bytes * weights),)},
        passes={"scoring": scoring_parts(facts.shape, facts.dtype_bytes, tokens, sizes.tensor, _logits(facts))},
        copies=(Part("copies of weights", facts.dtype_bytes * weights),),
    )


def stage_weights(facts: RoleFacts) -> Iterator[StageWeights]:
    """Yield the weights that the ranks of each pipeline stage hold."""
    settings, sizes = split_settings(facts.worker.strategy_config)[0], parallel_sizes(facts.worker)
    for first, last in _layers(facts.shape, settings):
        everything = _held(facts)
        held = [item for item in everything if first <= item[0].layer < last]
        has_copy = facts.shape.ties_head or _trains_mtp(facts)
        if last > facts.shape.num_layers and has_copy and sizes.pipeline > 1:
            held += [item for item in everything if item[0].block == "embedding"]  # the last stage's copy
        yield _stage(held, settings, sizes)


def _held(facts: RoleFacts) -> list[tuple[Weight, bool]]:
    """Every weight, and whether it is trained."""
    args = facts.worker.model_args
    if facts.use == "train":
        mtp_weights = facts.shape.mtp if _trains_mtp(facts) else ()
        mtp_held = [(weight, not is_frozen(weight, args.frozen_prefixes)) for weight in mtp_weights]
        return [*held_weights(facts.shape, args, experts="linear"), *mtp_held]
    return [(weight, not is_frozen(weight, args.frozen_prefixes)) for weight in facts.shape.weights]


def _trains_mtp(facts: RoleFacts) -> bool:
    return facts.use == "train" and facts.worker.trains_prediction_head


def _stage(held: list[tuple[Weight, bool]], settings: MegatronSettings, sizes: ParallelSizes) -> StageWeights:
    counts = {"dense": 0.0, "expert": 0.0, "frozen": 0.0}
    blocks: dict[tuple[int, str], float] = {}
    for weight, is_trained in held:
        mine = rank_elements(weight, sizes.tensor, settings.expert_model_parallel_size, settings.expert_tensor_size)
        if not is_trained:
            counts["frozen"] += mine
            continue
        counts["expert" if weight.cut == "expert" else "dense"] += mine
        blocks[weight.layer, weight.block] = blocks.get((weight.layer, weight.block), 0.0) + mine
    return StageWeights(counts["dense"], counts["expert"], counts["frozen"], tuple(blocks.values()))


def rank_elements(weight: Weight, tensor: int, expert: int = 1, expert_tensor: int = 1) -> float:
    """Elements of a weight on one rank. Example: 152,064 x 3584 of an embedding on tensor parallel 4: 38,016 x 3584."""
    match weight.cut:
        case "whole":
            return weight.num_elements
        case "tensor":
            return weight.num_elements / (1 if _is_whole_factor(weight) else tensor)
        case "vocabulary":
            step = 8 * tensor
            return -(-weight.shape[0] // step) * step * math.prod(weight.shape[1:]) / tensor
        case "expert":
            return weight.num_elements / (expert * (1 if _is_whole_factor(weight) else expert_tensor))


def _is_whole_factor(weight: Weight) -> bool:
    """True for the factor of an adapter that tensor parallelism does not divide."""
    by_input = any(f".{name}." in weight.name for name in ("o_proj", "down_proj"))
    return weight.name.endswith(".lora_B.weight" if by_input else ".lora_A.weight")


def _layers(shape: ModelShape, settings: MegatronSettings) -> Iterator[tuple[int, int]]:
    """[first, last) of each stage; the embedding is layer -1, what follows the layers is one more."""
    stages, start = settings.pipeline_model_parallel_size, 0
    per_stage = (
        settings.stage_layers(shape.num_layers) or (shape.num_layers // stages,) * stages
    )  # which is refused elsewhere
    for stage, count in enumerate(per_stage):
        yield start - (stage == 0), (shape.num_layers + 1 if stage == stages - 1 else start + count)
        start += count


def _train_memory(facts: RoleFacts, stage: StageWeights, index: int) -> RankMemory:
    settings, sizes = split_settings(facts.worker.strategy_config)[0], parallel_sizes(facts.worker)
    size = facts.dtype_bytes
    dense_share, expert_share = _optimizer_shares(facts, settings, sizes)
    per_element = (4 * stage.dense / dense_share) + (4 * stage.experts / expert_share)  # bytes of one fp32 copy
    copies = 2 if size == 4 else 3  # in fp32 the weights are the master weights
    backward = _activations(facts, settings, sizes, index)
    if index == sizes.pipeline - 1:
        backward += head_parts(facts.shape, facts.train_tokens // sizes.context, 4, sizes.tensor, _logits(facts))
    share = per_element / (4 * stage.trained) if stage.trained else 1
    tensors = [(4 * elements * share, copies) for elements in stage.tensors]
    flat = [size * stage.dense, size * stage.experts, size * stage.frozen]
    single = [*(size * elements for elements in stage.tensors), size * stage.frozen]
    weights = flat if settings.use_distributed_optimizer else single
    blocks = [*((block, 1) for block in weights), *tensors]
    scoring = scoring_parts(facts.shape, size, facts.score_tokens // sizes.context, sizes.tensor, _logits(facts))
    return RankMemory(
        states={
            "weights": (Part("weights", size * stage.all),),
            "gradients": (Part("gradients", 4 * stage.trained),),
            "optimizer": (Part("optimizer", copies * per_element),),
        },
        passes={
            "scoring": scoring,
            "training": backward,
            "publish": (Part("buckets", 3 * facts.bucket_bytes, True),),
        },
        copies=pinned("copies of weights, optimizer", blocks),
    )


def _optimizer_shares(facts: RoleFacts, settings: MegatronSettings, sizes: ParallelSizes) -> tuple[int, int]:
    """How many ranks share the optimizer of dense weights, and of experts."""
    if not settings.use_distributed_optimizer:
        return 1, 1
    in_stage = facts.num_ranks // sizes.pipeline
    experts = settings.expert_model_parallel_size * settings.expert_tensor_size
    return max(1, sizes.data * sizes.context), max(1, in_stage // experts)


def _activations(facts: RoleFacts, settings: MegatronSettings, sizes: ParallelSizes, index: int) -> tuple[Part, ...]:
    shape, size, by_position = facts.shape, facts.dtype_bytes, settings.sequence_parallel
    layers = shape.num_layers / sizes.pipeline
    one = max(layer_bytes(layer, size, sizes.tensor, by_position) for layer in shape.layers)
    recomputed, again = _recomputed(facts, settings, layers)
    inputs = saved_bytes(shape, shape.layers[0], size, "full", sizes.tensor, by_position)
    stored = recomputed * inputs + (layers - recomputed) * one
    in_flight = _in_flight(facts, settings, sizes, index)
    tokens = facts.train_tokens / sizes.context
    return (Part("activations", tokens * (in_flight * stored + again * one), True),)


def _recomputed(facts: RoleFacts, settings: MegatronSettings, layers: float) -> tuple[float, float]:
    """Layers of a stage that keep a checkpoint only, and how many are there whole while one is computed again."""
    granularity = settings.recompute_granularity
    if granularity is None:
        granularity = None if facts.worker.model_args.disable_gradient_checkpointing else "full"
    if granularity != "full":
        return 0.0, 0.0
    number = settings.recompute_num_layers or 1
    return (min(layers, number), 1.0) if settings.recompute_method == "block" else (layers, float(number))


def _in_flight(facts: RoleFacts, settings: MegatronSettings, sizes: ParallelSizes, index: int) -> float:
    """Micro batches whose activations a stage holds at once. Runs of layers (virtual pipeline) add to it: times
    1 + (p - 1) / (p v), Narayanan et al."""
    accumulation = facts.train.accumulation if facts.train is not None else 1
    stages, runs = sizes.pipeline, settings.virtual_pipeline_model_parallel_size or 1
    depth = min(stages - index, max(1, accumulation))
    return depth * (1 + (stages - 1) / (stages * runs)) if runs > 1 else depth


def _logits(facts: RoleFacts) -> int:
    """Number of logits that exist at once."""
    return facts.worker.model_args.fused_kernel_options.logits_per_chunk or LOGITS_PER_CHUNK_OF_SHARES
