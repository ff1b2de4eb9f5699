"""Runs whose rows are there before them: one role learns from a part of the rows in every step, and nothing is
sampled."""

import logging
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from roll.algorithms.loss import Loss
from roll.configs.plan.run_plan import RunPlan
from roll.configs.sections.run import RunConfig
from roll.configs.tables.sight import VisionModel
from roll.datasets.mixing import RowSource, whole
from roll.datasets.preferences import load_pairs
from roll.distributed.executor.clusters import RunClusters
from roll.distributed.executor.jobs import ScoreSet, TrainJob
from roll.distributed.executor.roles import ScoreCluster, TrainCluster, share, total_of
from roll.models.vision.files import vision_of
from roll.pipeline.rows.row_config import PairConfig
from roll.pipeline.rows.row_sources import columns, rows_of
from roll.run.display.view import Column, Curve, View
from roll.run.loop import Run, of_known_length
from roll.run.policy_tokenizer import policy_tokenizer
from roll.run.saving.checkpoint import HF_MODEL, Checkpoint
from roll.run.saving.rehearsal import rehearse_saving
from roll.run.saving.resume import RunState, check_resume, data_place, state_of_roles
from roll.run.start.shown_models import check_shown
from roll.types.batch import PairRows, Rows, RowSet
from roll.types.metrics import MetricSums, prefixed
from roll.types.packing import neighbours_by_rank, parts_in_order

logger = logging.getLogger(__name__)


VIEW = View(
    columns=(
        Column("loss", "train/nll_mean", ".3f"),
        Column("val", "val/nll_mean", ".3f"),
        Column("epoch", "train/epochs", ".2f"),
        Column("tokens", "train/trained_tokens", ".0f"),
        Column("grad", "train/grad_norm", ".3g"),
        Column("lr", "train/learning_rate", ".1e"),
    ),
    training=Curve("loss", "train/nll_mean", best="lowest"),
    validation=Curve("validation", "val/nll_mean", best="lowest"),
)


