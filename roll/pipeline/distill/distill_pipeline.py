"""Distillation: a student learns the answers of rows, and what a teacher finds likely at each of their tokens."""

from collections.abc import Mapping

from roll.algorithms.distillation import Distillation, DistillLoss, Divergence
from roll.configs.plan.run_plan import RunPlan
from roll.datasets.conversations import Columns, load_conversations
from roll.distributed.executor.jobs import ScoreSet
from roll.distributed.executor.roles import ScoreCluster
from roll.errors import ConfigError
from roll.models.hub import local_model
from roll.models.loading import shared_vocabulary
from roll.pipeline.distill.distill_config import DistillConfig
from roll.pipeline.rows.row_pipeline import RowPipeline
from roll.pipeline.rows.row_sources import rows_of
from roll.run.display.view import Column, Curve, View
from roll.run.policy_tokenizer import check_teacher, policy_tokenizer
from roll.types.batch import Rows, RowSet

# Builds the objects of distillation from its keys.


def columns(config: DistillConfig) -> Columns:
    return Columns(config.question_key, config.query_key, config.answer_key, config.system_key, config.tools_key)


def divergence(config: DistillConfig) -> Divergence:
    student, theirs = config.temperatures
    return Divergence(config.kd_objective, student, theirs, config.adaptive_kl_alpha, config.skew_lambda)


VIEW = View(
    columns=(
        Column("loss", "train/loss", ".4f"),
        Column("divergence", "train/divergence_mean", ".4f"),
        Column("nll", "train/nll_mean", ".3f"),
        Column("val", "val/nll_mean", ".3f"),
        Column("epoch", "train/epochs", ".2f"),
        Column("grad", "train/grad_norm", ".3g"),
        Column("lr", "train/learning_rate", ".1e"),
    ),
    training=Curve("divergence", "train/divergence_mean", best="lowest"),
    validation=Curve("validation", "val/nll_mean", best="lowest"),
)


class DistillPipeline(RowPipeline):
    """The teacher scores each step's rows just before the update; targets go from its workers to the student's."""

    config: DistillConfig
    view = VIEW

    def __init__(self, config: DistillConfig, plan: RunPlan):
        super().__init__(config, plan)
        self.loss = DistillLoss(config.distill_loss_weight)

    def load_rows(self) -> tuple[Rows, Rows | None]:
        self.tokenizer = policy_tokenizer("student", self.config.student.model_args)
        self.distillation = self._read_distillation()
        return rows_of(self.config, load_conversations, columns(self.config), self.tokenizer, self.vision)

    def _read_distillation(self) -> Distillation:
        student, teacher = (local_model(each.model_args) for each in (self.config.student, self.config.teacher))
        check_teacher("teacher", teacher, student, self.tokenizer)
        size, top_k = shared_vocabulary(student, teacher), self.config.logits_topk
        if top_k >= size:
            raise ConfigError(
                f"logits_topk: {top_k} is the whole vocabulary, of {size} tokens, or more. Write logits_topk: full, "
                "which costs less, or a smaller number."
            )
        return Distillation(divergence(self.config), size, top_k)

    @property
    def teacher(self) -> ScoreCluster:
        return self.running.scorers["teacher"]

    def build(self) -> None:
        super().build()
        head = None
        if not self.distillation.top_k:
            with self.running.placement.hold(self.teacher.weights):
                head = self.teacher.teacher_head(self.distillation)
        self.trainer.set_teacher_head(self.distillation, head)

    def scores_of(self, rows: Rows, shared: RowSet) -> Mapping[str, ScoreSet]:
        with self.timer("score"), self.running.placement.hold(self.teacher.everything):
            return {"teacher_targets": self.teacher.teacher_targets(shared, rows.response_lengths, self.distillation)}
