"""Strategies that cost nothing, for benchmarks of what stands around them: an engine whose answers are ready at once,
and a trainer that learns nothing. A YAML names them `synthetic:ENGINE` and `synthetic:TRAINER`."""

from roll.configs.base import Settings, setting
from roll.configs.strategies.spec import StrategySpec


class EngineSettings(Settings):
    vocabulary: int = setting(300, "Answers are of tokens below this.", ge=8)


ENGINE = StrategySpec(
    "synthetic_engine",
    {"generate": "synthetic_strategies:SyntheticEngine"},
    settings="synthetic:EngineSettings",
)
TRAINER = StrategySpec("synthetic_trainer", {"train": "synthetic_strategies:SyntheticTrainer"})
