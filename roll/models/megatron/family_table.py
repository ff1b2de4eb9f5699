"""Check by its config.json whether Megatron can build a model. Read before a run starts, so it needs no torch."""

from collections.abc import Iterator, Mapping
from typing import Any

from roll.configs.problems import Problem
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.megatron_checks import ModelFacts, megatron_problems, sizes_problems, tied_problem
from roll.configs.strategies.megatron_config import split_settings
from roll.configs.strategies.model_facts import DELTA_RULES
from roll.configs.strategies.model_numbers import unread_number
from roll.configs.tables import families
from roll.configs.tables.families import MegatronForm

ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # those that do not change with the length of a row


FAMILIES: Mapping[str, MegatronForm] = {
    kind: family.megatron for kind, family in families.FAMILIES.items() if family.megatron is not None
}
"""Families by the model_type of config.json."""
_NORM_KEY = "norm_topk_prob"
_DELTA_RULES = frozenset(kind.removesuffix("_text") for kind in DELTA_RULES)


def family_problem(model: Mapping[str, Any]) -> str | None:
    """Why Megatron cannot build the model of this config.json, or None. Keys that it leaves out are not judged."""
    model_type = model.get("model_type")
    if not isinstance(model_type, str):
        return None
    if model_type.removesuffix("_text") in _DELTA_RULES:
        return (
            f"megatron: {model_type} models have gated delta nets, which Megatron-Core 0.16 computes by "
            "flash-linear-attention and transformer-engine alone, without packed rows or context parallel. Use "
            "fsdp2_train, whose ep_size divides experts."
        )
    if model_type not in FAMILIES:
        return (
            f"megatron knows no {model_type} models; it knows {', '.join(FAMILIES)}. docs/adding_a_model.md shows how "
            "to add one; the deepspeed strategies take any Hugging Face model."
        )
    if quantized := model.get("quantization_config"):
        method = quantized.get("quant_method") if isinstance(quantized, Mapping) else None
        return (
            f"megatron: weights in 8 or 4 bits (quantization_config, quant_method {method!r}) are not read. Start from "
            "a copy in bf16, without quantization_config in its config.json: from_pretrained of transformers, "
            "dequantized, and save_pretrained (which leaves MTP heads out; publishers of such models "
            "have scripts that keep them)."
        )
    for key, supported in FAMILIES[model_type].only.items():
        if model.get(key, supported) != supported:
            return (
                f"megatron: {model_type} with {key} {model[key]!r} is not supported (only {supported!r}); "
                "the deepspeed strategies take any Hugging Face model."
            )
    if unread := unread_number(model):
        return f"megatron: config.json has {unread}."
    experts = families.FAMILIES[model_type].experts
    default = experts.norms_chosen if experts else None
    if default is not None and model.get(_NORM_KEY, default) and model.get("num_experts_per_tok") == 1:
        return (
            f"megatron: {model_type} with num_experts_per_tok 1 is not supported: one expert's weight is always 1, so "
            "that its router has no gradient. The deepspeed strategies take any Hugging Face model."
        )
    rope = model.get("rope_parameters") or model.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, Mapping) else "default"
    if kind not in ROPE_TYPES:
        return f"megatron: rope_type {kind!r} is not supported; {', '.join(ROPE_TYPES)} are."
    if kind == "yarn" and rope.get("partial_rotary_factor", 1.0) != 1.0:
        return "megatron: rope_type 'yarn' on a part of a head (partial_rotary_factor) is not supported."
    return None


# What a model's config.json says against the megatron strategies and their parallel sizes; imports no torch.


def model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    why_not = family_problem(model)
    if why_not is not None:
        yield Problem(f"{choice.name_key}: {why_not}", (choice.name_key,))
        return
    if list(megatron_problems(choice.at, choice.worker.strategy_config)):
        return
    settings, facts = split_settings(choice.worker.strategy_config)[0], ModelFacts.of(model)
    if facts is not None:
        yield from sizes_problems(choice.at, settings, facts)
    stages = settings.pipeline_model_parallel_size
    why_not = tied_problem(bool(model.get("tie_word_embeddings")), stages)
    if why_not is not None and choice.worker.trains_prediction_head:
        key, other = f"{choice.role.name}.mtp_training_mode", f"{choice.at}.pipeline_model_parallel_size"
        yield Problem(f"{key}: {why_not}. Set {other}: 1, or {key}: disabled.", (key, other))
