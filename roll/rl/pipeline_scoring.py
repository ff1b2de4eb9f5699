"""What models say of a step's tokens before training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from roll.configs.plan.batch_plan import BatchPlan
from roll.distributed.executor.rl_clusters import RLClusters
from roll.distributed.executor.scores import ScorePiece, ScoreSet
from roll.rl.scoring import StepSamples
from roll.utils.timing import Timer


@dataclass(frozen=True)
class StepScores:
    """What models say of the rows of a step, by field of TokenScores.

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
            if plan.old_log_probs.tells_routes:
                scores["old_log_probs"], scores["routes"] = actor.log_probs_and_routes(samples.policy, temperature)
            else:
                scores["old_log_probs"] = actor.log_probs(samples.policy, temperature)
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
    """What the teachers say of the tokens, each of the rows of its domains. `teacher_of`: the role of each domain."""
    roles = list(dict.fromkeys(teacher_of.values()))
    pieces: list[ScorePiece] = []
    for role in roles:
        domains = [domain for domain, teacher in teacher_of.items() if teacher == role]
        wanted = np.isin(samples.meta.domains, domains) if len(roles) > 1 else None
        teacher = clusters.scorers[role]
        with timer("teacher_log_probs"), clusters.placement.hold(teacher.everything):
            pieces += teacher.log_probs(samples.policy, temperature, wanted).pieces
    return {"teacher_log_probs": ScoreSet(tuple(pieces))} if roles else {}
