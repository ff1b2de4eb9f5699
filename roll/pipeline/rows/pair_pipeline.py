"""Runs that learn from pairs of answers, the better one first."""

from __future__ import annotations

from abc import abstractmethod

from roll.pipeline.rows.pair_config import PairConfig
from roll.pipeline.rows.row_pipeline import RowPipeline
from roll.pipeline.rows.row_sources import pairs_of
from roll.run.display.display_view import Column, Curve, View
from roll.run.policy_tokenizer import policy_tokenizer
from roll.types.batch import PairRows, Rows
from roll.types.metrics import MetricSums

VIEW = View(
    columns=(
        Column("loss", "train/loss", ".4f"),
        Column("accuracy", "train/accuracy", ".3f"),
        Column("margin", "train/reward_margin_mean", ".3g"),
        Column("val", "val/accuracy", ".3f"),
        Column("epoch", "train/epochs", ".2f"),
        Column("grad", "train/grad_norm", ".3g"),
        Column("lr", "train/learning_rate", ".1e"),
    ),
    training=Curve("loss", "train/loss", "loss of the pairs", best="lowest"),
    validation=Curve("accuracy", "val/accuracy", "held-out pairs in the right order"),
)


class PairPipeline(RowPipeline):
    """A pipeline says what its loss makes of held-out pairs; rows and tokenizer are here."""

    config: PairConfig
    view = VIEW

    def load_rows(self) -> tuple[Rows, Rows | None]:
        learner = self.config.learner
        self.tokenizer = policy_tokenizer(learner, self.config.value(learner).model_args)
        pairs, *held_out = pairs_of(self.config, self.tokenizer, self.config.sequence_length)
        return self.as_rows(pairs), self.as_rows(held_out[0]) if held_out else None

    def as_rows(self, pairs: PairRows) -> PairRows:
        """The pairs as the loss takes them."""
        return pairs

    def evaluate(self, steps_done: int) -> dict[str, float]:
        """What the loss says of the held-out pairs."""
        if self.validation is None:
            return {}
        assert isinstance(self.validation, PairRows)
        return self.judged(self.validation).result("val/")

    @abstractmethod
    def judged(self, pairs: PairRows) -> MetricSums:
        """What the loss says of these pairs under the weights of now."""
