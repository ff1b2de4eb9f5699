"""Every check of the suite, a row each: what it covers and needs. The bounds of the figures are in `limits`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.gpu import limits
from tests.gpu.check import Check, Limit

HERE = "tests.gpu.checks"
_TP2: dict[str, Any] = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
_PP2: dict[str, Any] = {"pipeline_model_parallel_size": 2}
_CP2: dict[str, Any] = {"context_parallel_size": 2}
_SHARED: dict[str, Any] = {"use_distributed_optimizer": True}
_TE: dict[str, Any] = {"transformer_impl": "transformer_engine"}
_SMALL_BUCKET = {"reduce_bucket_size": 100_000}  # elements; its own would be 2 GB, in which a tiny model gets lost
_STAGE_3: dict[str, Any] = {"stage": 3} | _SMALL_BUCKET
_ON_HOST = _STAGE_3 | {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
_WAITING: dict[str, Any] = {"param_offload": True, "optimizer_offload": True}
_ZERO3 = {"stage": 3, "stage3_param_persistence_threshold": 0}


def _train(kind: str, name: str, form: str, settings: dict[str, Any], *packages: str, **more: Any) -> Check:
    """`more`: of the check's arguments `adapts` and `mixture`, the others its fields."""
    of_check = {key: more.pop(key) for key in ("adapts", "mixture") if key in more}
    end = "peft + torch, also after a trip to host memory; resumes"
    if "adapts" not in of_check:
        end = "HF + torch, also after a trip to host memory; resumes exactly"
    shares = kind == "megatron" and settings == _SHARED
    fields: dict[str, Any] = {"code": f"strategy/{kind}/"} | more
    return Check(
        name=f"train-{name}",
        path=f"{kind}_train, {form}: updates equal {end}",
        function=f"{HERE}.trainers:trains",
        arguments={"kind": kind, "settings": settings} | of_check,
        limits=limits.SHARING_TRAINER if shares else limits.TRAINER,
        most_gpus=2,
        packages=packages,
        **fields,
    )


def _deepspeed(name: str, form: str, zero: dict[str, Any]) -> Check:
    return _train("deepspeed", name, form, zero, "deepspeed", code="strategy/deepspeed/train.py")


def _megatron(name: str, form: str, settings: dict[str, Any], *packages: str, **more: Any) -> Check:
    return _train("megatron", name, form, settings, "megatron", *packages, **more)


def _fsdp2(name: str, form: str, settings: dict[str, Any]) -> Check:
    return _train("fsdp2", name, form, settings)


def _mixture(name: str, kind: str, form: str, settings: dict[str, Any], *packages: str, gpus: int = 1) -> Check:
    return _train(kind, name, f"experts{form}", settings, *packages, mixture=True, gpus=gpus)


def _lora(name: str, kind: str, form: str, settings: dict[str, Any], *packages: str) -> Check:
    code = "roll/features/lora/adapters.py"
    return _train(kind, f"lora-{name}", f"{form}, LoRA", settings, "peft", *packages, adapts=True, code=code)


def _of_mixtures(name: str, function: str, form: str, bounds: Mapping[str, Limit]) -> Check:
    return Check(
        name=name,
        path=f"fsdp2_train, rows packed, {form}: gradients equal one process's on a CPU",
        code="roll/models/experts/",
        function=f"{HERE}.mixtures:{function}",
        arguments={"family": "qwen3_moe", "settings": {"packs": True}},
        limits=bounds,
        packages=("peft",),
    )


def _scorer(name: str, code: str, strategy: str, settings: dict[str, Any], *packages: str) -> Check:
    return Check(
        name=f"score-{name}",
        path=f"{strategy} ({name}): log-probs equal HF, before and after a trip to host memory",
        code=code,
        function=f"{HERE}.scorers:scores",
        arguments={"strategy": strategy, "settings": settings},
        limits=limits.SCORER,
        most_gpus=2,
        packages=packages,
    )


