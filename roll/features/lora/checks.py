"""LoRA before anything starts: contradictions of its settings, and what its adapters need on this machine.

The other parts of the feature are beside this file: `model_checks.py`, its settings against a model's config.json;
`adapters.py`, the adapters of a model of Hugging Face; `experts.py`, those of a mixture's experts; `megatron.py`, those
of Megatron's layers. Its keys are fields of `ModelArgs`. docs/lora.md is its page."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from roll.configs.plan.derive import lora_sync_key, sent_adapter_switch
from roll.configs.problems import Problem
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.model import Head, ModelArgs
from roll.configs.sections.run import RunConfig
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.features import Feature
from roll.configs.strategies.spec import Package
from roll.configs.strategies.table import feature_problem, spec_of
from roll.configs.tables.families import has_experts
from roll.configs.tables.features import FeaturePlugin
from roll.features.lora.model_checks import lora_model_problems
from roll.utils.files import is_hub_id, path_info
from roll.utils.imports import is_installed

PEFT = Package("peft", "lora")
REFUSED_WORDS: Mapping[str, str] = {  # others of ROLL's
    "all-embedding": "adapters are for linear layers; additional_target: embed_tokens trains the embedding in full",
    "all-router": "adapters are for linear layers, and routers are not linear layers in transformers 5",
    "score": "a critic's head is trained in full, and gets no adapters",
}
_NEED_TARGET = ("adapter_name_or_path", "additional_target")
FUSED_EXPERTS: Mapping[str, tuple[str, ...]] = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
_PATTERNS = ("rank_pattern", "alpha_pattern")
_OWN_PATTERNS = {f".*\\.{name}" for name in FUSED_EXPERTS}  # which say no more than that experts are fused


def run_problems(config: RunConfig) -> Iterator[Problem]:
    if isinstance(config, AlgorithmConfig):
        yield from sent_adapter_problems(config)
    if config.policy_is_reference:
        yield from _reference_problems(config.sections.get("reference"), config.sections["actor_train"])


def _reference_problems(reference: WorkerConfig | None, policy: WorkerConfig) -> Iterator[Problem]:
    """Checks the reference of a policy with adapters: it is the policy without them, so the section must not name
    another model."""
    ref_name = reference.model_args.model_name_or_path if reference is not None else None
    if ref_name not in (None, policy.model_args.model_name_or_path):
        key = "reference.model_args.model_name_or_path"
        yield Problem(
            f"{key}: {ref_name} is not the model of actor_train, {policy.model_args.model_name_or_path}. With "
            "actor_train.model_args.lora_target the reference is the policy without its adapters. Remove it, or "
            "lora_target.",
            (key, "actor_train.model_args.model_name_or_path", "actor_train.model_args.lora_target"),
        )


def lora_problems(choice: Choice) -> Iterator[Problem]:
    """Finds what a role that learns cannot do with its LoRA settings, whatever the machine."""
    args, at = choice.worker.model_args, f"{choice.role.name}.model_args"
    key = f"{at}.lora_target"
    if not choice.role.learns:
        return
    if not args.has_lora:
        for name in _NEED_TARGET:
            if getattr(args, name):
                text = f"{at}.{name} is for LoRA, which lora_target switches on. Set {key}, or remove it."
                yield Problem(text, (f"{at}.{name}", key))
        return
    if problem := feature_problem(choice, Feature.LORA, ", ".join(args.lora_target)):
        yield problem
    for word in args.lora_target:
        if word in REFUSED_WORDS:
            yield Problem(f"{key}: {word}: {REFUSED_WORDS[word]}.", (key,))


def other_form(saved: Mapping[str, Any], args: ModelArgs) -> str | None:
    """Return how peft's adapter_config.json differs from these settings, as the end of a message; None: they agree."""
    if patterns := [name for name in _PATTERNS if set(saved.get(name) or ()) - _OWN_PATTERNS]:
        return f"has per-layer settings ({', '.join(patterns)}), which are not supported. Choose another adapter"
    wanted = {
        "r": ("lora_rank", args.lora_rank),
        "lora_alpha": ("lora_alpha", args.adapter_alpha),
        "use_rslora": ("use_rslora", args.use_rslora),
    }
    differing = [f"{key}: {saved[name]}" for name, (key, value) in wanted.items() if saved.get(name, value) != value]
    return f"was made with {', '.join(differing)}. Set that in model_args" if differing else None


# LoRA adapters that travel to engines by themselves, beside weights that stay.

_LORA = "actor_train.model_args.lora_target"


