"""Reinforcement learning for language models, from a laptop to a cluster.

`roll.train(model, data, reward)` is a run; `roll.start("my_run.yaml")` one to iterate over; docs/python.md has all of
it. Nothing heavy is imported before a name is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roll.api.calls import distill, dpo, plan, reward_model, sft, start, train
    from roll.api.calls import evaluate as eval
    from roll.api.planned import Plan
    from roll.api.running import Step, TrainingRun
    from roll.api.saved import SavedRun
    from roll.api.saved import open_run as open
    from roll.errors import ConfigError, RollError
    from roll.utils.version import VERSION as __version__

__all__ = [
    "ConfigError",
    "Plan",
    "RollError",
    "SavedRun",
    "Step",
    "TrainingRun",
    "__version__",
    "distill",
    "dpo",
    "eval",
    "open",
    "plan",
    "reward_model",
    "sft",
    "start",
    "train",
]

_PLACES = {
    **dict.fromkeys(("train", "sft", "dpo", "reward_model", "distill", "start", "plan"), "roll.api.calls"),
    **dict.fromkeys(("Step", "TrainingRun"), "roll.api.running"),
    **dict.fromkeys(("ConfigError", "RollError"), "roll.errors"),
    "eval": "roll.api.calls:evaluate",
    "open": "roll.api.saved:open_run",
    "Plan": "roll.api.planned",
    "SavedRun": "roll.api.saved",
    "__version__": "roll.utils.version:VERSION",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'roll' has no attribute {name!r}")
    module, _, there = _PLACES[name].partition(":")
    return getattr(import_module(module), there or name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
