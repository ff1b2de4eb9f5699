"""The KL over the whole vocabulary (`kl_loss_type: full`): what the reference tells the policy of a step's tokens."""

from __future__ import annotations

from roll.algorithms.distillation import Distillation
from roll.algorithms.divergence import Divergence
from roll.configs.algorithm import AlgorithmConfig
from roll.distributed.executor.rl_clusters import RLClusters
from roll.distributed.executor.scores import ScoreSet
from roll.models.loading import shared_vocabulary
from roll.pipeline.step_samples import StepSamples
from roll.utils.timing import Timer


class FullKL:
    """The reference is a teacher of KL(policy, reference) at the sampling temperature, whose lesson comes beside the
    credit."""

    def __init__(self, config: AlgorithmConfig, temperature: float):
        assert config.reference is not None
        size = shared_vocabulary(config.actor_train.model_args, config.reference.model_args)
        self._told = Distillation(Divergence("reverse_kl", temperature, temperature), size)
        self._knows_head = False

    def lessons(self, clusters: RLClusters, samples: StepSamples, timer: Timer) -> dict[str, ScoreSet]:
        """Hidden states at the response tokens; before the first of them the policy gets the head."""
        reference, head = clusters.reference, None
        assert reference is not None
        with timer("ref_log_probs"), clusters.placement.hold(reference.everything):
            if not self._knows_head:
                head = reference.teacher_head(self._told)
            found = reference.lessons(samples.policy, samples.meta.response_lengths, self._told)
        if head is not None:
            clusters.actor_train.learn_from(self._told, head)
            self._knows_head = True
        return {"lesson": found}
