"""vllm and sglang: an engine takes a share of its GPUs, and what its weights leave of that is key-value cache."""

from collections.abc import Iterator
from dataclasses import dataclass

from roll.configs.memory.layer_shape import ModelShape, Weight
from roll.configs.memory.megatron import rank_elements
from roll.configs.memory.parts import COMMUNICATORS, CONTEXT, GB, Part, RankMemory, RoleFacts, pinned, total
from roll.configs.memory.passes import scoring_parts, whole_scoring_parts
from roll.configs.plan.engine_limits import SHARED, given_share, share_key

_GRAPHS = 1.0 * GB  # captured batch sizes and model decide: 0.5 to 2
_PREFILL_TOKENS = 8192  # of one forward pass, unless told otherwise
_SGLANG_STATE_RATIO = 0.9  # memory of states by that of keys and values
_SGLANG_STATES = 3  # for each running request, where prefixes are shared


@dataclass(frozen=True)
class EngineArguments:
    """The engine's own words for the tokens of one prefill and for the bytes of its cache ("": it has none). `states`:
    how many states of recurrences it keeps for each sequence, those at the ends of shared prefixes among them.
    `state_part`: of the cache, that states alone may take; 0: states and keys share one pool."""

    prefill_key: str
    cache_key: str = ""
    has_scheduler_process: bool = False  # also with one device
    states: int = 1
    state_bytes: int | None = None  # of an element; None: 4 for types that want fp32, else as the model
    state_part: float = 0.0


def vllm_memory(facts: RoleFacts) -> RankMemory:
    """Activations and graphs come out of gpu_memory_utilization. Level-1 sleep: weights go to pinned host memory, the
    cache is dropped, graphs stay."""
    config = facts.worker.strategy_config
    eager = config.get("enforce_eager") is True
    graphs_leave = config.get("sleep_mode_offload_cudagraph") is True
    sizes = (config.get("tensor_parallel_size"), config.get("pipeline_parallel_size"))
    arguments = EngineArguments(
        "max_num_batched_tokens",
        "kv_cache_memory_bytes",
        states=1 if config.get("enable_prefix_caching") is False else 2,
    )
    return _memory(facts, sizes, arguments, not eager, graphs_leave)


def sglang_memory(facts: RoleFacts) -> RankMemory:
    """Activations and graphs lie beside mem_fraction_static. Released weights have a copy in host memory."""
    config = facts.worker.strategy_config
    eager = config.get("disable_cuda_graph") is True
    ratio = config.get("mamba_full_memory_ratio", _SGLANG_STATE_RATIO)
    ratio = float(ratio) if isinstance(ratio, int | float) and ratio > 0 else _SGLANG_STATE_RATIO
    arguments = EngineArguments(
        "chunked_prefill_size",
        has_scheduler_process=True,
        states=1 if config.get("disable_radix_cache") is True else _SGLANG_STATES,
        state_bytes=4,
        state_part=ratio / (1 + ratio),
    )
    return _memory(facts, (config.get("tp_size"), 1), arguments, not eager, False)


def cache_bytes_per_token(shape: ModelShape, element_bytes: float, tensor: int = 1, pipeline: int = 1) -> float:
    """Keys and values of one token on one GPU. A head is held by several GPUs where there are fewer heads than those;
    of latent attention each GPU keeps all latents. Layers with a window are counted as if they kept every token.

    Example: Qwen2.5-7B in bf16: 28 layers x 2 x 4 heads x 128 x 2 bytes = 57,344; half of it with tensor parallel 2.
    """
    held = sum(layer.cached / min(tensor, layer.cache_cuts) for layer in shape.layers)
    return held / pipeline * element_bytes


def state_bytes_per_sequence(
    shape: ModelShape, element_bytes: float, state_bytes: int | None, tensor: int = 1, pipeline: int = 1
) -> float:
    """Bytes of the states of one sequence on one GPU, and of the last inputs of convolutions. `state_bytes` of a
    state's element; None: 4 if config.json asks for fp32, else as the model.

    Example: Qwen3-Next-80B in bf16 and vLLM: 36 layers x (32 x 128 x 128 + 4 x 8192) x 2 bytes = 40.1 MB.
    """
    size = state_bytes or (4 if shape.states_in_fp32 else element_bytes)
    held = sum(layer.convolved * element_bytes + layer.state * size for layer in shape.layers)
    return held / tensor / pipeline


