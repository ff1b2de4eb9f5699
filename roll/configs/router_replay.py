"""`router_replay` of a policy: what it cannot do with it, before anything starts."""

from collections.abc import Iterator, Mapping
from typing import Any

from roll.configs.mixture import has_experts
from roll.configs.problems import Problem
from roll.configs.strategies.spec import Choice


def router_replay_problems(choice: Choice, replays: bool, who_can: str) -> Iterator[Problem]:
    """Of a role that learns. `who_can`: strategies that train with given experts."""
    worker, key = choice.worker, _key(choice)
    mode = worker.router_replay.mode
    if not worker.router_replay.is_on:
        return
    if mode == "R3":
        yield Problem(
            f"{key}: R3 is not implemented yet: no engine hands over the experts of a rollout. Use R2.", (key,)
        )
    if not replays:
        text = (
            f"{key}: {mode} with {worker.strategy_name}, whose routers take no experts. Strategies that can: {who_can}."
        )
        yield Problem(text, (key, choice.name_key))
    if worker.use_torch_compile:
        other = f"{choice.role.name}.use_torch_compile"
        text = f"{key}: {mode} with {other}: true, whose code has no place for experts. Set that to false."
        yield Problem(text, (key, other))
    fused = f"{choice.at}.moe_router_fusion"
    if worker.strategy_config.get("moe_router_fusion"):
        yield Problem(f"{key}: {mode} with {fused}: true, whose kernel chooses by itself. Remove that.", (key, fused))


def router_replay_model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Of a model whose config.json is there."""
    if choice.worker.router_replay.is_on and "num_hidden_layers" in model and not has_experts(model):
        key, name = _key(choice), f"{choice.role.name}.model_args.model_name_or_path"
        given = choice.worker.model_args.model_name_or_path
        yield Problem(f"{key}: {given} has no experts. Set it to disable.", (key, name))


def _key(choice: Choice) -> str:
    return f"{choice.role.name}.router_replay.mode"