def _trainer_memory(name: str, code: str, kind: str, settings: dict[str, Any]) -> Check:
    return Check(
        name=f"memory-{name}",
        path=f"{kind}_train ({name}), 0.5B in bf16: holds what a dry run says, and gives it back",
        code=code,
        function=f"{HERE}.memory:trainer_turns",
        arguments={"kind": kind, "settings": settings},
        limits=limits.TRAINER_MEMORY,
        most_gpus=2,
        packages=(kind,) * (kind != "fsdp2"),
    )


_BOUNDS_OF_UPDATES = {(True, "full"): limits.COMPILED_UPDATES, (True, "selective"): limits.FASTEST_UPDATES}


def _updates(size: str, compiled: bool = False, recompute: str = "full") -> Check:
    how = ", use_torch_compile" * compiled + f", recompute_granularity {recompute}" * (recompute != "full")
    return Check(
        name=f"mfu-{size}{f'-{recompute}' * (recompute != 'full')}{'-compiled' * compiled}",
        path=f"fsdp2_train, {size.upper()} on one GPU, bf16, packs of 16k{how}: speed by its peak, memory as planned",
        code="distributed/strategy/fsdp2/",
        function=f"{HERE}.speed:updates",
        arguments={"size": size, "compiled": compiled, "recompute": recompute},
        limits=_BOUNDS_OF_UPDATES.get((compiled, recompute), limits.UPDATES),
        expected_s=110 if compiled else 75,
        alone=True,
    )


def _engine_memory(engine: str, tp: int) -> Check:
    return Check(
        name=f"engine-{engine}-tp{tp}",
        path=f"{engine}, tensor parallel {tp}, 0.5B, bf16, CUDA graphs: log-probs of HF; sleeps, gives memory back",
        code=f"strategy/{engine}/generate.py",
        function=f"{HERE}.memory:engine_turns",
        arguments={"engine": engine, "tp": tp},
        limits=limits.VLLM_MEMORY if engine == "vllm" else limits.ENGINE_MEMORY,
        gpus=tp,
        packages=(engine,),
        limit_s=420,
        expected_s=120,
        alone=True,
    )


def _run(engine: str, name: str, form: str, devices: tuple[list[int], list[int]], route: str = "auto") -> Check:
    """`devices`: the trainer's, and those of the one engine."""
    arguments = {"engine": engine, "trainers": devices[0], "engines": devices[1], "route": route}
    return Check(
        name=f"run-{engine}-{name}",
        path=f"{engine}, {form}: its log-probs are the trainer's after three updates, bf16",
        code="executor/weights/sync.py, weights/transport.py",
        function=f"{HERE}.runs:follows",
        arguments=arguments,
        limits=limits.RUN,
        gpus=max(*devices[0], *devices[1]) + 1,
        packages=("ray", "deepspeed", *[engine] * (engine != "hf_infer")),
        limit_s=420,
        expected_s=60 if engine == "hf_infer" else 110,
        alone=engine == "sglang",
    )


_ONE, _APART = ([0], [0]), ([0], [1])
_IPC = "on the trainer's GPU, weights by CUDA IPC"


_TRAINERS = {
    "zero3": ("deepspeed", "actor_train.strategy_args.strategy_config.zero_optimization.stage=3"),
    "fsdp2": ("", "actor_train.strategy_args={strategy_name: fsdp2_train, strategy_config: {}}"),
    "megatron": ("megatron", "actor_train.strategy_args={strategy_name: megatron_train, strategy_config: {}}"),
}
_ADAPTERS = tuple(
    f"actor_train.{key}"
    for key in (
        "model_args.lora_target=all-linear",
        "model_args.lora_rank=16",
        "model_args.lora_alpha=32",
        "training_args.learning_rate=1.0e-2",
    )
)


def _run_after(engine: str, trainer: str, adapts: bool = False) -> Check:
    """A whole run on one GPU with another trainer than ZeRO 2; `adapts`: of LoRA adapters, which it sends merged."""
    package, override = _TRAINERS[trainer]
    form = f"{trainer} with LoRA" if adapts else trainer
    check = _run(engine, "lora" if adapts else trainer, f"trained by {form}, {_IPC}", _ONE)
    overrides = [override, *_ADAPTERS] if adapts else [override]
    packages = ["ray", *[package] * bool(package), *["peft"] * adapts, *[engine] * (engine != "hf_infer")]
    return replace(check, arguments={**check.arguments, "overrides": overrides}, packages=tuple(packages))