def _memory(
    facts: RoleFacts, sizes: tuple[object, object], engine: EngineArguments, has_graphs: bool, graphs_leave: bool
) -> RankMemory:
    worker, shape, size = facts.worker, facts.shape, facts.dtype_bytes
    key, devices = share_key(worker), worker.num_gpus_per_worker
    assert key is not None
    pipeline = sizes[1] if type(sizes[1]) is int else 1
    tensor = max(1, devices // pipeline)
    is_quantized = bool(worker.strategy_config.get("quantization"))
    blocks = [size * elements for elements in _blocks(shape, tensor, pipeline)]
    has_states = shape.has_states
    weights = Part("weights", sum(blocks), is_quantized or (has_states and tensor > 1))  # few heads are copied
    prefill = worker.strategy_config.get(engine.prefill_key)
    tokens = prefill if type(prefill) is int and prefill > 0 else _PREFILL_TOKENS
    working = scoring_parts(shape, size, tokens, tensor)
    graphs = (Part("CUDA graphs", _GRAPHS, True),) if has_graphs else ()
    share = given_share(worker) or (SHARED if facts.shares_devices else key.default_share)
    room, cache = _cache(
        facts, engine, share, weights.num_bytes, total((*working, *graphs)) if key.holds_everything else 0
    )
    per_token = cache_bytes_per_token(shape, size, tensor, pipeline)
    of_states = engine.states * state_bytes_per_sequence(shape, size, engine.state_bytes, tensor, pipeline)
    name, doubt = _cache_name(facts, engine, cache, per_token, of_states)
    name = name if cache else f"{_CACHE}{' and states' if has_states else ''} up to {share:g} of the GPU"
    stays = (Part("context", CONTEXT, True), *((Part("communicators", COMMUNICATORS, True),) if devices > 1 else ()))
    return RankMemory(
        states={"weights": (weights,), "kv_cache": (Part(name, cache, True),)},
        passes={
            "rollout": (*working, *(graphs if graphs_leave else ())),
            "publish": (Part("bucket", facts.bucket_bytes, True),),
        },
        stays=stays if graphs_leave else (*stays, *graphs),
        copies=pinned("copies of weights", [(block, devices) for block in blocks]),
        loading=(),
        num_processes=2 + devices if devices > 1 or engine.has_scheduler_process else 2,
        doubt=f"{doubt}. Use a larger {key.name}, or more GPUs per engine" if doubt and room else "",
        room=(room, f"{key.name} {share:g} of {facts.gpu_bytes / GB:g} GB") if room and facts.gpu_bytes else None,
    )


_CACHE = "key-value cache"


def _cache_name(
    facts: RoleFacts, engine: EngineArguments, cache: float, per_token: float, of_states: float
) -> tuple[str, str]:
    """Return (what a cache of these bytes holds, why the engine may not start with it). `of_states`: bytes of each
    sequence; 0: the model has none."""
    if not of_states:
        tokens = cache / per_token
        few = f"its {_CACHE} holds about {tokens:.0f} tokens, fewer than the {facts.longest} of one sequence"
        return f"{_CACHE} for {_tokens(tokens)}", few if tokens < facts.longest else ""
    longest = facts.longest or _PREFILL_TOKENS
    if engine.state_part:
        sequences = cache * engine.state_part / of_states
        if per_token:
            sequences = min(sequences, cache * (1 - engine.state_part) / (per_token * longest))
    else:
        sequences = cache / (of_states + per_token * longest)
    few = f"its {_CACHE} and states have no room for one sequence of {longest} tokens"
    name = f"{_CACHE} and states for {sequences:.0f} sequences of {_tokens(longest)}"
    return name, few if sequences < 1 else ""


def _cache(
    facts: RoleFacts, engine: EngineArguments, share: float, weights: float, working: float
) -> tuple[float, float]:
    """Return (bytes that weights, cache and, for vLLM, everything else may take together; bytes of them that are
    cache). 0: not known."""
    cache_bytes = facts.worker.strategy_config.get(engine.cache_key)
    if isinstance(cache_bytes, int):
        return 0.0, float(cache_bytes)
    if facts.gpu_bytes is None:
        return 0.0, 0.0
    room = share * facts.gpu_bytes
    return room, max(0.0, room - weights - working)


def _blocks(shape: ModelShape, tensor: int, pipeline: int) -> Iterator[float]:
    """Elements of every tensor of the engine on one GPU, fused as it fuses them: of pipeline stages, the one with the
    embedding and the head."""
    fused: dict[tuple[int, str], float] = {}
    for weight in shape.weights:
        if weight.block in ("embedding", "head") or weight.layer < -(-shape.num_layers // pipeline):
            key = (weight.layer, weight.block)
            fused[key] = fused.get(key, 0.0) + _elements(weight, shape, tensor)
    yield from fused.values()


def _elements(weight: Weight, shape: ModelShape, tensor: int) -> float:
    if ".k_proj." in weight.name or ".v_proj." in weight.name:
        return weight.num_elements / min(tensor, shape.cache_cuts)
    if ".q_a_proj." in weight.name or ".kv_a_proj_with_mqa." in weight.name:
        return weight.num_elements  # engines hold the narrow layers of latent attention whole
    return rank_elements(weight, tensor, expert=tensor)


def _tokens(number: float) -> str:
    return f"{number / 1e6:.2g} M tokens" if number >= 1e6 else f"{number / 1e3:.3g} k tokens"


# hf_infer: a whole model on every rank, to score or to sample.

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
    )


def generate_memory(facts: RoleFacts) -> RankMemory:
    """The cache is that of the longest sequences, as many as may be in flight: an upper estimate."""
    weights = facts.dtype_bytes * facts.shape.num_elements
    of_sequence = facts.longest * cache_bytes_per_token(facts.shape, facts.dtype_bytes)
    of_sequence += state_bytes_per_sequence(facts.shape, facts.dtype_bytes, state_bytes=4)
    cache = facts.most_answers * of_sequence
    name = f"{_CACHE} and states" if facts.shape.has_states else _CACHE
    tokens = min(_ROWS_PER_PASS, facts.most_answers * facts.longest)
    return RankMemory(
        states={"weights": (Part("weights", weights),), "kv_cache": (Part(name, cache, True),)},
        passes={
            "rollout": scoring_parts(facts.shape, facts.dtype_bytes, tokens),
            "publish": (Part("bucket", facts.bucket_bytes, True),),
        },
        stays=_STAYS,
        copies=pinned("copies of weights", _tensors(facts)),
        loading=(Part("the whole model", weights),),
    )


def _tensors(facts: RoleFacts) -> list[tuple[float, int]]:
    """Bytes of each weight, and how many there are of it."""
    return [(facts.dtype_bytes * each.num_elements / each.count, each.count) for each in facts.shape.weights]
