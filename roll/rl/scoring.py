"""Scores of a step's rows by the models, before anything learns from them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from roll.algorithms.distillation import Distillation, Divergence
from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.distributed.executor.clusters import RLClusters
from roll.distributed.executor.jobs import ScorePiece, ScoreSet
from roll.distributed.executor.step_rows import StepSamples
from roll.models.hub import local_model
from roll.models.loading import shared_vocabulary
from roll.rl.parts import StepContext, StepPart
from roll.utils.timing import Timer

# The KL over the whole vocabulary (`kl_loss_type: full`): what the reference tells the policy of a step's tokens.


class FullKL(StepPart):
    """The reference is a teacher of KL(policy, reference) at the sampling temperature, beside the credit."""

    def __init__(self, temperature: float):
        self._temperature = temperature
        self._distillation: Distillation | None = None  # known once the models' sizes are
        self._knows_head = False

    def prepare(self, config: AlgorithmConfig, plan: BatchPlan) -> None:
        assert config.reference is not None
        size = shared_vocabulary(*(local_model(role.model_args) for role in (config.actor_train, config.reference)))
        self._distillation = Distillation(Divergence("reverse_kl", self._temperature, self._temperature), size)

    def scores(self, at: StepContext, samples: StepSamples) -> Mapping[str, ScoreSet]:
        """Hidden states at the response tokens; before the first of them the policy gets the head."""
        reference, distillation, head = at.clusters.reference, self._distillation, None
        assert reference is not None and distillation is not None
        with at.timer("ref_log_probs"), at.clusters.placement.hold(reference.everything):
            if not self._knows_head:
                head = reference.teacher_head(distillation)
            targets = reference.teacher_targets(samples.policy, samples.meta.response_lengths, distillation)
        if head is not None:
            at.clusters.actor_train.set_teacher_head(distillation, head)
            self._knows_head = True
        return {"teacher_targets": targets}


# What models say of a step's tokens before training.


@dataclass(frozen=True)
class StepScores:
    """Scores that models give the rows of a step, by field of TokenScores.

    - per_token: log-probs and values, which credit, the critic and records read as well
    - policy: what the policy's update alone reads, such as hidden states and experts
    """

    per_token: Mapping[str, ScoreSet]
    policy: Mapping[str, ScoreSet]


def token_scores(
    clusters: RLClusters, plan: BatchPlan, samples: StepSamples, temperature: float, timer: Timer, needs_reference: bool
) -> dict[str, ScoreSet]:
    """The log-probs and values that this run needs before training, by field of TokenScores, and the experts that it
    trains with. `needs_reference`: log-probs of the reference, too."""
    hold = clusters.placement.hold
    actor, scores = clusters.actor_train, dict[str, ScoreSet]()
    if plan.old_log_probs.source == "pass":
        with timer("old_log_probs"), hold(actor.weights):
            if plan.old_log_probs.reports_routes:
                scores["old_log_probs"], scores["routes"] = actor.log_probs_and_routes(samples.policy, temperature)
            else:
                scores["old_log_probs"] = actor.log_probs(samples.policy, temperature)
            if plan.old_log_probs.halves:
                scores["halved_log_probs"] = actor.log_probs(samples.policy, temperature / 2)
    if needs_reference and clusters.reference is not None:
        with timer("ref_log_probs"), hold(clusters.reference.everything):
            scores["ref_log_probs"] = clusters.reference.log_probs(samples.policy, temperature)
    elif needs_reference and plan.policy_is_reference:
        with timer("ref_log_probs"), hold(actor.weights):
            scores["ref_log_probs"] = actor.base_log_probs(samples.policy, temperature)
    if clusters.critic is not None and samples.critic is not None:
        with timer("values"), hold(clusters.critic.weights):
            scores["values"] = clusters.critic.values(samples.critic)
    return scores


def teacher_scores(
    clusters: RLClusters, teacher_of: Mapping[str, str], samples: StepSamples, temperature: float, timer: Timer
) -> dict[str, ScoreSet]:
    """Score the tokens with the teachers, each on the rows of its domains. `teacher_of`: the role of each domain."""
    roles = list(dict.fromkeys(teacher_of.values()))
    pieces: list[ScorePiece] = []
    for role in roles:
        domains = [domain for domain, teacher in teacher_of.items() if teacher == role]
        wanted = np.isin(samples.meta.domains, domains) if len(roles) > 1 else None
        teacher = clusters.scorers[role]
        with timer("teacher_log_probs"), clusters.placement.hold(teacher.everything):
            pieces += teacher.log_probs(samples.policy, temperature, wanted).pieces
    return {"teacher_log_probs": ScoreSet(tuple(pieces))} if roles else {}
