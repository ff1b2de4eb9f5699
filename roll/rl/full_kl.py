"""The KL over the whole vocabulary (`kl_loss_type: full`): what the reference tells the policy of a step's tokens."""

from __future__ import annotations

from collections.abc import Mapping

from roll.algorithms.distillation import Distillation
from roll.algorithms.divergence import Divergence
from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.distributed.executor.scores import ScoreSet
from roll.models.loading import shared_vocabulary
from roll.rl.parts import StepContext, StepPart
from roll.rl.scoring import StepSamples


class FullKL(StepPart):
    """The reference is a teacher of KL(policy, reference) at the sampling temperature, whose lesson comes beside the
    credit."""

    def __init__(self, temperature: float):
        self._temperature = temperature
        self._told: Distillation | None = None  # known once the models' sizes are
        self._knows_head = False

    def prepare(self, config: AlgorithmConfig, plan: BatchPlan) -> None:
        assert config.reference is not None
        size = shared_vocabulary(config.actor_train.model_args, config.reference.model_args)
        self._told = Distillation(Divergence("reverse_kl", self._temperature, self._temperature), size)

    def scores(self, at: StepContext, samples: StepSamples) -> Mapping[str, ScoreSet]:
        """Hidden states at the response tokens; before the first of them the policy gets the head."""
        reference, told, head = at.clusters.reference, self._told, None
        assert reference is not None and told is not None
        with at.timer("ref_log_probs"), at.clusters.placement.hold(reference.everything):
            if not self._knows_head:
                head = reference.teacher_head(told)
            found = reference.lessons(samples.policy, samples.meta.response_lengths, told)
        if head is not None:
            at.clusters.actor_train.learn_from(told, head)
            self._knows_head = True
        return {"lesson": found}
