"""`router_replay` of a policy: what it cannot do with it, before anything starts."""

from collections.abc import Iterator, Mapping
from typing import Any

from roll.configs.checks.moe import has_experts
from roll.configs.problems import Problem
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.strategies.features import Feature
from roll.configs.strategies.spec import Choice
from roll.configs.strategies.table import feature_problem


def router_replay_problems(choice: Choice) -> Iterator[Problem]:
    """Finds what keeps a role that learns from training with experts that were chosen before."""
    worker, key = choice.worker, _key(choice)
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


def rollout_routes_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    """Checks a run that trains with the experts of its rollouts (R3)."""
    key, mode = "actor_train.router_replay.mode", config.actor_train.router_replay.mode
    if mode != "R3":
        return
    engine = Choice(config.roles["actor_infer"], config.actor_infer)
    if problem := feature_problem(engine, Feature.ROUTE_REPORTS, mode, key, remedy="use R2"):
        yield problem
    if config.mode in ("explore", "train") or config.experience.reuse.enable:
        reuse = "mode" if config.mode in ("explore", "train") else "experience.reuse.enable"
        yield Problem(f"{key}: R3 with {reuse}: stored experiences hold no experts. Use R2.", (key, reuse))


def router_replay_model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Checks router replay against the model's config.json: it must have experts."""
    if choice.worker.router_replay.is_on and "num_hidden_layers" in model and not has_experts(model):
        key, name = _key(choice), f"{choice.role.name}.model_args.model_name_or_path"
        given = choice.worker.model_args.model_name_or_path
        yield Problem(f"{key}: {given} has no experts. Set it to disable.", (key, name))


def _key(choice: Choice) -> str:
    return f"{choice.role.name}.router_replay.mode"
