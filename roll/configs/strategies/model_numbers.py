"""Numbers of config.json that the path of a role would leave out, by `model_facts`: they are refused, or said."""

from collections.abc import Iterator, Mapping
from typing import Any

from roll.configs.problems import Problem
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.model_facts import (
    ALPHA_ROPE,
    CAPPED,
    LOGIT_CAPS,
    LOGIT_FACTORS,
    OTHER_NUMBERS,
    PARTIAL_ROTARY,
    ROTARY_DIM,
    ROUTERS,
    SINKS,
    STATES,
    TRIED,
    UNPACKED,
    UNSAMPLED,
    VLLM_REFUSED,
)
from roll.configs.strategies.sequence_parallel import CHANGING_ROPE, rope_kinds

ATTENTION_CAP = "attn_logit_softcapping"
_CACHED_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
_STATE_LAYERS = frozenset({"conv", "linear_attention", "mamba"})
_WITHOUT = {"sdpa": "sdpa", "fa2": "flash-attn 2"}


def type_of(model: Mapping[str, Any]) -> str:
    """The model_type of the part for text."""
    kind = str(model.get("model_type"))
    return f"{kind}_text" if kind not in TRIED and f"{kind}_text" in TRIED else kind


def text_part(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of config.json that describes the text model."""
    inner = model.get("text_config")
    return {**model, **inner} if isinstance(inner, Mapping) else model


def attention_cap(model: Mapping[str, Any]) -> float | None:
    """The soft cap of a model's attention."""
    cap = model.get(ATTENTION_CAP, CAPPED.get(type_of(model)))
    return cap or None


def unread_number(model: Mapping[str, Any], of_head: bool = True) -> str | None:
    """A number in config.json that transformers' model of this type leaves out; None where there is none. `of_head`:
    also those between the head and the logits."""
    kind = type_of(model)
    readers: dict[str, Any] = {**OTHER_NUMBERS, **(LOGIT_CAPS if of_head else {}), **(LOGIT_FACTORS if of_head else {})}
    for key, kinds in readers.items():
        value = model.get(key)
        if not _is_neutral(value) and kind not in kinds:
            return (
                f"{key}: {value}, which is not supported for {kind} models. Supported for: "
                f"{', '.join(sorted(kinds)) or 'none'}"
            )
    if kind in TRIED and kind not in PARTIAL_ROTARY and (part := _partial_rotary(model)) != 1:
        return f"partial_rotary_factor: {part}, and transformers turns whole heads of {kind} models"
    if (
        kind in TRIED
        and kind not in ROTARY_DIM
        and (width := model.get("rotary_dim")) not in (None, _head_width(model))
    ):
        return f"rotary_dim: {width}, and transformers turns whole heads of {kind} models"
    for key, only in ROUTERS.get(kind, {}).items():
        if model.get(key, only) not in (only, None):
            return f"{key}: {model[key]!r}, and transformers computes {only!r} for all {kind} models"
    return None


def _head_width(model: Mapping[str, Any]) -> object:
    heads, hidden = model.get("num_attention_heads"), model.get("hidden_size")
    whole = hidden // heads if isinstance(heads, int) and isinstance(hidden, int) and heads > 0 else None
    return model.get("head_dim") or whole


def _is_neutral(value: object) -> bool:
    return value is None or (value is not True and value in (0, 1))


def _partial_rotary(model: Mapping[str, Any]) -> object:
    """The share of each head that rotary embeddings turn; 1 where they are scaled, which cuts them to size or fails."""
    rope_section = model.get("rope_parameters") or model.get("rope_scaling")
    rope = rope_section if isinstance(rope_section, Mapping) else {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        return 1
    return rope.get("partial_rotary_factor") or model.get("partial_rotary_factor") or 1


def attention_problem(implementation: str | None, model: Mapping[str, Any]) -> str | None:
    """Why attention of this kind (`attn_implementation`) would be another one than the model's, and what to use."""
    kind, cap = type_of(model), attention_cap(model)
    if implementation == "sdpa" and cap is not None:
        return f"sdpa has no soft cap, and {kind} has {ATTENTION_CAP}: {cap}. Use auto or eager, or fa2 on a GPU"
    if implementation in _WITHOUT and kind in SINKS:
        return f"{_WITHOUT[implementation]} has no sinks, and {kind} has. Use auto or eager"
    if implementation == "eager" and kind == "falcon" and model.get("alibi"):
        return "eager attention of falcon adds alibi twice. Use auto or sdpa"
    return None


def number_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Finds what is wrong with attention and numbers of a model for strategies that run transformers' models."""
    args, name, text = choice.worker.model_args, choice.role.name, text_part(model)
    model_key = f"{name}.model_args.model_name_or_path"
    if why_not := attention_problem(args.attn_implementation, text):
        key = f"{name}.model_args.attn_implementation"
        yield Problem(f"{key}: {why_not}.", (key, model_key))
    if unread := unread_number(text, choice.role.head == "lm"):
        yield Problem(
            f"{model_key}: config.json of {args.model_name_or_path} has {unread}. Remove the key there if the model "
            "was trained without it; else choose another model.",
            (model_key,),
        )
    for option, value in args.model_config_kwargs.items():
        if is_dropout(option, value):
            key = f"{name}.model_args.model_config_kwargs.{option}"
            yield Problem(f"{key}: {value}, but dropout is off in training, too. Remove it.", (key,))
    if choice.role.use == "generate" and (why := unsampled(text)):
        others = "sglang, if it has them, or another model" if type_of(text) in VLLM_REFUSED else "vllm or sglang"
        yield Problem(
            f"{choice.name_key}: {choice.worker.strategy_name} cannot sample from {args.model_name_or_path}, a "
            f"{type_of(text)} model with {why}. Use {others}.",
            (choice.name_key, model_key),
        )


def unsampled(text: Mapping[str, Any]) -> str:
    """Name the part of a model that hf_infer cannot sample with; "": none is known."""
    kind, layers = type_of(text), {str(each) for each in text.get("layer_types") or ()}
    if kind in STATES:
        return "a state in every layer and attention in none" if layers and layers <= _STATE_LAYERS else ""
    if others := sorted(layers - _CACHED_LAYERS):
        return f"layers of type {', '.join(others)}"
    if kind == "falcon":
        return UNSAMPLED["bloom"] if text.get("alibi") else ""
    return UNSAMPLED.get(kind, "") if kind != "llama4_text" or text.get("attn_temperature_tuning", True) else ""


def unpacked(text: Mapping[str, Any]) -> str:
    """Name the part of a model, by its type alone, that rules out packing; "": none is known."""
    return UNPACKED.get(type_of(text), "") if type_of(text) != "falcon" or text.get("alibi") else ""


def is_dropout(key: str, value: object) -> bool:
    """Whether it is a share of numbers or layers that training leaves out at random."""
    return "drop" in key and isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def untried_warning(choice: Choice, model: Mapping[str, Any]) -> str | None:
    """Warn if nobody has compared the log-probs computed here with the model's own."""
    kind = type_of(text_part(model))
    if kind in TRIED or choice.role.head == "sequence" or not isinstance(model.get("model_type"), str):
        return None
    return (
        f"{choice.role.name}.model_args.model_name_or_path: models of type {kind} are untested: their log-probs were "
        "never compared with those of transformers. Compare a few before a long run (docs/trainers.md)."
    )


def cap_warning(choice: Choice, model: Mapping[str, Any]) -> str | None:
    """Warn if a soft cap makes the slow attention necessary."""
    cap = attention_cap(text_part(model))
    if cap is None or choice.worker.model_args.attn_implementation not in (None, "auto"):
        return None
    return (
        f"{choice.role.name}.model_args.attn_implementation is eager: the model has {ATTENTION_CAP}: {cap}, which sdpa "
        "leaves out. Its memory grows with the square of a row; with the package flash-attn, fa2 does without."
    )


def _is_fixed_by_alpha(text: Mapping[str, Any]) -> bool:
    """True where dynamic frequencies have one base up to the reach of the model, the same in trainers and engines."""
    rope = text.get("rope_parameters") or text.get("rope_scaling")
    return type_of(text) in ALPHA_ROPE and isinstance(rope, Mapping) and bool(rope.get("alpha"))


def rope_row_problems(
    choice: Choice, model: Mapping[str, Any], longest: int, length_keys: tuple[str, ...], own_kernels: bool
) -> Iterator[Problem]:
    """Rotary frequencies that follow the longest row of a batch. `own_kernels`: an engine has its own definition."""
    text = text_part(model)
    kinds = sorted(rope_kinds(text) & CHANGING_ROPE)
    if not kinds:
        return
    args, key = choice.worker.model_args, f"{choice.role.name}.model_args.model_name_or_path"
    section = text.get("rope_parameters") or text.get("rope_scaling") or {}
    reach = section.get("original_max_position_embeddings") or text.get("original_max_position_embeddings")
    reach = reach or text.get("max_position_embeddings")
    at = f"config.json of {args.model_name_or_path} has rope_type {kinds[0]}"
    if type(reach) is int and longest > reach:
        yield Problem(
            f"sequence_length: {longest} tokens with {key}: {at}, whose frequencies change for a whole batch if one "
            f"row is longer than {reach} tokens: log-probs of a row would depend on its neighbours. Lower "
            f"{' or '.join(length_keys)}, or choose another model.",
            (*length_keys, key),
        )
    elif not own_kernels or _is_fixed_by_alpha(text):
        return
    elif kinds[0] == "dynamic":
        yield Problem(
            f"{choice.name_key}: {at}, which {choice.worker.strategy_name} computes by a fixed length, and trainers by "
            "that of the row. Use hf_infer, or choose another model.",
            (choice.name_key, key),
        )
    elif type(reach) is int:
        config = choice.worker.strategy_config
        limit = config.get("max_model_len") or config.get("context_length") or text.get("max_position_embeddings")
        if type(limit) is int and limit > reach:
            yield Problem(
                f"{choice.at}: {at}. With contexts up to {limit} {choice.worker.strategy_name} uses the long factors "
                f"for every row, trainers only beyond {reach} tokens. Set max_model_len (vllm) or context_length "
                f"(sglang) to {reach}.",
                (choice.at, key),
            )
