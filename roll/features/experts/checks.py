"""Mixtures of experts before anything starts: `model_args.moe_aux_loss_coef` and `router_replay`."""

from collections.abc import Iterator, Mapping
from typing import Any

from roll.configs.problems import Problem
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.run import RunConfig
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.features import Feature
from roll.configs.strategies.model_numbers import text_part
from roll.configs.strategies.table import feature_problem
from roll.configs.tables.families import family_of, has_experts
from roll.configs.tables.features import FeaturePlugin


def role_problems(choice: Choice) -> Iterator[Problem]:
    if choice.role.learns:
        yield from _balance_problems(choice)
        yield from _router_replay_problems(choice)


def model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    if choice.role.learns:
        yield from balance_model_problems(choice, model)
        yield from router_replay_model_problems(choice, model)


def _balance_problems(choice: Choice) -> Iterator[Problem]:
    """Finds what keeps a role that learns from a load-balancing loss, whatever the model."""
    args, key = choice.worker.model_args, _aux_loss_key(choice)
    if not args.moe_aux_loss_coef:
        return
    if problem := feature_problem(choice, Feature.MOE_AUX_LOSS, f"{args.moe_aux_loss_coef:g}"):
        yield problem
    for other, is_on, why in (
        (
            f"{choice.role.name}.use_torch_compile",
            choice.worker.use_torch_compile,
            "router outputs are not available there",
        ),
        (
            f"{choice.role.name}.model_args.gradient_checkpointing_use_reentrant",
            args.gradient_checkpointing_use_reentrant and not args.disable_gradient_checkpointing,
            "router outputs have no gradient there",
        ),
    ):
        if is_on:
            text = f"{key}: {args.moe_aux_loss_coef:g} with {other}: true: {why}. Set that to false, or remove the key."
            yield Problem(text, (key, other))


def balance_model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems of the balance loss with a model whose config.json is there."""
    args, kind, family = choice.worker.model_args, text_part(model).get("model_type"), family_of(text_part(model))
    experts = family and family.experts
    if args.moe_aux_loss_coef and experts and not experts.has_balance_loss:
        key = _aux_loss_key(choice)
        yield Problem(
            f"{key}: {args.moe_aux_loss_coef:g}, but {kind} models have no load-balancing loss of this kind: "
            "their routers were balanced in pretraining. Remove it.",
            (key, f"{choice.role.name}.model_args.model_name_or_path"),
        )
    elif args.moe_aux_loss_coef and "num_hidden_layers" in text_part(model) and not has_experts(model):
        key = _aux_loss_key(choice)
        yield Problem(
            f"{key}: {args.moe_aux_loss_coef:g}, but {args.model_name_or_path} has no experts that tokens could be "
            "spread over. Remove it.",
            (key, f"{choice.role.name}.model_args.model_name_or_path"),
        )


def _aux_loss_key(choice: Choice) -> str:
    return f"{choice.role.name}.model_args.moe_aux_loss_coef"


# `router_replay` of a policy.


def _router_replay_problems(choice: Choice) -> Iterator[Problem]:
    """Finds what keeps a role that learns from training with experts that were chosen before."""
    worker, key = choice.worker, _replay_key(choice)
    mode = worker.router_replay.mode
    if not worker.router_replay.is_on:
        return
    if problem := feature_problem(choice, Feature.ROUTER_REPLAY, mode):
        yield problem
    if worker.use_torch_compile:
        other = f"{choice.role.name}.use_torch_compile"
        text = f"{key}: {mode} with {other}: true, whose code has no place for experts. Set that to false."
        yield Problem(text, (key, other))
    fused = f"{choice.at}.moe_router_fusion"
    if worker.strategy_config.get("moe_router_fusion"):
        yield Problem(f"{key}: {mode} with {fused}: true, whose kernel chooses by itself. Remove that.", (key, fused))


def rollout_routes_problems(config: RunConfig) -> Iterator[Problem]:
    """Checks a run that trains with the experts of its rollouts (R3)."""
    if not isinstance(config, AlgorithmConfig) or config.actor_train.router_replay.mode != "R3":
        return
    key, mode = "actor_train.router_replay.mode", "R3"
    engine = Choice(config.roles["actor_infer"], config.actor_infer)
    if problem := feature_problem(engine, Feature.ROUTE_REPORTS, mode, key, remedy="use R2"):
        yield problem
    if config.mode in ("explore", "train") or config.experience.reuse.enable:
        reuse = "mode" if config.mode in ("explore", "train") else "experience.reuse.enable"
        yield Problem(
            f"{key}: R3 needs the experts of the rollout, which {reuse} does not store. Use R2.", (key, reuse)
        )


def router_replay_model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Checks router replay against the model's config.json: it must have experts."""
    if choice.worker.router_replay.is_on and "num_hidden_layers" in model and not has_experts(model):
        key, name = _replay_key(choice), f"{choice.role.name}.model_args.model_name_or_path"
        model_name = choice.worker.model_args.model_name_or_path
        yield Problem(f"{key}: {model_name} has no experts. Set it to disable.", (key, name))


def _replay_key(choice: Choice) -> str:
    return f"{choice.role.name}.router_replay.mode"


PLUGIN = FeaturePlugin(problems=rollout_routes_problems, role_problems=role_problems, model_problems=model_problems)
