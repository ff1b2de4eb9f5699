from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roll.configs.sections.cluster import WorkerConfig
    from roll.configs.tables.roles import Role


@dataclass(frozen=True)
class Choice:
    """A role that runs on a strategy, as the strategy's spec is asked about it."""

    role: Role
    worker: WorkerConfig
    max_grad_norm: float = 1.0
    num_nodes: int = 1
    longest: int = 0  # tokens of the longest row
    platform: str = "auto"  # the key of the run

    @property
    def name_key(self) -> str:
        """The YAML path of the strategy's name."""
        return f"{self.role.name}.strategy_args.strategy_name"

    @property
    def at(self) -> str:
        """The YAML path of the strategy's own settings."""
        return f"{self.role.name}.strategy_args.strategy_config"
