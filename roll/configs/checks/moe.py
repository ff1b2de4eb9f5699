"""`model_args.moe_aux_loss_coef`: what a role cannot do with it, before anything starts."""

from collections.abc import Iterator, Mapping
from typing import Any

from roll.configs.problems import Problem
from roll.configs.strategies.features import Feature
from roll.configs.strategies.spec import Choice
from roll.configs.strategies.table import feature_problem
from roll.configs.tables.families import family_of

# Keys of config.json, by family, for how many experts a layer has.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def balance_problems(choice: Choice) -> Iterator[Problem]:
    """Finds what keeps a role that learns from a load-balancing loss, whatever the model."""
    args, key = choice.worker.model_args, _key(choice)
    if not args.moe_aux_loss_coef:
        return
    if problem := feature_problem(choice, Feature.MOE_AUX_LOSS, f"{args.moe_aux_loss_coef:g}"):
        yield problem
    for other, is_on, why in (
        (
            f"{choice.role.name}.use_torch_compile",
            choice.worker.use_torch_compile,
            "what routers say is not told there",
        ),
        (
            f"{choice.role.name}.model_args.gradient_checkpointing_use_reentrant",
            args.gradient_checkpointing_use_reentrant and not args.disable_gradient_checkpointing,
            "what routers say has no gradient there",
        ),
    ):
        if is_on:
            text = f"{key}: {args.moe_aux_loss_coef:g} with {other}: true: {why}. Set that to false, or remove the key."
            yield Problem(text, (key, other))


def balance_model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Of a model whose config.json is there."""
    args, kind, family = choice.worker.model_args, _text(model).get("model_type"), family_of(_text(model))
    experts = family and family.experts
    if args.moe_aux_loss_coef and experts and not experts.has_balance_loss:
        key = _key(choice)
        yield Problem(
            f"{key}: {args.moe_aux_loss_coef:g}, but {kind} models have no load-balancing loss of this kind: what "
            "their routers choose by was balanced in pretraining, and stays as it is. Remove it.",
            (key, f"{choice.role.name}.model_args.model_name_or_path"),
        )
    elif args.moe_aux_loss_coef and "num_hidden_layers" in _text(model) and not has_experts(model):
        key = _key(choice)
        yield Problem(
            f"{key}: {args.moe_aux_loss_coef:g}, but {args.model_name_or_path} has no experts that tokens could be "
            "spread over. Remove it.",
            (key, f"{choice.role.name}.model_args.model_name_or_path"),
        )


def has_experts(model: Mapping[str, Any]) -> bool:
    """True if config.json describes a mixture. The language model may have a section of its own in it."""
    return any(_text(model).get(key) for key in EXPERTS)


def _text(model: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = model.get("text_config")
    return inner if isinstance(inner, Mapping) else model


def _key(choice: Choice) -> str:
    return f"{choice.role.name}.model_args.moe_aux_loss_coef"
