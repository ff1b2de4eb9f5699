"""Alarms of a run whose engines and trainer disagree."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from roll.distributed.executor.clusters import RLClusters
from roll.distributed.executor.jobs import ScoreSet
from roll.distributed.executor.processes.cluster import Calls
from roll.distributed.executor.rollout.engines import GenerateCluster
from roll.distributed.executor.step_rows import StepRows, fetched, rows_of_scores
from roll.errors import StrategyError
from roll.rl.parts import Metrics, StepContext, StepPart
from roll.types.rollout import (
    FIRST_IN_LINE,
    Generation,
    GenerationRequest,
    SamplingParams,
    Task,
    Trajectory,
    TrajectoryGroup,
)

logger = logging.getLogger(__name__)

GAP = "train_infer/log_prob_diff_mean"
GAP_MAX = "train_infer/log_prob_diff_max"
PROBE_GAP = "train_infer/probe_log_prob_diff_mean"


class GapAlarm(StepPart):
    """Says it once when rollout engine and trainer begin to disagree, and again if they do so after they agreed."""

    def __init__(self, threshold: float, keeps_kv: bool = False, runs_ahead: bool = False, samples_anew: bool = True):
        """`keeps_kv`: answers go on over keys and values of old weights, which is a difference in itself. `runs_ahead`:
        only tokens of the weights that learn are compared. Elsewhere all of them are, which tells something where the
        engines have these weights and rollouts are not recorded ones (`samples_anew`)."""
        self._threshold, self._runs_ahead, self._samples_anew = threshold, runs_ahead, samples_anew
        self._cause = (
            "With kv_on_update: keep their tokens are sampled over keys and values of older weights: recompute avoids "
            "that, and a lower learning_rate makes the difference smaller"
            if keeps_kv
            else "Rollout engine and trainer disagree about the sampled tokens: compare their dtypes and model "
            "settings, or correct for it with train_infer_correction"
        )
        self._is_on = False

    def before_publish(self, at: StepContext, metrics: Metrics) -> None:
        has_weights = self._samples_anew and at.engine_version == at.step
        if GAP in metrics and (self._runs_ahead or has_weights):  # else weights differ, and so should log-probs
            self.check(metrics[GAP])

    def check(self, difference: float, metric: str = GAP) -> None:
        if difference > self._threshold and not self._is_on:
            logger.warning(
                "%s is %.3g, above log_prob_diff_warning: %g. %s.",
                metric,
                difference,
                self._threshold,
                self._cause,
            )
        self._is_on = difference > self._threshold


class ExactAlarm(StepPart):
    """Ends a run with `exact_log_probs` in which engine and trainer gave a token of the present weights two numbers."""

    def __init__(self, runs_ahead: bool):
        """`runs_ahead`: only tokens of the weights that learn are compared, whatever the engines have by now."""
        self._runs_ahead = runs_ahead

    def before_publish(self, at: StepContext, metrics: Metrics) -> None:
        is_of_weights = self._runs_ahead or at.engine_version == at.step
        for name in (GAP_MAX, PROBE_GAP) if is_of_weights else ():
            if metrics.get(name, 0.0) == 0:
                continue
            raise StrategyError(
                f"exact_log_probs: {name} is {metrics[name]:.3g} in step {at.step + 1}, and was to be 0: engine "
                "and trainer computed with other kernels or other weights. Run both on the same kind of machine with "
                "the same OMP_NUM_THREADS, or set exact_log_probs to false"
            )


# Whether rollout engines sample from the weights that learn, asked of them where no token of the training can tell.

_MAX_TOKENS = 16
_EVERY = 10  # steps, while none of them can tell


class EngineProbe(StepPart):
    """Compares engines and trainer under the newest weights, where rollouts run ahead.

    Steps may then train on no token of the weights that learn, so that nothing else shows whether the two agree about
    these. Every engine is asked for a short answer as soon as it has new weights. It travels beside the rollouts;
    before the next training the trainer scores it, as it does rows. An answer that is late is not waited for."""

    def __init__(self, sampling: SamplingParams, seed: int, alarm: GapAlarm):
        self._sampling = replace(sampling, max_new_tokens=min(_MAX_TOKENS, sampling.max_new_tokens), min_new_tokens=0)
        self._seed, self._alarm = seed, alarm
        self._prompt: np.ndarray | None = None
        self._calls: Calls | None = None
        self._version = -1  # of the weights that are to answer
        self._blind_steps = 0

    def before_gather(self, at: StepContext, trained: Sequence[TrajectoryGroup]) -> None:
        self.set_probe_prompt(trained)

    def before_training(self, at: StepContext, scores: Mapping[str, ScoreSet]) -> Metrics:
        return self.result(at.clusters, at.plan.actor_train.dp_size, at.temperature, at.step)

    def after_publish(self, at: StepContext, metrics: Metrics) -> Metrics:
        if at.engine_version == at.step + 1:
            self.send(at.clusters.actor_infer, metrics, at.step + 1)
        return {}

    def set_probe_prompt(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Choose the prompt of the probe: the tokens before the first answer of the shortest row, from the first groups
        that have one without pictures."""
        if self._prompt is not None:
            return
        attempts = [row for group in groups if not group.task.pictures for row in group.trajectories]
        rows = [row for row in attempts if row.facts.num_sampled]
        if rows:
            ((row,),) = fetched([[min(rows, key=lambda row: row.facts.num_tokens)]])
            self._prompt = row.input_ids[: int(np.argmax(row.response_mask))]

    def send(self, engines: GenerateCluster, metrics: Mapping[str, float], version: int) -> None:
        """Sends the probe, after the engines got this version of the weights. `metrics`: those of the step before."""
        self._blind_steps = 0 if GAP in metrics else self._blind_steps + 1
        if self._blind_steps % _EVERY != 1 or self._prompt is None:
            return
        sampling = replace(self._sampling, seed=self._seed + version)
        request = GenerationRequest(f"probe-{version}", self._prompt, sampling, order=FIRST_IN_LINE)
        self._calls, self._version = engines.probe(request), version

    def result(self, clusters: RLClusters, num_ranks: int, temperature: float, version: int) -> dict[str, float]:
        """Mean of abs(log p_engine - log p_trainer) over the tokens that engines sampled with this version, while the
        trainer still has it. The alarm gets the value. {} if there are no tokens."""
        calls, self._calls = self._calls, None
        if calls is None or self._version != version:
            return {}
        assert self._prompt is not None
        rows = [
            Trajectory.from_generation(self._prompt, answer, 0.0, index=rank, response_text="")
            for rank, answer in calls.replies_so_far().items()
            if isinstance(answer, Generation) and answer.num_tokens
        ]
        if not rows:
            return {}
        group = TrajectoryGroup(Task("probe", "probe", self._prompt), 0, tuple(rows))
        samples = StepRows([group]).share(np.arange(len(rows)), 1, num_ranks, clusters.actor_train)
        with clusters.placement.hold(clusters.actor_train.weights):
            recomputed = rows_of_scores(clusters.actor_train.log_probs(samples, temperature))
        gaps = [
            np.abs(recomputed[number] - row.log_probs)[row.policy_versions == version]
            for number, row in enumerate(rows)
        ]
        together = np.concatenate(gaps)
        if not len(together):
            return {}
        gap = float(together.mean())
        self._alarm.check(gap, PROBE_GAP)
        return {PROBE_GAP: gap}
