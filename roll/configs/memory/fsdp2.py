"""fsdp2_train and fsdp2_infer: what fully_shard leaves on a rank.

Every weight is cut along its first dimension, over the ranks that hold the model together; the largest share counts.
`ep_size` divides the experts of a layer before that; tokens are taken to spread evenly.
A trainer keeps its shards in fp32, whatever it computes in: 4 bytes for the weight, 4 for its gradient, 8 for AdamW.
Whole weights exist while they are used, in model_args.dtype: those of one block and the next (all of them with
`reshard_after_forward: false`), embedding and head.
"""

from roll.configs.checks.training import moment_bytes
from roll.configs.memory.layer_shape import Weight
from roll.configs.memory.parts import Part, RankMemory, RoleFacts, State, pinned, total
from roll.configs.memory.passes import training_parts, waiting_parts, whole_scoring_parts
from roll.configs.memory.trained import held_weights
from roll.configs.strategies.fsdp2_settings import Fsdp2Settings

_FP32 = 4
_HOST = "offload_policy"


def train_memory(facts: RoleFacts) -> RankMemory:
    """Memory of a training role."""
    settings, size = _settings(facts), facts.dtype_bytes
    kept_in = size if facts.worker.model_args.has_lora else _FP32  # what no optimizer touches
    shares = [
        (_share(weight, facts), is_trained) for weight, is_trained in held_weights(facts.shape, facts.worker.model_args)
    ]
    trained = [share for share, is_trained in shares if is_trained]
    weights = sum((_FP32 if is_trained else kept_in) * share for share, is_trained in shares)
    gradients = _FP32 * sum(trained)
    moments = [moment_bytes(facts.worker.training_args.optim, share) for share in trained]
    states: dict[State, tuple[Part, ...]] = {
        "weights": (Part("weights", weights),),
        "gradients": (Part("gradients", gradients),),
        "optimizer": (Part("optimizer", sum(moments)),),
    }
    host: tuple[Part, ...] = ()
    if settings.offload_policy:
        host = tuple(part for name, parts in states.items() for part in pinned(f"{name} ({_HOST})", _sizes(parts)))
        states = {"weights": (), "gradients": (), "optimizer": ()}
    elif settings.optimizer_offload:
        host = pinned("optimizer (optimizer_offload)", [(size / 2, 2) for size in moments])
        states["optimizer"] = ()
    block = max(_blocks(facts))
    backward = Part("gradients of a block", (size + _FP32) * block, True)
    activations = (*training_parts(facts), *_travelling(facts), backward)
    step = (Part("optimizer, in its step", sum(moments)),) if settings.optimizer_offload else ()
    copied = [((_FP32 if is_trained else kept_in) * share, 1) for share, is_trained in shares]
    copied += [(size / 2, 2) for size in moments]
    return RankMemory(
        states=states,
        passes={
            "scoring": (*_gathered(facts), *whole_scoring_parts(facts)),
            "training": max((*_gathered(facts), *activations), step, key=total),
            "publish": (Part("buckets", 3 * facts.bucket_bytes, True),),
        },
        host=(*host, *waiting_parts(facts)),
        copies=() if settings.offload_policy else pinned("copies of weights, optimizer", copied),
        loading=_loading(facts),
    )


def score_memory(facts: RoleFacts) -> RankMemory:
    """Memory of a scoring role, whose shards are in model_args.dtype."""
    size, on_host = facts.dtype_bytes, _settings(facts).offload_policy
    shares = [(size * _share(weight, facts), 1) for weight in facts.shape.weights]
    weights = sum(share for share, _ in shares)
    return RankMemory(
        states={"weights": () if on_host else (Part("weights", weights),)},
        passes={"scoring": (*_gathered(facts), *whole_scoring_parts(facts))},
        host=pinned(f"weights ({_HOST})", shares) if on_host else (),
        copies=() if on_host else pinned("copies of weights", shares),
        loading=_loading(facts),
    )


def _settings(facts: RoleFacts) -> Fsdp2Settings:
    return Fsdp2Settings.model_validate(facts.worker.strategy_config)


def _share(weight: Weight, facts: RoleFacts) -> float:
    """Elements of the largest share: rows are not divided. A layer's experts are one tensor, with a row for each."""
    apart = _expert_ranks(weight, facts)
    rows = weight.count // apart if weight.count > 1 else weight.shape[0]
    ranks = _settings(facts).shard_size(facts.num_ranks) // apart
    return -(-rows // ranks) * _held(weight, facts) / rows


def _held(weight: Weight, facts: RoleFacts) -> float:
    """Elements on ranks that hold the model together but share no layer's experts."""
    return weight.num_elements / _expert_ranks(weight, facts)


def _expert_ranks(weight: Weight, facts: RoleFacts) -> int:
    """Ranks that have all experts of a layer among them, whole ones each."""
    return _settings(facts).ep_size if weight.cut == "expert" else 1


def _travelling(facts: RoleFacts) -> tuple[Part, ...]:
    """Return the memory that divided experts add to a training pass: rows [tokens x experts of a token, hidden size] on
    their way, and for each layer those that arrived and those that came back."""
    if _settings(facts).ep_size == 1:
        return ()
    shape, args = facts.shape, facts.worker.model_args
    layers = 1 if not args.disable_gradient_checkpointing else shape.num_layers
    rows = facts.train_tokens * shape.experts_per_token * shape.hidden_size * facts.dtype_bytes
    return (Part("rows on their way to experts", 2 * (1 + layers) * rows, True),)


def _is_of_block(weight: Weight, facts: RoleFacts) -> bool:
    return 0 <= weight.layer < facts.shape.num_layers


def _sizes(parts: tuple[Part, ...]) -> list[tuple[float, int]]:
    return [(part.num_bytes, 1) for part in parts]


def _blocks(facts: RoleFacts) -> list[float]:
    """Elements of each layer, as a rank gathers it."""
    of_layer = [0.0] * facts.shape.num_layers
    for weight in facts.shape.weights:
        if _is_of_block(weight, facts):
            of_layer[weight.layer] += _held(weight, facts)
    return of_layer


def _gathered(facts: RoleFacts) -> tuple[Part, ...]:
    blocks, elements = _blocks(facts), sum(_held(weight, facts) for weight in facts.shape.weights)
    outside = elements - sum(blocks)
    live = elements if not _settings(facts).reshard_after_forward else outside + 2 * max(blocks)
    return (Part("gathered weights", facts.dtype_bytes * min(live, elements), True),)


def _loading(facts: RoleFacts) -> tuple[Part, ...]:
    """One rank reads the model; told as each rank's part of it."""
    return (Part("the whole model, once", facts.dtype_bytes * facts.shape.num_elements / facts.num_ranks, True),)
