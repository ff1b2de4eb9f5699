"""hf_infer: a whole model on every rank, to score or to sample."""

from roll.configs.memory.engine import cache_bytes_per_token
from roll.configs.memory.parts import CONTEXT, Part, RankMemory, RoleFacts, pinned
from roll.configs.memory.passes import fewer_to_score, scoring_parts, whole_scoring_parts

_ROWS_PER_PASS = 8192  # tokens of prompts that are prefilled together, at most
_STAYS = (Part("context", CONTEXT, True),)


def score_memory(facts: RoleFacts) -> RankMemory:
    weights = facts.dtype_bytes * facts.shape.num_elements
    return RankMemory(
        states={"weights": (Part("weights", weights),)},
        passes={"scoring": whole_scoring_parts(facts)},
        stays=_STAYS,
        copies=pinned("copies of weights", _tensors(facts)),
        loading=(Part("the whole model", weights),),
        ways={
            "scoring": f"{fewer_to_score(facts.worker)}; deepspeed_infer with stage 3, or megatron_infer, "
            "divide weights"
        },
    )


def generate_memory(facts: RoleFacts) -> RankMemory:
    """The cache is that of the longest sequences, as many as may be in flight: an upper estimate."""
    weights = facts.dtype_bytes * facts.shape.num_elements
    cache = facts.most_answers * facts.longest * cache_bytes_per_token(facts.shape, facts.dtype_bytes)
    return RankMemory(
        states={"weights": (Part("weights", weights),), "kv_cache": (Part("key-value cache", cache, True),)},
        passes={
            "rollout": scoring_parts(
                facts.shape, facts.dtype_bytes, min(_ROWS_PER_PASS, facts.most_answers * facts.longest)
            ),
            "publish": (Part("bucket", facts.bucket_bytes, True),),
        },
        stays=_STAYS,
        copies=pinned("copies of weights", _tensors(facts)),
        loading=(Part("the whole model", weights),),
        ways={"rollout": "a smaller max_running_requests, or an engine that divides weights (vllm, sglang)"},
    )


def _tensors(facts: RoleFacts) -> list[tuple[float, int]]:
    """Bytes of each weight, and how many there are of it."""
    return [(facts.dtype_bytes * each.num_elements / each.count, each.count) for each in facts.shape.weights]