def sent_adapter_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    for name in config.model_roles:
        if config.roles[name].is_apart and (key := lora_sync_key(name, config.sections[name])):
            yield Problem(f"{key}: no adapter ever reaches {name}. Remove it.", (key,))
    if not (key := sent_adapter_switch(config)):
        return
    if config.is_in_parts and config.has_rollouts:
        text = f"{key}: true sends adapters from the trainer's memory, and mode: {config.mode} reads weights from files"
        yield Problem(f"{text}, adapters merged into them. Remove {key}.", ("mode", key))
    trainer, args = config.actor_train, config.actor_train.model_args
    if not args.has_lora:
        text = f"{key}: true sends LoRA adapters to the engine, and actor_train trains none. Set {_LORA}, or remove it."
        yield Problem(text, (key, _LORA))
        return
    if problem := feature_problem(Choice(config.roles["actor_train"], trainer), Feature.LORA_SYNC, "true", key):
        yield problem
    if args.additional_target:
        at, modules = "actor_train.model_args.additional_target", ", ".join(args.additional_target)
        text = f"{key}: true sends adapters alone, but {at} trains {modules} in full. Remove one of them."
        yield Problem(text, (key, at))
    if any(word.rpartition(".")[2] == "lm_head" for word in args.lora_target):
        text = f"{key}: true sends no adapter of lm_head, which {_LORA} names. Remove one of them."
        yield Problem(text, (key, _LORA))
    sync = spec_of(config.actor_infer.strategy_name).lora_sync
    if sync is not None and args.lora_rank > sync.max_rank:
        at, engine = "actor_train.model_args.lora_rank", config.actor_infer.strategy_name
        text = f"{key}: true with {at}: {args.lora_rank}; {engine} takes at most {sync.max_rank}"
        yield Problem(f"{text}. Lower it, or remove {key}.", (key, at))


def model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    if choice.role.learns:
        yield from lora_model_problems(choice, model)
    if choice.role.use == "generate":
        yield from sent_adapter_model_problems(choice, model)


def sent_adapter_model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Checks LoRA weight sync against the model's config.json: a mixture is refused."""
    key = lora_sync_key(choice.role.name, choice.worker)
    if key and has_experts(model):
        model_name = choice.worker.model_args.model_name_or_path
        text = f"{key}: true with a mixture ({model_name}): the engine would put adapters on its experts, which have"
        yield Problem(f"{text} none. Remove it: merged weights are sent then.", (key,))


# What this machine lacks: the package, or the adapters that a role starts from.

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")


def adapter_problems(choice: Choice) -> Iterator[Problem]:
    """Find a missing package, and adapters that would make peft fail on every rank."""
    args, place = choice.worker.model_args, choice.worker.model_args.adapter_name_or_path
    if not choice.role.learns or not args.has_lora:
        return
    if not is_installed(PEFT.module):
        key = f"{choice.role.name}.model_args.lora_target"
        text = f"{key} needs the package {PEFT.module}, which is not installed. Install it: {PEFT.install}"
        yield Problem(text, (key,), "machine")
    if place is None or is_hub_id(place):
        return
    key = f"{choice.role.name}.model_args.adapter_name_or_path"
    if not (status := path_info(place)).is_directory:
        why = status.why if status.kind in ("hidden", "impossible") else f"there is no adapter directory {place}"
        yield Problem(f"{key}: {why}. Correct the path, or give a hub id (owner/name).", (key,), "place")
        return
    lacking = [] if path_info(Path(place, CONFIG)).is_file else [CONFIG]
    if not any(path_info(Path(place, name)).is_file for name in WEIGHTS):
        lacking.append(WEIGHTS[0])
    if lacking:
        yield Problem(
            f"{key}: {place} holds no {' and no '.join(lacking)}, so it is no adapter of peft.", (key,), "place"
        )
        return
    try:
        saved = json.loads(Path(place, CONFIG).read_text())
    except (OSError, ValueError, RecursionError) as error:
        yield Problem(f"{key}: {place}/{CONFIG} cannot be read: {error}.", (key,))
        return
    why = other_form(saved, args) if isinstance(saved, dict) else f"has no settings in {CONFIG}. Choose another"
    if why is not None:
        yield Problem(f"{key}: {place} {why}.", (key,))


def _add_adapters(pretrained: Any, args: ModelArgs, head: Head, empty: bool) -> Any:
    from roll.features.lora.adapters import add_adapters  # torch

    return add_adapters(pretrained, args, head, empty) if args.has_lora else None


PLUGIN = FeaturePlugin(
    problems=run_problems,
    role_problems=lora_problems,
    role_machine_problems=adapter_problems,
    model_problems=model_problems,
    add_adapters=_add_adapters,
)
