"""Direct preference optimization: the policy learns by how much more it likes the better answer than a reference
does."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from roll.algorithms.preference import DPOLoss
from roll.configs.plan.run_plan import RunPlan
from roll.distributed.executor.step_rows import rows_of_scores
from roll.pipeline.dpo.dpo_config import DPOConfig
from roll.pipeline.dpo.dpo_loss import CachedLogProbs, name_of
from roll.pipeline.rows.row_pipeline import PairPipeline
from roll.run.saving.checkpoint import Checkpoint
from roll.types.batch import PairRows, Rows
from roll.types.columns import sum_rows
from roll.types.metrics import MetricSums


class DPOPipeline(PairPipeline):
    """Log-probs of the reference are computed when a row is drawn first, and kept."""

    config: DPOConfig
    loss: DPOLoss

    def __init__(self, config: DPOConfig, plan: RunPlan):
        super().__init__(config, plan)
        self.loss = DPOLoss(**{each.name: config.value(each.name) for each in fields(DPOLoss)})

    def prepare(self, checkpoint: Checkpoint | None) -> None:
        super().prepare(checkpoint)
        self._cached = self._to_keep(self.source.rows)
        self._cached_validation = None if self.validation is None else self._to_keep(self.validation)
        if checkpoint is not None and not self.config.reference_free:
            self._cached.load(checkpoint.path)

    def _to_keep(self, rows: Rows) -> CachedLogProbs:
        config = self.config
        model = config.actor_train if config.policy_is_reference or config.reference is None else config.reference
        return CachedLogProbs(rows, name_of(model.model_args))

    def rows_at(self, places: np.ndarray) -> Rows:
        rows = super().rows_at(places)
        assert isinstance(rows, PairRows)
        return replace(rows, ref_log_probs=self._reference(self.source.rows, places, self._cached))

    def _reference(self, rows: Rows, places: np.ndarray, cached: CachedLogProbs) -> np.ndarray | None:
        if self.config.reference_free:
            return None
        missing = cached.missing(places)
        if len(missing):
            with self.timer("ref_log_probs"):
                cached.store(missing, self._reference_scores(rows.select(missing)))
        return cached.of(places)

    def _reference_scores(self, rows: Rows) -> dict[int, np.ndarray]:
        hold = self.running.placement.hold
        if self.config.policy_is_reference:
            with hold(self.trainer.weights):
                return rows_of_scores(self.trainer.base_log_probs(self.to_score(rows, self.trainer), temperature=1.0))
        reference = self.running.scorers["reference"]
        with hold(reference.everything):
            return rows_of_scores(reference.log_probs(self.to_score(rows, reference), temperature=1.0))

    def judged(self, pairs: PairRows) -> MetricSums:
        with self.running.placement.hold(self.trainer.weights):
            scores = rows_of_scores(self.trainer.log_probs(self.to_score(pairs, self.trainer), temperature=1.0))
        log_probs = np.concatenate([scores[row] for row in range(len(pairs))]).astype(np.float64)
        cached = self._cached_validation
        reference = None if cached is None else self._reference(pairs, np.arange(len(pairs)), cached)
        gaps = log_probs if reference is None else log_probs - reference
        of_rows = (sum_rows(values, pairs.lengths) for values in (log_probs, gaps))
        return self.loss.of_rows(*map(torch.from_numpy, (*of_rows, pairs.response_lengths)))[1]

    def save(self, directory: Path) -> dict[str, Any]:
        state = super().save(directory)
        if not self.config.reference_free:
            self._cached.save(directory)
        return state