def _run_of_a_mixture(engine: str) -> Check:
    check = _run_after(engine, "fsdp2")
    return replace(
        check,
        name=f"run-{engine}-moe",
        path=check.path.replace("trained by", "a mixture of experts, trained by"),
        arguments={**check.arguments, "mixture": True},
        limits=limits.MIXTURE_RUN,
    )


def _exact_run(adapts: bool = False) -> Check:
    """The same with `exact_log_probs`: the engine's numbers are the trainer's to the last bit. `adapts`: of LoRA
    adapters, which the engine then has by themselves."""
    check = _run_after("hf_infer", "fsdp2", adapts)
    trainer = f"fsdp2{', LoRA,' * adapts}"
    return replace(
        check,
        name=f"run-hf_infer-exact{'-lora' * adapts}",
        path=f"hf_infer and {trainer} with exact_log_probs on one GPU: equal log-probs after three updates, bf16",
        code="roll/models/exact/",
        arguments={**check.arguments, "overrides": [*check.arguments["overrides"], "+exact_log_probs=true"]},
        limits=limits.EXACT_RUN,
    )


def _handover(name: str, kind: str, settings: dict[str, Any], *packages: str, **more: Any) -> Check:
    """A trainer of this kind and hf_infer, without Ray. `more`: `adapts`, `mixture` or `size`."""
    size = more.get("size", "tiny")
    form = {
        "tiny": "fp32: the sampler has the trainer's weights",
        "0.5b": "0.5B in bf16: seconds of a GB",
        "7b": "7B in bf16, LoRA: seconds of a GB, memory as planned,",
    }[size]
    of_size = {"tiny": limits.HANDOVER, "0.5b": limits.HANDOVER_LARGE, "7b": limits.HANDOVER_OF_ADAPTERS}
    return Check(
        name=f"ipc-{name}",
        path=f"{kind}_train ({name}) and hf_infer in turns on one GPU, weights by CUDA IPC, {form} after three updates",
        code="executor/weights/sender.py, weights/transport.py",
        function=f"{HERE}.handover:hands_over",
        arguments={"kind": kind, "settings": settings} | more,
        limits=of_size[size],
        packages=packages,
        expected_s=120 if size == "7b" else 45,
        limit_s=300,
        alone=size == "7b",
    )


def _with_graphs(check: Check) -> Check:
    """The same with CUDA graphs and compiled code, which updates of weights must reach."""
    override = "actor_infer.strategy_args.strategy_config.enforce_eager=false"
    overrides = [*check.arguments.get("overrides", ()), override]
    return replace(check, arguments={**check.arguments, "overrides": overrides}, expected_s=165)


def _runs_of(engine: str) -> list[Check]:
    first = _run(engine, "shared-memory", _IPC, _ONE)
    return [
        _with_graphs(first) if engine == "vllm" else first,
        _run(engine, "shared-broadcast", "on the trainer's GPU, by a broadcast over gloo", _ONE, "broadcast"),
        _run(engine, "shared-file", "on the trainer's GPU, by files", _ONE, "file"),
        _run(engine, "apart-broadcast", "on a GPU of its own, by NCCL", _APART, "broadcast"),
        _run(engine, "apart-memory", "on a GPU of its own, by shared memory", _APART, "memory"),
        _run(engine, "tp2-shared", "tensor parallel 2 on the trainer's two GPUs", ([0, 1], [0, 1])),
        _run(engine, "tp2-apart", "tensor parallel 2 on GPUs of its own, by NCCL", ([0, 1], [2, 3])),
    ]


def _learns(
    name: str, engine: str, config: str, steps: int, judged_by: dict[str, limits.Limit], *overrides: str
) -> Check:
    return Check(
        name=f"learns-{name}",
        path=f"tiny-sort with {engine}, every role on one GPU: the policy gets better",
        code="pipeline/rlvr/",
        function=f"{HERE}.runs:learns",
        arguments={"config_name": config, "steps": steps, "overrides": overrides},
        limits=judged_by,
        packages=("ray", "deepspeed", *[engine] * (engine != "hf_infer")),
        limit_s=420,
        expected_s=120 if engine == "hf_infer" else 200,
    )


