"""LoRA before anything starts: what the settings of a role that learns say against themselves, and against its
model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from roll.configs.checks.moe import has_experts
from roll.configs.problems import Problem
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.model import ModelArgs
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.features import Feature
from roll.configs.strategies.spec import Package
from roll.configs.strategies.table import feature_problem, spec_of

if TYPE_CHECKING:
    from roll.configs.sections.algorithm import AlgorithmConfig

PEFT = Package("peft", "lora")
REFUSED_WORDS: Mapping[str, str] = {  # others of ROLL's
    "all-embedding": "adapters are for linear layers; additional_target: embed_tokens trains the embedding in full",
    "all-router": "adapters are for linear layers, and routers are not linear layers in transformers 5",
    "score": "a critic's head is trained in full, and gets no adapters",
}
_NEED_TARGET = ("adapter_name_or_path", "additional_target")
_IDLE_WITHOUT = ("lora_rank", "lora_alpha", "use_rslora", "lora_dropout")
EXPERTS_AND_RSLORA = (
    "true with adapters on the experts of a mixture, whose gate and up peft fuses as it loads them: it keeps alpha / "
    "r, not alpha / sqrt(r). Set it to false, and lora_alpha to as much more"
)
EXPERTS_WITHOUT_DOWN = (
    "adapts gate and up of experts without down, which peft does not read: it would load the model without adapters on "
    "its experts. Name all three, or down alone"
)
FUSED_EXPERTS: Mapping[str, tuple[str, ...]] = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
_PATTERNS = ("rank_pattern", "alpha_pattern")
_OWN_PATTERNS = {f".*\\.{name}" for name in FUSED_EXPERTS}  # which say no more than that experts are fused


def reference_problems(reference: WorkerConfig | None, policy: WorkerConfig) -> Iterator[Problem]:
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


def lora_warnings(choice: Choice) -> Iterator[str]:
    args = choice.worker.model_args
    if args.has_lora:
        return
    idle = [name for name in _IDLE_WITHOUT if getattr(args, name) != type(args).model_fields[name].default]
    if idle:
        yield (
            f"{choice.role.name}.model_args: {', '.join(idle)} {'does' if len(idle) == 1 else 'do'} nothing: LoRA is "
            "off (lora_target is not set)."
        )


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


# LoRA adapters that travel to engines by themselves, beside weights that stay: what switches that on, and what it
# needs.

_LORA = "actor_train.model_args.lora_target"


def sent_adapter_rank(config: AlgorithmConfig) -> int | None:
    """None: engines get whole weights, adapters merged into them. Merged ones would round otherwise than the trainer's,
    so `exact_log_probs` sends them apart."""
    return config.actor_train.model_args.lora_rank if adapter_switch(config) else None


def with_sent_adapters(engine: WorkerConfig, trainer: ModelArgs) -> WorkerConfig:
    """The settings of an engine that computes the trainer's adapters as the trainer does. Sent are A and s B, which add
    the same where s is a power of two: there alpha / r is 1. What the engine's own settings say of adapters counts as
    little as it does where merged weights are sent."""
    fields = type(trainer).model_fields
    names = ("lora_target", "lora_rank", "freeze_module_prefix")
    own = ("use_rslora", "lora_dropout", "additional_target", "adapter_name_or_path")
    adapters = {name: getattr(trainer, name) for name in names} | {"lora_alpha": trainer.lora_rank}
    adapters |= {name: fields[name].default for name in own}
    return engine.model_copy(update={"model_args": engine.model_args.model_copy(update=adapters)})


def sent_adapter_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    for name in config.model_roles:
        if config.roles[name].is_apart and (key := _key(config, name)):
            yield Problem(f"{key}: no adapter ever reaches {name}. Remove it.", (key,))
    if not (key := adapter_switch(config)):
        return
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


def sent_adapter_model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Checks LoRA weight sync against the model's config.json: a mixture is refused."""
    key = _switch(choice.role.name, choice.worker)
    if key and has_experts(model):
        model_name = choice.worker.model_args.model_name_or_path
        text = f"{key}: true with a mixture ({model_name}): the engine would put adapters on its experts, which have"
        yield Problem(f"{text} none. Remove it: merged weights are sent then.", (key,))


def adapter_switch(config: AlgorithmConfig) -> str:
    """The YAML path of what has adapters sent by themselves, where it is on."""
    is_exact = config.exact_log_probs and config.actor_train.model_args.has_lora
    return _key(config, "actor_infer") or "exact_log_probs" * is_exact


def _key(config: AlgorithmConfig, role: str) -> str:
    """The YAML path of the switch, where it is on."""
    return _switch(role, config.sections[role])


def _switch(role: str, worker: WorkerConfig) -> str:
    sync = spec_of(worker.strategy_name).lora_sync
    is_on = sync is not None and worker.strategy_config.get(sync.key)
    return f"{role}.strategy_args.strategy_config.{sync.key}" if sync and is_on else ""
