"""`mode: bench`: a process that measures what a run has saved."""

import logging
from collections.abc import Iterator, Mapping
from typing import TypeVar

from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.errors import ConfigError
from roll.rl.mode import RLMode
from roll.run.saving.checkpoint import HF_MODEL, Checkpoint, CheckpointStore

logger = logging.getLogger(__name__)
C = TypeVar("C", bound=AlgorithmConfig)


class BenchMode(RLMode):
    """Measures a model, or the policy of a checkpoint, and ends."""

    takes_steps = False
    saves = False

    def find_checkpoint(self, store: CheckpointStore, resume_from: bool | str) -> Checkpoint | None:
        return checkpoint_to_measure(store, resume_from)

    def prepare(self, config: AlgorithmConfig, plan: BatchPlan, checkpoint: Checkpoint | None) -> AlgorithmConfig:
        return config if checkpoint is None else of_checkpoint(config, checkpoint)

    def show(self, metrics: Mapping[str, float]) -> None:
        for line in summary_lines(metrics):
            logger.info("%s", line)


def checkpoint_to_measure(store: CheckpointStore, resume_from_checkpoint: bool | str) -> Checkpoint | None:
    """Return the checkpoint to measure; None: the model that the YAML names. The store is that of another run, which
    may be under way: nothing is removed from it. Raises ConfigError where there is no such checkpoint."""
    if not resume_from_checkpoint:
        return None
    checkpoint = store.resolve(resume_from_checkpoint, cleans=False)
    if checkpoint is None:
        raise ConfigError(
            f"resume_from_checkpoint: there is no checkpoint in {store.directory} to measure. Name one, or set it to "
            "false for the model of actor_infer."
        )
    return checkpoint


def of_checkpoint(config: C, checkpoint: Checkpoint) -> C:
    """The settings of a run whose engines start with the policy of a checkpoint. Raises ConfigError for one without
    its hf_model."""
    model = checkpoint.path / HF_MODEL
    if not (model / "config.json").is_file():
        raise ConfigError(f"resume_from_checkpoint: {checkpoint.path} holds no {HF_MODEL} to measure.")
    engines = config.actor_infer
    tokenizer = engines.model_args.tokenizer_path or engines.model_args.model_name_or_path
    args = {"model_name_or_path": str(model), "tokenizer_path": tokenizer}
    changed = engines.model_copy(update={"model_args": engines.model_args.model_copy(update=args)})
    return config.model_copy(update={"actor_infer": changed})


def summary_lines(metrics: Mapping[str, float]) -> Iterator[str]:
    width = max(map(len, metrics), default=0)
    yield from (f"{name:<{width}}  {value:.4f}" for name, value in metrics.items())
