"""Keys of Trinity and verl for rollouts that run ahead which no key of ours renames: what is to be written instead,
with the numbers of the YAML. Those that a key renames are in `aliases`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import floor
from typing import Any

from roll.configs.base import Settings
from roll.configs.problems import Problem
from roll.utils.text import show

_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "explorer": ("over_rollout", "dynamic_timeout", "max_retry_times", "runner_state_report_interval"),
    "synchronizer": ("sync_interval", "sync_offset", "sync_style"),
    "async_training": (
        "staleness_threshold",
        "trigger_parameter_sync_step",
        "require_batches",
        "partial_rollout",
        "use_rollout_log_probs",
    ),
}
"""Sections that they stand in there; here they are taken at the top level."""

_INERT: Mapping[str, tuple[Any, ...]] = {
    "sync_style": ("fixed",),
    "partial_rollout": (True,),
    "over_rollout": (),
    "dynamic_timeout": (),
    "require_batches": (),
    "staleness_threshold": (0,),
    "max_retry_times": (0,),
}
"""Values that ask for what is there anyway."""

_SWITCHES: Mapping[str, str] = {"over_rollout": "ratio", "dynamic_timeout": "enable"}
"""What turns a section on: without it the rest of the section asks for nothing."""

Tree = Mapping[str, Any]


def _over_rollout(value: Any, tree: Tree) -> str:
    ratio, num_prompts = (
        _number(value.get("ratio") if isinstance(value, dict) else None),
        tree.get("rollout_batch_size"),
    )
    started = _number(num_prompts)
    if ratio is None or not 0 < ratio < 1:
        return "unfinished_groups: drop with an async_generation_ratio, and unfinished_grace_s for wait_after_min"
    trained = "" if started is None else f", rollout_batch_size: {floor(round(started * (1 - ratio), 6))}"
    grace = _number(value.get("wait_after_min"))
    waits = "" if grace is None else f", unfinished_grace_s: {grace:g}"
    return f"unfinished_groups: drop, async_generation_ratio: {ratio / (1 - ratio):.4g}{trained}{waits}"


def _dynamic_timeout(value: Any, tree: Tree) -> str:
    return "rewards.<domain>.dynamic_timeout, with the same ratio"


def _retries(value: Any, tree: Tree) -> str:
    return f"rewards.<domain>.reward_retries: {show(value)} or train_env_manager.env_retries: {show(value)}"


def _sync_style(value: Any, tree: Tree) -> str:
    return (
        "sync_style: fixed: weights go to the engines after every actor_train.model_update_frequency steps (1: each), "
        "and answers under way go on with them"
    )


def _staleness_threshold(value: Any, tree: Tree) -> str:
    share, steps = _number(value), _number(_interval(tree))
    if share is None or steps is None:
        return "async_generation_ratio, and max_staleness for the age of a token"
    return (
        f"async_generation_ratio: {share * steps:g} (the share, {share:g}, of the {steps:g} steps between two "
        "publishes), and max_staleness for the age of a token"
    )


def _require_batches(value: Any, tree: Tree) -> str:
    return "rollout_batch_size: the prompts of a step, require_batches x ppo_mini_batch_size"


def _partial_rollout(value: Any, tree: Tree) -> str:
    return "nothing: answers under way always go on with new weights, and every token knows its own"


_INSTEAD: Mapping[str, Callable[[Any, Tree], str]] = {
    "over_rollout": _over_rollout,
    "dynamic_timeout": _dynamic_timeout,
    "max_retry_times": _retries,
    "sync_style": _sync_style,
    "staleness_threshold": _staleness_threshold,
    "require_batches": _require_batches,
    "partial_rollout": _partial_rollout,
}


def take_ahead_names(cls: type[Settings], tree: dict[str, Any]) -> Iterator[Problem]:
    """Brings keys of their sections to the top level, and takes those out that no key of ours renames."""
    if "RolloutConfig" not in (base.__name__ for base in cls.__mro__):  # the class itself needs this module
        return
    at: dict[str, str] = {}
    for section, names in _SECTIONS.items():
        below = tree.get(section)
        if not isinstance(below, dict):
            continue
        for name in [name for name in names if name in below and name not in tree]:
            tree[name], at[name] = below.pop(name), f"{section}.{name}"
        if not below:
            del tree[section]
    given = dict(tree)
    for name, instead in _INSTEAD.items():
        if name in tree and not _is_inert(name, value := tree.pop(name)):
            key = at.get(name, name)
            yield Problem(f"{key}: {show(value)} has no key of its own here. Write {instead(value, given)}.", (key,))


def _is_inert(name: str, value: Any) -> bool:
    is_off = name in _SWITCHES and isinstance(value, dict) and not value.get(_SWITCHES[name])
    return value is None or is_off or value in _INERT[name]


def _interval(tree: Tree) -> Any:
    trainer = tree.get("actor_train")
    ours = trainer.get("model_update_frequency", 1) if isinstance(trainer, dict) else 1
    return tree.get("trigger_parameter_sync_step", tree.get("sync_interval", ours))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
