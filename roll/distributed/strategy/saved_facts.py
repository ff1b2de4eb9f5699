"""What a trainer's saved state must agree with: kept beside it, so that a run learns it before anything is started."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from roll.configs.cluster import WorkerConfig
from roll.configs.deepspeed import zero_stage
from roll.configs.megatron import split_settings
from roll.errors import StrategyError
from roll.utils.json_files import read_object

_FILE = "facts.json"


@dataclass(frozen=True)
class SavedFacts:
    """`fixed` must be the same on resume; `layout` says how the state lies in its files, for a reader that takes
    any."""

    fixed: Mapping[str, object]
    layout: Mapping[str, object] | None = None

    def write(self, directory: Path) -> None:
        (directory / _FILE).write_text(json.dumps(vars(self), indent=2))

    @classmethod
    def read(cls, directory: Path) -> SavedFacts:
        """StrategyError where there are none."""
        try:
            saved = read_object(directory / _FILE)
        except (OSError, ValueError) as error:
            raise StrategyError(f"{directory} holds no state of a role that learns: {_FILE}: {error}") from error
        fixed, layout = saved.get("fixed", saved), saved.get("layout")  # deepspeed_train once wrote `fixed` alone
        return cls(fixed if isinstance(fixed, dict) else {}, layout if isinstance(layout, dict) else None)

    def disagreements(self, required: Mapping[str, object]) -> list[str]:
        """What differs; a fact that an earlier version did not keep agrees.

        Example: ["zero_stage 1 (now 2)"]
        """
        then = self.fixed
        return [f"{key} {then[key]!r} (now {now!r})" for key, now in required.items() if then.get(key, now) != now]


def required_facts(role: WorkerConfig, dp_size: int) -> dict[str, object]:
    """What a role's saved state is tied to.

    DeepSpeed keeps one file per rank, cut by the ZeRO stage. Megatron reads its files under any parallel sizes. Under
    the distributed optimizer they hold fp32 weights and moments by the parameter's name, whatever dtype and experts;
    without it they lie otherwise for each."""
    model, config = role.model_args, role.strategy_config
    facts: dict[str, object] = {
        "strategy_name": role.strategy_name,
        "freeze_module_prefix": model.freeze_module_prefix,
        "dtype": model.dtype,
    }
    if role.strategy_name != "megatron_train":
        return facts | {"dp_size": dp_size, "zero_stage": zero_stage(config)}
    settings, _ = split_settings(config)
    facts["use_distributed_optimizer"] = settings.use_distributed_optimizer
    if settings.use_distributed_optimizer:
        del facts["dtype"]
        return facts
    return facts | {"expert parallel": settings.expert_model_parallel_size > 1}