def _alone(name: str, path: str, code: str, function: str, **more: Any) -> Check:
    return Check(name, path, code, f"{HERE}.{function}", **more)


def _families(name: str, of_which: str, expected_s: float, **arguments: Any) -> Check:
    return Check(
        name=name,
        path=f"{of_which}, padded and packed, fp32 and bf16, and sampled by hf_infer: log-probs and gradients of HF",
        code="roll/models/",
        function=f"{HERE}.families:computes",
        arguments=arguments,
        limits=limits.OTHER_FAMILIES if arguments else limits.FAMILIES,
        expected_s=expected_s,
    )


_VLLM_TYPES = {
    "attention": ("gemma3_text", "olmo3", "exaone4", "glm4"),
    "experts": ("gpt_oss", "qwen3_moe", "glm4_moe", "hunyuan_v1_moe"),
    "states": ("falcon_h1", "granitemoehybrid", "nemotron_h"),
}


def _vllm_types(name: str, kinds: tuple[str, ...]) -> Check:
    return Check(
        name=f"vllm-{name}",
        path=f"vllm, small models of {', '.join(kinds)}, bf16: log-probs of HF before and after an update",
        code="strategy/vllm/worker_extension.py",
        function=f"{HERE}.vllm_types:samples",
        arguments={"kinds": kinds},
        limits=limits.VLLM_TYPES,
        packages=("vllm",),
        limit_s=420,
        expected_s=50 * len(kinds),
    )


