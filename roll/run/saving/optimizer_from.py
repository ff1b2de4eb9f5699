"""Roles that begin with the optimizer of another run (`optimizer_from`)."""

import logging
from pathlib import Path

from roll.configs.plan.run_plan import RunPlan
from roll.configs.sections.run import RunConfig
from roll.configs.strategies.table import required_facts
from roll.distributed.executor.clusters import RunClusters
from roll.distributed.strategy.saved_facts import SavedFacts
from roll.errors import ConfigError, StrategyError

logger = logging.getLogger(__name__)


def check_optimizer_from(config: RunConfig, plan: RunPlan) -> None:
    """Raises ConfigError for states that these settings cannot begin with, before anything is started."""
    problems = []
    for role, worker in config.learning_roles.items():
        if (place := worker.training_args.optimizer_from) is None:
            continue
        try:
            wrong = SavedFacts.read(Path(place)).disagreements(required_facts(worker, plan.trains[role].dp_size))
        except StrategyError as error:
            problems.append(f"{_key(role)}: {error}. Name a role's folder in a checkpoint step_*.")
            continue
        if wrong:
            problems.append(
                f"{_key(role)}: {place} was saved with {', '.join(wrong)}, to which an optimizer's state "
                "is tied. Begin with the same, or with a fresh one."
            )
    if problems:
        raise ConfigError(*problems)


def _key(role: str) -> str:
    return f"{role}.training_args.optimizer_from"


def load_optimizer_from(config: RunConfig, clusters: RunClusters) -> None:
    """Loads them into the trainers."""
    for role, worker in config.learning_roles.items():
        if (place := worker.training_args.optimizer_from) is not None:
            trainer = clusters.trainers[role]
            logger.info("%s begins with the weights and the optimizer in %s", role, place)
            with clusters.placement.hold(trainer.everything):
                trainer.load_optimizer_from(Path(place).absolute())
