"""Numbers of config.json that the path of a role would leave out: they are refused, or said."""

from collections.abc import Iterator, Mapping
from typing import Any

from roll.configs.problems import Problem
from roll.configs.strategies import model_numbers as numbers
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.model_facts import ALPHA_ROPE, TRIED, VLLM_REFUSED


def number_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Finds what is wrong with attention and numbers of a model for strategies that run transformers' models."""
    args, name, text = choice.worker.model_args, choice.role.name, numbers.text_part(model)
    model_key = f"{name}.model_args.model_name_or_path"
    if why_not := numbers.attention_problem(args.attn_implementation, text):
        key = f"{name}.model_args.attn_implementation"
        yield Problem(f"{key}: {why_not}.", (key, model_key))
    if choice.role.head == "lm" and (unread := numbers.unread_number(text)):
        yield Problem(
            f"{model_key}: config.json of {args.model_name_or_path} has {unread}. Remove the key there if the model "
            "was trained without it; else choose another model.",
            (model_key,),
        )
    for option, value in args.model_config_kwargs.items():
        if numbers.is_dropout(option, value):
            key = f"{name}.model_args.model_config_kwargs.{option}"
            yield Problem(f"{key}: {value}, but dropout is off in training, too. Remove it.", (key,))
    if choice.role.use == "generate" and (why := numbers.unsampled(text)):
        others = (
            "sglang, if it has them, or another model" if numbers.type_of(text) in VLLM_REFUSED else "vllm or sglang"
        )
        yield Problem(
            f"{choice.name_key}: {choice.worker.strategy_name} cannot sample from {args.model_name_or_path}, a "
            f"{numbers.type_of(text)} model with {why}. Use {others}.",
            (choice.name_key, model_key),
        )


def untried_warning(choice: Choice, model: Mapping[str, Any]) -> str | None:
    """Warn if nobody has compared the log-probs computed here with the model's own."""
    kind = numbers.type_of(numbers.text_part(model))
    if kind in TRIED or choice.role.head == "sequence" or not isinstance(model.get("model_type"), str):
        return None
    return (
        f"{choice.role.name}.model_args.model_name_or_path: models of type {kind} are untested: their log-probs were "
        "never compared with those of transformers. Compare a few before a long run (docs/trainers.md)."
    )


def cap_warning(choice: Choice, model: Mapping[str, Any]) -> str | None:
    """Warn if a soft cap makes the slow attention necessary."""
    cap = numbers.attention_cap(numbers.text_part(model))
    if cap is None or choice.worker.model_args.attn_implementation not in (None, "auto"):
        return None
    return (
        f"{choice.role.name}.model_args.attn_implementation is eager: the model has {numbers.ATTENTION_CAP}: {cap}, "
        "which sdpa leaves out. Its memory grows with the square of a row; with the package flash-attn, fa2 does "
        "without."
    )


def _is_fixed_by_alpha(text: Mapping[str, Any]) -> bool:
    """True where dynamic frequencies have one base up to the reach of the model, the same in trainers and engines."""
    rope = text.get("rope_parameters") or text.get("rope_scaling")
    return numbers.type_of(text) in ALPHA_ROPE and isinstance(rope, Mapping) and bool(rope.get("alpha"))


def rope_row_problems(
    choice: Choice, model: Mapping[str, Any], longest: int, length_keys: tuple[str, ...], own_kernels: bool
) -> Iterator[Problem]:
    """Rotary frequencies that follow the longest row of a batch. `own_kernels`: an engine has its own definition."""
    text = numbers.text_part(model)
    kinds = sorted(numbers.rope_kinds(text) & numbers.CHANGING_ROPE)
    if not kinds:
        return
    key = f"{choice.role.name}.model_args.model_name_or_path"
    section = text.get("rope_parameters") or text.get("rope_scaling") or {}
    reach = section.get("original_max_position_embeddings") or text.get("original_max_position_embeddings")
    reach = reach or text.get("max_position_embeddings")
    at = f"config.json of {choice.worker.model_args.model_name_or_path} has rope_type {kinds[0]}"
    if type(reach) is int and longest > reach:
        yield Problem(
            f"sequence_length: {longest} tokens with {key}: {at}, whose frequencies change for a whole batch if one "
            f"row is longer than {reach} tokens: log-probs of a row would depend on its neighbours. Lower "
            f"{' or '.join(length_keys)}, or choose another model.",
            (*length_keys, key),
        )
        return
    config, name = choice.worker.strategy_config, choice.worker.strategy_name
    limit = config.get("max_model_len") or config.get("context_length") or text.get("max_position_embeddings")
    if not own_kernels or _is_fixed_by_alpha(text):
        return
    if kinds[0] == "dynamic":
        why = f"{at}, which {name} computes by a fixed length, and trainers by that of the row. Use hf_infer"
        yield Problem(f"{choice.name_key}: {why}, or choose another model.", (choice.name_key, key))
    elif type(reach) is int and type(limit) is int and limit > reach:
        yield Problem(
            f"{choice.at}: {at}. With contexts up to {limit} {name} uses the long factors for every row, trainers only "
            f"beyond {reach} tokens. Set max_model_len (vllm) or context_length (sglang) to {reach}.",
            (choice.at, key),
        )