CHECKS: tuple[Check, ...] = (
    *(_deepspeed(f"zero{stage}", f"ZeRO {stage}", {"stage": stage}) for stage in range(3)),
    _deepspeed("zero3", "ZeRO 3", _STAGE_3),
    _deepspeed("zero3-cpuoffload", "ZeRO 3 with optimizer and parameters in host memory", _ON_HOST),
    _fsdp2("fsdp2", "all ranks hold the model together", {}),
    _fsdp2("fsdp2-replicas", "every rank holds the model", {"fsdp_size": 1}),
    _fsdp2("fsdp2-waiting", "weights and optimizer wait in host memory", _WAITING),
    _fsdp2("fsdp2-cpuoffload", "everything in host memory", {"offload_policy": True}),
    _lora("zero2", "deepspeed", "ZeRO 2", {"stage": 2}, "deepspeed"),
    _lora("zero3", "deepspeed", "ZeRO 3", _STAGE_3, "deepspeed"),
    _lora("fsdp2", "fsdp2", "all ranks hold the model together", {}),
    _deepspeed("zero3-packed", "ZeRO 3, rows packed", _STAGE_3 | {"packs": True}),
    _fsdp2("fsdp2-packed", "rows packed", {"packs": True}),
    _fsdp2("fsdp2-activations", "activations wait in host memory", {"enable_activation_offload": True}),
    _megatron("megatron", "each rank the whole model", {}),
    _megatron("megatron-distributed", "distributed optimizer", _SHARED),
    _megatron("megatron-tp2", "tensor parallel 2", _TP2, gpus=2),
    _megatron("megatron-pp2", "pipeline parallel 2", _PP2, gpus=2),
    _megatron("megatron-cp2", "context parallel 2", _CP2, gpus=2),
    _megatron("megatron-packed", "rows packed", {"packs": True}),
    _megatron("megatron-te", "transformer-engine", _TE, "transformer_engine", not_on_cpu="it has no kernels for CPUs"),
    _fsdp2("fsdp2-trees", "rows that begin alike as trees", {"shares": "on"}),
    _mixture("fsdp2-moe", "fsdp2", ", rows packed", {"packs": True}),
    _mixture("fsdp2-ep2", "fsdp2", ", rows packed, divided over 2 ranks", {"packs": True, "ep_size": 2}, gpus=2),
    _mixture("megatron-moe", "megatron", "", {}, "megatron"),
    _mixture("megatron-moe-grouped", "megatron", " in one product", {"moe_grouped_gemm": True}, "megatron"),
    _of_mixtures("lora-experts", "adapts_experts", "LoRA on every expert, fp32 and bf16", limits.ADAPTED_EXPERTS),
    _of_mixtures("router-replay", "replays", "experts that are given, and told", limits.REPLAYED),
    _scorer("hf", "strategy/hf/score.py", "hf_infer", {}),
    _scorer(
        "zero0", "strategy/deepspeed/score.py", "deepspeed_infer", {"zero_optimization": {"stage": 0}}, "deepspeed"
    ),
    _scorer("zero3", "strategy/deepspeed/score.py", "deepspeed_infer", {"zero_optimization": _ZERO3}, "deepspeed"),
    _scorer("fsdp2", "strategy/fsdp2/score.py", "fsdp2_infer", {}),
    _scorer("megatron", "strategy/megatron/score.py", "megatron_infer", {}, "megatron"),
    _alone(
        "context-parallel-16k",
        "megatron_train, context parallel 2, a row of 16k tokens, grouped heads, bf16: flash attention",
        "roll/models/megatron/layers.py",
        "kernels:context_parallel_row",
        limits=limits.LONG_ROW,
        gpus=2,
        packages=("megatron",),
    ),
    _alone(
        "packed-attention",
        "rows packed, bf16, windows and grouped heads: torch's flash kernel gives what each row gives alone",
        "roll/models/sequences/packed_attention.py",
        "kernels:packed_rows",
        limits=limits.PACKED_ROWS,
    ),
    _families("families", "16 types of models", expected_s=40),
    _families("families-rest", "all other types of models", kinds="rest", expected_s=90),
    _alone(
        "exact-passes",
        "14 types of models, fp32 and bf16: exact log-probs of rows alone, beside others, and beside cached tokens",
        "roll/models/exact/",
        "exact:same_bits",
        limits=limits.EXACT_PASSES,
    ),
    _alone(
        "tree-attention",
        "rows that begin alike as trees, bf16 and fp32, windows and grouped heads: attention of each row alone",
        "roll/models/sequences/tree_attention.py",
        "trees:tree_attention",
        limits=limits.TREE_ATTENTION,
    ),
    _alone(
        "sglang-hash",
        "SGLang draws seeded samples by its own kernel, 256 rows of 152k tokens: they repeat, and are no greedy ones",
        "strategy/sglang/patches.py",
        "kernels:sglang_hashes_in_its_own_kernel",
        limits=limits.SGLANG_HASH,
        alone=True,
        packages=("sglang",),
    ),
    _alone(
        "broadcast-death",
        "a receiver is killed in a broadcast of weights: sender and other receivers are free of it at once",
        "weights/broadcast_group.py",
        "kernels:receivers_give_up",
        limits=limits.BROADCAST_DEATH,
        gpus=3,
    ),
    _trainer_memory("zero2", "distributed/strategy/deepspeed/rank.py", "deepspeed", {"stage": 2}),
    _trainer_memory("zero3", "distributed/strategy/deepspeed/rank.py", "deepspeed", {"stage": 3}),
    _trainer_memory("fsdp2", "distributed/strategy/fsdp2/", "fsdp2", {}),
    _trainer_memory("megatron", "distributed/strategy/megatron/train.py", "megatron", {}),
    _trainer_memory("megatron-distributed", "distributed/strategy/megatron/train.py", "megatron", _SHARED),
    _alone(
        "head-tiles",
        "log-probs of 16k positions and their gradients, 152k tokens, bf16: the tiles of GPUs against those of CPUs",
        "roll/models/head_scores.py",
        "speed:head_tiles",
        limits=limits.HEAD_TILES,
        alone=True,
    ),
    _alone(
        "weight-copies",
        "3 GB of weights to host memory and back: as fast as one copy",
        "distributed/strategy/host_copies.py",
        "speed:weight_copies",
        limits=limits.WEIGHT_COPIES,
        alone=True,
    ),
    _alone(
        "tree-updates",
        "fsdp2_train, use_prefix_sharing off, on and auto, 0.5B in bf16, micro batches of 18k and 73k: whole updates",
        "roll/types/forest.py",
        "tree_updates:whole_updates",
        limits=limits.TREE_UPDATES,
        expected_s=150,
        limit_s=420,
        alone=True,
    ),
    _updates("0.5b"),
    _updates("1.5b"),
    _updates("1.5b", compiled=True),
    _updates("1.5b", recompute="selective"),
    _updates("1.5b", compiled=True, recompute="selective"),
    _updates("0.5b", compiled=True, recompute="selective"),
    *(_engine_memory(engine, tp) for engine in ("vllm", "sglang") for tp in (1, 2)),
    _alone(
        "engine-vllm-fp8",
        "vllm, quantization: fp8_per_tensor: log-probs of HF before and after an update of its weights",
        "strategy/vllm/worker_extension.py",
        "vllm_types:samples",
        arguments={"kinds": ("qwen2",), "quantization": "fp8_per_tensor"},
        limits=limits.QUANTISED_ENGINE,
        packages=("vllm",),
        limit_s=420,
        expected_s=100,
    ),
    *(_vllm_types(*each) for each in _VLLM_TYPES.items()),
    _handover("fsdp2", "fsdp2", {}),
    _handover("zero3", "deepspeed", {"stage": 3}, "deepspeed"),
    _handover("megatron", "megatron", {}, "megatron"),
    _handover("moe-fsdp2", "fsdp2", {}, mixture=True),
    _handover("lora-fsdp2", "fsdp2", {}, "peft", adapts=True),
    _handover("fsdp2-0.5b", "fsdp2", {}, size="0.5b"),
    _handover("lora-7b", "fsdp2", {}, "peft", adapts=True, size="7b"),
    _run("hf_infer", "shared-memory", _IPC, _ONE),
    *(_run_after("hf_infer", trainer) for trainer in _TRAINERS),
    _run_after("hf_infer", "fsdp2", adapts=True),
    _run_of_a_mixture("hf_infer"),
    _exact_run(),
    _exact_run(adapts=True),
    *_runs_of("vllm"),
    _with_graphs(_run_after("vllm", "fsdp2")),
    _run_after("vllm", "fsdp2", adapts=True),
    _run_of_a_mixture("vllm"),
    *_runs_of("sglang"),
    _alone(
        "engine-death",
        "a run with two vLLM engines: one is killed in a broadcast of weights, and the run goes on",
        "distributed/executor/rollout/engines.py, executor/weights/sender.py",
        "runs:outlives_an_engine",
        arguments={"engine": "vllm"},
        limits=limits.ENGINE_DEATH,
        gpus=3,
        packages=("ray", "deepspeed", "vllm"),
        limit_s=420,
    ),
    _learns("hf", "hf_infer", "tiny_sort", 24, limits.LEARNS_WELL),
    _learns(
        "vllm",
        "vllm",
        "tiny_sort_vllm",
        12,
        limits.LEARNS,
        "actor_train.training_args.gradient_accumulation_steps=4",
        "actor_infer.strategy_args.strategy_config.gpu_memory_utilization=0.1",
        "+actor_infer.strategy_args.strategy_config.kv_cache_memory_bytes=1000000000",
    ),
)
"""In the order in which they run: what is quick and most likely to find something comes first."""

FIRST = (
    "families",
    "packed-attention",
    "tree-attention",
    "train-fsdp2",
    "train-zero3",
    "train-lora-fsdp2",
    "train-fsdp2-packed",
    "train-fsdp2-trees",
    "score-hf",
    "ipc-fsdp2",
    "ipc-fsdp2-0.5b",
    "mfu-1.5b-selective-compiled",
    "memory-fsdp2",
    "engine-vllm-tp1",
    "run-hf_infer-shared-memory",
    "run-vllm-shared-memory",
    "train-megatron-distributed",
    "head-tiles",
    "weight-copies",
    "mfu-0.5b-selective-compiled",
    "tree-updates",
)
"""What tells most about a machine, in this order: where time is short (--minutes) these come first."""
