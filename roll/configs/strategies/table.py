"""The strategies of this package by name, and the way to any other: `strategy_name: my_package.module:SPEC`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from roll.configs.problems import Problem
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.features import FEATURES, Feature
from roll.configs.strategies.spec import GpuShareKey, LoraSync, Package, StrategySpec
from roll.utils.imports import resolve

if TYPE_CHECKING:
    from roll.configs.sections.cluster import WorkerConfig
    from roll.configs.tables.roles import Use

_TORCH = (Package("torch"), Package("transformers"))
_DEEPSPEED = (*_TORCH, Package("deepspeed", "deepspeed"))
_MEGATRON = (*_TORCH, Package("megatron", "megatron"))
_CLASSES, _CONFIGS = "roll.distributed.strategy", "roll.configs.strategies"
_MEMORY = "roll.configs.memory"
_SIZES = ("tensor_parallel_size", "tp_size", "pipeline_parallel_size", "pp_size")
_TRANSFORMERS = frozenset({
    Feature.TRANSFORMERS_MODEL, Feature.SEQUENCE_PACKING, Feature.PREFIX_SHARING, Feature.TORCH_COMPILE,
    Feature.FUSED_HEAD, Feature.PICTURES, Feature.TWO_WAY_ATTENTION_ON_CPU,
})  # fmt: skip
_TRAINER = frozenset({Feature.LORA, Feature.MOE_AUX_LOSS, Feature.ROUTER_REPLAY})
_TRANSFORMERS_TRAINER = (
    _TRANSFORMERS
    | _TRAINER
    | {Feature.SEQUENCE_PARALLEL, Feature.LORA_SYNC, Feature.LORA_EXPERTS}
    | {Feature.ACTIVATION_OFFLOAD, Feature.SELECTIVE_RECOMPUTE}
)
_TRANSFORMERS_SCORER = _TRANSFORMERS | {Feature.SEQUENCE_PARALLEL, Feature.TEACHER_HIDDEN_STATES}
_MEGATRON_TRAINER = _TRAINER | {Feature.SEQUENCE_PACKING, Feature.LORA_EXPERTS, Feature.MTP_TRAINING}


def _megatron(name: str, use: Use, path: str, memory: str) -> StrategySpec:
    return StrategySpec(
        name,
        {use: f"{_CLASSES}.megatron.{path}"},
        heads=("lm", "value", "reward") if use == "train" else ("lm", "value"),
        packages=_MEGATRON,
        supports=_MEGATRON_TRAINER if use == "train" else frozenset({Feature.SEQUENCE_PACKING}),
        not_on={
            "npu": "Megatron-Core, with its transformer_engine, computes on Ascend only through MindSpeed, which roll "
            "does not use. Use fsdp2_train or deepspeed_train to train, hf_infer to score"
        },
        problems="roll.configs.strategies.megatron:problems",
        warnings="roll.configs.strategies.megatron:warnings",
        machine_problems="roll.configs.strategies.megatron:machine_problems",
        model_problems="roll.models.megatron.family_table:model_problems",
        unchecked_without_model="whether Megatron knows the model's family",
        sizes="roll.configs.strategies.megatron:sizes",
        saved_facts="roll.configs.strategies.megatron:saved_facts",
        memory={use: f"{_MEMORY}.megatron:{memory}"},
    )


_SPECS = (
    StrategySpec(
        "deepspeed_train",
        {"train": "roll.distributed.strategy.deepspeed.train:DeepSpeedTrainStrategy"},
        heads=("lm", "value", "reward"),
        packages=_DEEPSPEED,
        supports=_TRANSFORMERS_TRAINER,
        problems="roll.configs.strategies.deepspeed:problems",
        saved_facts="roll.configs.strategies.deepspeed:saved_facts",
        model_problems="roll.configs.strategies.packing:model_problems",
        sizes="roll.configs.strategies.packing:sizes",
        memory={"train": "roll.configs.memory.deepspeed:train_memory"},
    ),
    StrategySpec(
        "deepspeed_infer",
        {"score": "roll.distributed.strategy.deepspeed.score:DeepSpeedScoreStrategy"},
        heads=("lm", "value", "sequence"),
        packages=_DEEPSPEED,
        supports=_TRANSFORMERS_SCORER,
        problems="roll.configs.strategies.deepspeed:problems",
        model_problems="roll.configs.strategies.packing:model_problems",
        sizes="roll.configs.strategies.packing:sizes",
        memory={"score": "roll.configs.memory.deepspeed:score_memory"},
    ),
    StrategySpec(
        "hf_infer",
        {
            "score": "roll.distributed.strategy.hf.score:HfScoreStrategy",
            "generate": "roll.distributed.strategy.hf.generate:HfGenerateStrategy",
        },
        heads=("lm", "value", "sequence"),
        packages=_TORCH,
        supports=_TRANSFORMERS | {Feature.TEACHER_HIDDEN_STATES, Feature.ROUTE_REPORTS},
        problems="roll.distributed.strategy.hf.args:problems",
        model_problems="roll.configs.strategies.packing:model_problems",
        memory={
            "score": "roll.configs.memory.engine:score_memory",
            "generate": "roll.configs.memory.engine:generate_memory",
        },
        truncating_sampling_keys=(),
    ),
    StrategySpec(
        "vllm",
        {"generate": "roll.distributed.strategy.vllm.generate:VllmStrategy"},
        packages=(*_TORCH, Package("vllm", "vllm")),
        packages_on={"npu": (Package("vllm_ascend", command="pip install vllm-ascend"),)},
        supports=frozenset({Feature.MULTI_DEVICE_WORKER, Feature.PICTURES}),
        lora_sync=LoraSync("enable_lora", max_rank=512),
        problems="roll.distributed.strategy.vllm.args:problems",
        engine_model_problems="roll.distributed.strategy.vllm.args:model_problems",
        cpu_model_problems="roll.distributed.strategy.vllm.args:cpu_model_problems",
        environment="roll.distributed.strategy.vllm.args:environment",
        tested="vllm",
        memory={"generate": "roll.configs.memory.engine:vllm_memory"},
        size_keys=_SIZES,
        share=GpuShareKey("gpu_memory_utilization", default_share=0.92, holds_everything=True),
        limit_keys=("max_num_seqs", "max_num_active_seqs", "max_num_batched_tokens"),
    ),
    StrategySpec(
        "sglang",
        {"generate": "roll.distributed.strategy.sglang.generate:SglangStrategy"},
        packages=(*_TORCH, Package("sglang", "sglang")),
        supports=frozenset({Feature.MULTI_DEVICE_WORKER, Feature.ROUTE_REPORTS}),
        not_on={"npu": "roll knows SGLang on GPUs and CPUs. Use vllm, which takes vllm-ascend there, or hf_infer"},
        problems="roll.distributed.strategy.sglang.args:problems",
        engine_model_problems="roll.distributed.strategy.sglang.args:model_problems",
        environment="roll.distributed.strategy.sglang.args:environment",
        tested="sglang",
        memory={"generate": "roll.configs.memory.engine:sglang_memory"},
        size_keys=_SIZES,
        # SGLang computes its default from the GPU and its settings; this is about what comes out on 80 GB.
        share=GpuShareKey("mem_fraction_static", default_share=0.88, holds_everything=False),
        limit_keys=("max_running_requests",),
        truncating_sampling_keys=("min_new_tokens", "repetition_penalty"),
    ),
    _megatron("megatron_train", "train", "train:MegatronTrainStrategy", "train_memory"),
    _megatron("megatron_infer", "score", "score:MegatronScoreStrategy", "score_memory"),
    StrategySpec(
        "fsdp2_train",
        {"train": "roll.distributed.strategy.fsdp2.train:Fsdp2TrainStrategy"},
        heads=("lm", "value", "reward"),
        packages=_TORCH,
        supports=_TRANSFORMERS_TRAINER,
        settings="roll.configs.strategies.fsdp2_settings:Fsdp2Settings",
        problems="roll.configs.strategies.fsdp2:problems",
        saved_facts="roll.configs.strategies.fsdp2_settings:saved_facts",
        model_problems="roll.configs.strategies.fsdp2:model_problems",
        sizes="roll.configs.strategies.packing:sizes",
        memory={"train": "roll.configs.memory.fsdp2:train_memory"},
    ),
    StrategySpec(
        "fsdp2_infer",
        {"score": "roll.distributed.strategy.fsdp2.score:Fsdp2ScoreStrategy"},
        heads=("lm", "value", "sequence"),
        packages=_TORCH,
        supports=_TRANSFORMERS_SCORER,
        settings="roll.configs.strategies.fsdp2_settings:Fsdp2Settings",
        problems="roll.configs.strategies.fsdp2:problems",
        warnings="roll.configs.strategies.fsdp2:warnings",
        model_problems="roll.configs.strategies.fsdp2:model_problems",
        sizes="roll.configs.strategies.packing:sizes",
        memory={"score": "roll.configs.memory.fsdp2:score_memory"},
    ),
)
STRATEGIES: Mapping[str, StrategySpec] = {spec.name: spec for spec in _SPECS}
_FSDP2: Mapping[Use, str] = {"train": "fsdp2_train", "score": "fsdp2_infer"}
OTHER_NAMES: Mapping[str, Mapping[Use, str]] = {"fsdp": _FSDP2, "fsdp2": _FSDP2}
"""Names that other systems give a strategy, and ours for a role of each use."""

NOTHING_KNOWN = StrategySpec("", {})


def load_spec(name: str) -> StrategySpec:
    """The spec of a strategy_name. Raises KeyError for a word that is none of the table, ImportError for a path that
    leads to no spec."""
    if name in STRATEGIES or not _is_path(name):
        return STRATEGIES[name]
    spec = resolve(name)
    if not isinstance(spec, StrategySpec):
        raise ImportError(
            f"{name} is a {type(spec).__name__}, not a StrategySpec (roll.configs.strategies.spec; see "
            "docs/adding_a_strategy.md)"
        )
    return spec


def spec_of(name: str | None) -> StrategySpec:
    """The same for what is asked before, or in spite of, an error in the name: that is told by `strategy_problems`."""
    try:
        return load_spec(name or "")
    except (KeyError, ImportError):
        return NOTHING_KNOWN


def strategies_with(feature: Feature, use: Use) -> list[str]:
    """The names of the strategies that support a feature in roles of a use."""
    if use not in FEATURES[feature].uses:
        return []
    return [name for name, spec in STRATEGIES.items() if use in spec.classes and feature in spec.supports]


def supports(choice: Choice, feature: Feature) -> bool:
    """Whether the strategy of a role supports a feature in roles of its use."""
    return choice.role.use in FEATURES[feature].uses and feature in spec_of(choice.worker.strategy_name).supports


def feature_problem(choice: Choice, feature: Feature, value: str, key: str = "", remedy: str = "") -> Problem | None:
    """Return the problem of a key that asks for a feature; None if the role's strategy supports it.

    `value`: the key's, as it stands in a YAML. `key`: its whole YAML path, where that is not the row's key of the
    role's own section. `remedy`: another one than the row's.

    Example: "actor_train.use_torch_compile: true with megatron_train, which does not compile its model. Supported by:
    deepspeed_train, fsdp2_train. Use one of them, or remove it."
    """
    if supports(choice, feature):
        return None
    row, role, name = FEATURES[feature], choice.role.name, choice.worker.strategy_name
    at, who, way_out = key or f"{role}.{row.key}", f"{choice.name_key}: {name}" if key else name, remedy or row.remedy
    if names := strategies_with(feature, choice.role.use):
        rest = f"Supported by: {', '.join(names)}. Use {'it' if len(names) == 1 else 'one of them'}, or {way_out}"
    else:
        rest = f"No strategy for {role} does. {way_out[0].upper()}{way_out[1:]}"
    return Problem(f"{at}: {value} with {who}, which does not {row.does}. {rest}.", (at, choice.name_key))


def required_facts(worker: WorkerConfig, dp_size: int) -> dict[str, object]:
    """Return the facts on which a role's saved state depends, as its strategy says; by default each rank has a part of
    it."""
    spec = spec_of(worker.strategy_name)
    if not spec.saved_facts:
        return worker.saved_facts | {"dp_size": dp_size}
    return spec.call_hook(spec.saved_facts, dict, worker, dp_size)


def _is_path(name: str) -> bool:
    return ":" in name or "." in name
