"""Whether rollout engines sample from the weights that learn, asked of them where no token of the training can tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from roll.distributed.executor.processes.cluster import Calls
from roll.distributed.executor.rl_clusters import RLClusters
from roll.distributed.executor.rollout.generate_cluster import GenerateCluster
from roll.distributed.executor.scores import ScoreSet
from roll.distributed.executor.step_rows import StepRows, fetched, rows_of_scores
from roll.rl.alarms import GAP, GapAlarm
from roll.rl.parts import Metrics, StepContext, StepPart
from roll.rl.scoring import share_rows
from roll.types.rollout import (
    FIRST_IN_LINE,
    Generation,
    GenerationRequest,
    SamplingParams,
    Task,
    Trajectory,
    TrajectoryGroup,
)

PROBE_GAP = "train_infer/probe_log_prob_diff_mean"
_MAX_TOKENS = 16
_EVERY = 10  # steps, while none of them can tell


class EngineProbe(StepPart):
    """Where rollouts run ahead, steps may train on no token of the weights that learn, so that nothing shows whether
    engines and trainer agree about these. Then every engine is asked for a short answer as soon as it has new weights.
    It travels beside the rollouts; before the next training the trainer scores it, as it does rows. An answer that is
    not there by then is not waited for."""

    def __init__(self, sampling: SamplingParams, seed: int, alarm: GapAlarm):
        self._sampling = replace(sampling, max_new_tokens=min(_MAX_TOKENS, sampling.max_new_tokens), min_new_tokens=0)
        self._seed, self._alarm = seed, alarm
        self._prompt: np.ndarray | None = None
        self._asked: Calls | None = None
        self._version = -1  # of the weights that are to answer
        self._blind_steps = 0

    def before_gather(self, at: StepContext, trained: Sequence[TrajectoryGroup]) -> None:
        self.take_prompt(trained)

    def before_training(self, at: StepContext, scores: Mapping[str, ScoreSet]) -> Metrics:
        return self.compare(at.clusters, at.plan.actor_train.dp_size, at.temperature, at.step)

    def after_publish(self, at: StepContext, metrics: Metrics) -> Metrics:
        if at.engine_version == at.step + 1:
            self.ask(at.clusters.actor_infer, metrics, at.step + 1)
        return {}

    def take_prompt(self, groups: Sequence[TrajectoryGroup]) -> None:
        """What comes before the first answer of the shortest row is asked with, of the first groups that have one
        without media."""
        if self._prompt is not None:
            return
        rows = [row for group in groups if not group.task.media for row in group.trajectories if row.facts.num_sampled]
        if rows:
            ((row,),) = fetched([[min(rows, key=lambda row: row.facts.num_tokens)]])
            self._prompt = row.input_ids[: int(np.argmax(row.response_mask))]

    def ask(self, engines: GenerateCluster, metrics: Mapping[str, float], version: int) -> None:
        """Sends the probe, after the engines got this version of the weights. `metrics`: those of the step before."""
        self._blind_steps = 0 if GAP in metrics else self._blind_steps + 1
        if self._blind_steps % _EVERY != 1 or self._prompt is None:
            return
        sampling = replace(self._sampling, seed=self._seed + version)
        request = GenerationRequest(f"probe-{version}", self._prompt, sampling, order=FIRST_IN_LINE)
        self._asked, self._version = engines.probe(request), version

    def compare(self, clusters: RLClusters, num_ranks: int, temperature: float, version: int) -> dict[str, float]:
        """Mean of abs(log p_engine - log p_trainer) over the tokens that engines sampled with this version, while the
        trainer still has it. The alarm gets the value. {} if there are no tokens."""
        asked, self._asked = self._asked, None
        if asked is None or self._version != version:
            return {}
        assert self._prompt is not None
        rows = [
            Trajectory.from_generation(self._prompt, answer, 0.0, index=rank, response_text="")
            for rank, answer in asked.replies_so_far().items()
            if isinstance(answer, Generation) and answer.num_tokens
        ]
        if not rows:
            return {}
        group = TrajectoryGroup(Task("probe", "probe", self._prompt), 0, tuple(rows))
        order = np.random.default_rng(self._seed)
        samples = share_rows(StepRows([group]), np.arange(len(rows)), (1, num_ranks), clusters.actor_train, order)
        with clusters.placement.hold(clusters.actor_train.weights):
            found = rows_of_scores(clusters.actor_train.log_probs(samples, temperature))
        gaps = [
            np.abs(found[number] - row.log_probs)[row.policy_versions == version] for number, row in enumerate(rows)
        ]
        together = np.concatenate(gaps)
        if not len(together):
            return {}
        gap = float(together.mean())
        self._alarm.look(gap, PROBE_GAP)
        return {PROBE_GAP: gap}
