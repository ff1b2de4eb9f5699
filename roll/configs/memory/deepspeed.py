"""deepspeed_train and deepspeed_infer: what ZeRO leaves on a rank.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (arXiv 1910.02054), section
3: AdamW in mixed precision holds weights, gradients and, in fp32, master weights and two moments. Stage 1 divides the
optimizer's 12 bytes per parameter by the ranks, stage 2 the gradients, stage 3 the weights. What is in fp32 besides,
and where, is that of DeepSpeed 0.19 as `strategy/deepspeed/rank.py` sets it up.
"""

from collections.abc import Mapping
from typing import Any

from roll.configs.checks.training import moment_bytes
from roll.configs.memory.parts import Part, RankMemory, RoleFacts, State, pinned, total
from roll.configs.memory.passes import training_parts, waiting_parts, whole_scoring_parts
from roll.configs.memory.trained import held_weights
from roll.configs.sections.training import EIGHT_BIT
from roll.configs.strategies.deepspeed import section_of, zero_stage

_BUCKET = 500_000_000  # elements: DeepSpeed's own reduce_bucket_size
_LIVE = 1_000_000_000  # and stage3_max_live_parameters
_SUB_GROUP = 1_000_000_000


def train_memory(facts: RoleFacts) -> RankMemory:
    """Memory of a training role."""
    config, ranks, size = facts.worker.strategy_config, facts.num_ranks, facts.dtype_bytes
    stage, zero = zero_stage(config), section_of(config, "zero_optimization")
    held = held_weights(facts.shape, facts.worker.model_args)
    trained = sum(weight.num_elements for weight, is_trained in held if is_trained)
    weights = size * sum(weight.num_elements for weight, _ in held) / (ranks if stage == 3 else 1)
    shares_masters = size == 4 and stage == 0  # ZeRO keeps fp32 copies of fp32 weights, too
    moments = _master_bytes(config) * trained / (ranks if stage else 1)
    optim = facts.worker.training_args.optim
    divided = ranks if stage else 1
    flat = [trained / divided] if not shares_masters else [w.num_elements for w, is_trained in held if is_trained]
    retained = 0 if shares_masters else moments
    optimizer = retained + sum(moment_bytes(optim, each, _master_bytes(config)) for each in flat)
    gradients = _gradient_bytes(config, stage, size) * trained / (ranks if stage >= 2 else 1)
    summed = 2 if config.get("communication_data_type") in ("bf16", "fp16") else 4  # bytes of what ranks sum
    bucket = summed * _number(zero, "reduce_bucket_size", _BUCKET)
    optimizer_on_host, weights_on_host = _on_host(zero, "offload_optimizer"), _on_host(zero, "offload_param")
    gradients_on_host = optimizer_on_host and stage >= 2
    on_gpu: dict[State, tuple[Part, ...]] = {
        "weights": () if weights_on_host else (Part("weights", weights),),
        "gradients": () if gradients_on_host else (Part("gradients", gradients),),
        "optimizer": () if optimizer_on_host else (Part("optimizer", optimizer),),
    }
    if stage == 3:
        on_gpu["gradients"] += (Part("gradient bucket", bucket),)
    host = [  # not what goes on to a disk (device: nvme)
        part
        for name, size_there, is_there, section in (
            ("weights", weights, weights_on_host, "offload_param"),
            ("gradients", gradients, gradients_on_host, "offload_optimizer"),
            ("optimizer", optimizer, optimizer_on_host, "offload_optimizer"),
        )
        if is_there and section_of(zero, section).get("device") == "cpu"
        for part in pinned(f"{name} ({section})", [(size_there, 1)])
    ]
    blocks = [] if weights_on_host else [(weights, 1)]
    if stage == 3 and not gradients_on_host:
        blocks += [(gradients, 1), (bucket, 1)]
    if not optimizer_on_host:
        if optim == EIGHT_BIT:
            blocks += [*([] if shares_masters else _sub_groups(moments, zero)), (optimizer - retained, 1)]
        else:
            blocks += [(buffer, count * (2 if shares_masters else 3)) for buffer, count in _sub_groups(moments, zero)]
    gathered = _gathered(facts, zero) if stage == 3 else ()
    between = (Part("gradient bucket", bucket, True),) if 0 < stage < 3 else ()
    step = (Part("gradients in fp32", 4 * trained / ranks, True),) if 0 < stage < 3 else ()
    activations = training_parts(facts) + gathered + between
    return RankMemory(
        states=on_gpu,
        passes={
            "scoring": gathered + whole_scoring_parts(facts),
            "training": max(activations, step, key=total),
            "publish": (Part("buckets", 3 * facts.bucket_bytes, True),),
        },
        host=(*host, *waiting_parts(facts)),
        copies=pinned(
            "copies of weights, gradients, optimizer" if stage == 3 else "copies of weights, optimizer", blocks
        ),
        loading=() if stage == 3 else (Part("the whole model", size * facts.shape.num_elements),),
    )


def score_memory(facts: RoleFacts) -> RankMemory:
    """Memory of a scoring role: whole weights, or this rank's shard with stage 3."""
    zero = section_of(facts.worker.strategy_config, "zero_optimization")
    size, is_divided = facts.dtype_bytes, zero_stage(facts.worker.strategy_config) == 3
    parts = facts.num_ranks if is_divided else 1
    weights = size * facts.shape.num_elements / parts
    on_host = is_divided and _on_host(zero, "offload_param")
    gathered = _gathered(facts, zero) if is_divided else ()
    tensors = [(size * each.num_elements / each.count / parts, each.count) for each in facts.shape.weights]
    return RankMemory(
        states={"weights": () if on_host else (Part("weights", weights),)},
        passes={"scoring": gathered + whole_scoring_parts(facts)},
        host=pinned("weights (offload_param)", [(weights, 1)])
        if section_of(zero, "offload_param").get("device") == "cpu" and on_host
        else (),
        copies=() if on_host else pinned("copies of weights", tensors),
        loading=() if is_divided else (Part("the whole model", size * facts.shape.num_elements),),
    )


def _gathered(facts: RoleFacts, zero: Mapping[str, Any]) -> tuple[Part, ...]:
    live = min(_number(zero, "stage3_max_live_parameters", _LIVE), facts.shape.num_elements)
    return (Part("gathered weights", facts.dtype_bytes * live, True),)


def _sub_groups(num_bytes: float, zero: Mapping[str, Any]) -> list[tuple[float, int]]:
    """The flat buffers of one kind, and how many of each size. torch allocates each for itself."""
    largest = 4 * max(1.0, _number(zero, "sub_group_size", _SUB_GROUP))
    whole, rest = divmod(num_bytes, largest)
    return [(largest, int(whole)), (rest, 1)]


def _master_bytes(config: Mapping[str, Any]) -> int:
    return 2 if section_of(config, "bf16").get("bf16_master_weights_and_grads") is True else 4


def _gradient_bytes(config: Mapping[str, Any], stage: int, size: int) -> int:
    """bf16 is accumulated in fp32 from stage 2 on, unless data_types says otherwise."""
    grad_dtype = section_of(config, "data_types").get("grad_accum_dtype")
    if stage < 2 or grad_dtype in ("bf16", "bfloat16", "fp16"):
        return size
    return 4


def _on_host(zero: Mapping[str, Any], section: str) -> bool:
    return section_of(zero, section).get("device", "none") != "none"


def _number(zero: Mapping[str, Any], key: str, default: int) -> float:
    value = zero.get(key)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else default