class RowPipeline(Run):
    """A pipeline says which rows there are and by what loss they are learnt; the rest is here: an update per step, in
    an order that is new in every epoch, validation, checkpoints."""

    view = VIEW
    loss: Loss

    def __init__(self, config: RunConfig, plan: RunPlan):
        super().__init__(config)
        self.plan = plan
        (self.train_plan,) = plan.trains.values()
        self.clusters: RunClusters | None = None
        self.vision: VisionModel | None = None  # of the model that learns, if it sees pictures
        self.source: RowSource
        self.validation: Rows | None = None

    @abstractmethod
    def load_rows(self) -> tuple[Rows, Rows | None]:
        """The rows to train on, and those to validate with, if there are any. Raises ConfigError for what is wrong with
        the data."""

    def prepare(self, checkpoint: Checkpoint | None) -> None:
        self.vision = vision_of(self.config.learning_roles[self.train_plan.role].model_args)
        rows, self.validation = self.load_rows()
        if any(each is not None and each.media is not None for each in (rows, self.validation)):
            check_shown(self.config, self.train_plan.role, self.vision)
            self.plan = replace(self.plan, shows_pictures=True)
        per_step = self.train_plan.samples_per_step
        role, args = self.train_plan.role, self.config.learning_roles[self.train_plan.role].data_args
        size = whole(len(rows), per_step, f"{role}.data_args") if args.drop_last else len(rows)
        self.config, self.plan = of_known_length(self.config, self.plan, size, per_step)
        (self.train_plan,) = self.plan.trains.values()
        state = None
        if checkpoint is not None:
            state, _ = check_resume(checkpoint, self.config, self.plan, RunState)
        self.source = RowSource(rows, self.config.seed, args.shuffle, f"{role}.data_args", size)
        if checkpoint is not None and state is not None:
            data_place(self.source, state.data, checkpoint.path)
        rehearse_saving(self.config)

    def build(self) -> None:
        logger.info("starting Ray")
        self.clusters = RunClusters(self.config, self.plan, on_lost=self.interrupts.fail)
        self.clusters.wait_ready()
        self.accounting.watch(self.clusters)

    @property
    def running(self) -> RunClusters:
        """The clusters, once they are built."""
        assert self.clusters is not None
        return self.clusters

    @property
    def trainer(self) -> TrainCluster:
        return self.running.trainers[self.train_plan.role]

    def step(self, step: int) -> dict[str, float]:
        rows = self.rows_at(self.source.next_places(self.train_plan.samples_per_step))
        shared = self.shared(rows)
        scores = self.scores_of(rows, shared)
        with self.timer("train"), self.running.placement.hold(self.trainer.everything):
            metrics = self.trainer.train(shared, TrainJob(self.loss, temperature=1.0, num_updates=1), scores)
        self.digests.record(step + 1, self.trainer.row_numbers)
        counts = {"epochs": self.source.epochs, "trained_tokens": float(rows.response_lengths.sum())}
        return prefixed("train", metrics | counts)

    def rows_at(self, places: np.ndarray) -> Rows:
        """These rows of the training, as the loss takes them."""
        return self.source.rows.select(places)

    def scores_of(self, rows: Rows, shared: RowSet) -> Mapping[str, ScoreSet]:
        """Return other models' scores of the rows of a step, for the learner; most runs have none."""
        return {}

    def shared(self, rows: Rows) -> RowSet:
        """The rows where the workers can read them, each rank's about as many tokens as the others'. Those that belong
        together stay so."""
        by_rank = neighbours_by_rank(rows.lengths, rows.together, self.train_plan.dp_size)
        return RowSet(rows.lengths, share(rows, by_rank))

    def to_score(self, rows: Rows, cluster: ScoreCluster) -> RowSet:
        """The rows where the workers of this cluster can read them. Those that belong together stay so."""
        return RowSet(rows.lengths, share(rows, parts_in_order(len(rows), rows.together, cluster.dp_size)))

    def evaluate(self, steps_done: int) -> dict[str, float]:
        """The mean negative log-likelihood of the validation's tokens."""
        rows = self.validation
        if rows is None:
            return {}
        with self.running.placement.hold(self.trainer.weights):
            scores = self.trainer.log_probs(self.to_score(rows, self.trainer), temperature=1.0)
        return {"val/nll_mean": -total_of(scores) / max(1, int(rows.response_lengths.sum()))}

    def save(self, directory: Path) -> dict[str, Any]:
        with self.running.placement.hold(self.trainer.everything):
            self.trainer.save_checkpoint(directory / self.train_plan.role)
            self.trainer.save_hf_model(directory / HF_MODEL)
        return {"data": self.source.state_dict(), **state_of_roles(self.config, self.plan)}

    def restore(self, directory: Path, state: Mapping[str, Any], steps_done: int) -> None:
        with self.running.placement.hold(self.trainer.everything):
            self.trainer.load_checkpoint(directory / self.train_plan.role)

    def close(self) -> None:
        if self.clusters is not None:
            self.clusters.close()


# Runs that learn from pairs of answers, the better one first.

PAIR_VIEW = View(
    columns=(
        Column("loss", "train/loss", ".4f"),
        Column("accuracy", "train/accuracy", ".3f"),
        Column("margin", "train/reward_margin_mean", ".3g"),
        Column("val", "val/accuracy", ".3f"),
        Column("epoch", "train/epochs", ".2f"),
        Column("grad", "train/grad_norm", ".3g"),
        Column("lr", "train/learning_rate", ".1e"),
    ),
    training=Curve("loss", "train/loss", best="lowest"),
    validation=Curve("accuracy", "val/accuracy"),
)


class PairPipeline(RowPipeline):
    """A pipeline says what its loss makes of held-out pairs; rows and tokenizer are here."""

    config: PairConfig
    view = PAIR_VIEW

    def load_rows(self) -> tuple[Rows, Rows | None]:
        learner = self.config.learner
        self.tokenizer = policy_tokenizer(learner, self.config.value(learner).model_args)
        pairs, held_out = rows_of(self.config, load_pairs, columns(self.config), self.tokenizer, self.vision)
        return self.as_rows(pairs), None if held_out is None else self.as_rows(held_out)

    def as_rows(self, pairs: PairRows) -> PairRows:
        """The pairs as the loss takes them."""
        return pairs

    def evaluate(self, steps_done: int) -> dict[str, float]:
        """Evaluate the loss on the held-out pairs."""
        if self.validation is None:
            return {}
        assert isinstance(self.validation, PairRows)
        return self.judged(self.validation).result("val/")

    @abstractmethod
    def judged(self, pairs: PairRows) -> MetricSums:
        """Evaluate the loss on these pairs under the present weights."""
