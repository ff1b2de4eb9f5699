"""LoRA adapters that travel to engines by themselves, beside weights that stay: what switches that on, and what it
needs."""

from collections.abc import Iterator, Mapping
from typing import Any

from roll.configs.checks.moe import has_experts
from roll.configs.problems import Problem
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.features import Feature
from roll.configs.strategies.spec import Choice
from roll.configs.strategies.table import feature_problem, spec_of

_LORA = "actor_train.model_args.lora_target"


def sent_adapter_rank(config: AlgorithmConfig) -> int | None:
    """None: engines get whole weights, adapters merged into them."""
    return config.actor_train.model_args.lora_rank if _key(config, "actor_infer") else None


def sent_adapter_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    for name in config.model_roles:
        if config.roles[name].is_apart and (key := _key(config, name)):
            yield Problem(f"{key}: no adapter ever reaches {name}. Remove it.", (key,))
    if not (key := _key(config, "actor_infer")):
        return
    trainer, args = config.actor_train, config.actor_train.model_args
    if not args.has_lora:
        text = f"{key}: true sends LoRA adapters to the engine, and actor_train trains none. Set {_LORA}, or remove it."
        yield Problem(text, (key, _LORA))
        return
    if problem := feature_problem(Choice(config.roles["actor_train"], trainer), Feature.LORA_SYNC, "true", key):
        yield problem
    if args.additional_target:
        at, words = "actor_train.model_args.additional_target", ", ".join(args.additional_target)
        text = f"{key}: true sends adapters alone, but {at} trains {words} in full. Remove one of them."
        yield Problem(text, (key, at))
    if any(word.rpartition(".")[2] == "lm_head" for word in args.lora_target):
        text = f"{key}: true sends no adapter of lm_head, which {_LORA} names. Remove one of them."
        yield Problem(text, (key, _LORA))
    sync = spec_of(config.actor_infer.strategy_name).lora_sync
    if sync is not None and args.lora_rank > sync.max_rank:
        at, engine = "actor_train.model_args.lora_rank", config.actor_infer.strategy_name
        text = f"{key}: true with {at}: {args.lora_rank}; {engine} takes at most {sync.max_rank}"
        yield Problem(f"{text}. Lower it, or remove {key}.", (key, at))


def sent_adapter_model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Checks LoRA weight sync against the model's config.json: a mixture is refused."""
    key = _switch(choice.role.name, choice.worker)
    if key and has_experts(model):
        model_name = choice.worker.model_args.model_name_or_path
        text = f"{key}: true with a mixture ({model_name}): the engine would put adapters on its experts, which have"
        yield Problem(f"{text} none. Remove it: merged weights are sent then.", (key,))


def adapter_switch(config: AlgorithmConfig) -> str:
    """The YAML path of what has adapters sent by themselves, where it is on."""
    return _key(config, "actor_infer")


def _key(config: AlgorithmConfig, role: str) -> str:
    """The YAML path of the switch, where it is on."""
    return _switch(role, config.sections[role])


def _switch(role: str, worker: WorkerConfig) -> str:
    sync = spec_of(worker.strategy_name).lora_sync
    is_on = sync is not None and worker.strategy_config.get(sync.key)
    return f"{role}.strategy_args.strategy_config.{sync.key}" if sync and is_on else ""
