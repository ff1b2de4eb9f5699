"""Steps whose filter drops groups: what is trained on, how often, and what is said of all that was sampled."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.configs.plan.batch_plan import build_plan
from roll.configs.sections.operators import ExperienceOperatorConfig
from roll.distributed.executor.jobs import TrainJob
from roll.distributed.executor.step_rows import updates_of
from roll.distributed.scheduler.rollout_core import StepGroups
from roll.errors import AlgorithmError
from roll.features.shaping.chain import Shaping
from roll.pipeline.agentic.agentic_pipeline import AgenticPipeline
from roll.pipeline.rlvr.rlvr_pipeline import RLVRPipeline
from roll.rl.metrics import FewGroupsAlarm, filter_metrics, kept_fraction, scaled_to_kept
from roll.rl.parts import StepParts
from roll.rl.pipeline import RLPipeline
from roll.types.batch import SampleBatch, SampleSet
from roll.types.rollout import Generation, Task, Trajectory, TrajectoryGroup
from roll.utils.timing import Timer
from tests.helpers.configs import config
from tests.unit.pipeline.agentic.test_config import config as agentic_config

PROMPT = np.array([1, 1, 1], np.int32)


def group(group_id: int, *rewards: float, failed: int = 0) -> TrajectoryGroup:
    answer = Generation(np.full(2, 5, np.int32), np.zeros(2, np.float32), np.zeros(2, np.int32), "stop")
    rows = [
        Trajectory.from_generation(
            PROMPT, answer, reward, index=i, response_text="", failure="crash" if i < failed else None
        )
        for i, reward in enumerate(rewards)
    ]
    return TrajectoryGroup(Task(str(group_id), "math", PROMPT), group_id, tuple(rows))


def test_an_update_has_as_many_groups_as_without_the_filter() -> None:
    assert [updates_of(4, kept, 16) for kept in (1, 4, 5, 8, 12, 13, 16)] == [1, 1, 2, 2, 3, 4, 4]
    assert updates_of(1, 3, 16) == 1


def test_metrics_are_of_all_that_was_sampled_and_name_what_was_kept() -> None:
    groups = StepGroups([group(0, 1.0, 0.0)], [group(1, 0.0, 0.0), group(2, 0.0, 0.0), group(3, 1.0, 1.0, failed=1)])
    metrics = filter_metrics(groups, groups.groups)
    assert metrics["rollout/reward_mean"] == pytest.approx(2 / 7)
    assert metrics["rollout/group_equal_rewards_fraction"] == pytest.approx(2 / 3)
    assert (metrics["rollout/kept_groups"], metrics["rollout/dropped_groups"]) == (1, 3)
    assert metrics["rollout/kept_groups_fraction"] == metrics["rollout/trained_rows_fraction"] == 0.25
    seen = scaled_to_kept(
        {"reward_mean": 0.5, "reward_clip_fraction": 0.1, "trained_rows_fraction": 0.5}, kept_fraction(groups)
    )
    assert seen == {"kept_reward_mean": 0.5, "reward_clip_fraction": 0.1, "trained_rows_fraction": 0.125}


def test_what_a_filter_kept_of_each_domain_is_told_where_there_are_several() -> None:
    def of(domain: str, found: TrajectoryGroup) -> TrajectoryGroup:
        return replace(found, task=replace(found.task, domain=domain))

    kept = [group(0, 1.0, 0.0), of("code", group(1, 1.0, 1.0, 0.5, failed=1))]
    groups = StepGroups(kept, [group(2, 0.0, 0.0), of("logic", group(3, 0.0, 0.0))])
    metrics = filter_metrics(groups, kept)
    assert {name: value for name, value in metrics.items() if "kept_reward_mean/" in name} == {
        "rollout/kept_reward_mean/code": 0.75,
        "rollout/kept_reward_mean/math": 0.5,
    }
    alone = filter_metrics(StepGroups(kept[:1], groups.dropped[:1]), kept[:1])
    assert not [name for name in alone if "kept_reward_mean/" in name]


def test_a_step_that_keeps_nothing_is_said_always_and_few_groups_once(caplog: pytest.LogCaptureFixture) -> None:
    alarm, one = FewGroupsAlarm(), group(0, 1.0, 0.0)
    with caplog.at_level(logging.WARNING):
        for kept in (0, 0, 1, 1, 8, 1):
            alarm.check(StepGroups([one] * kept, [one] * (8 - kept)), 8, step=2, on_empty="skip_step")
    said = [record.getMessage().split(",")[0] for record in caplog.records]
    nothing, few = "step 3: the filter dropped all 8 groups", "step 3: the filter kept 1 groups where 8 are planned."
    assert [text[: len(nothing)] for text in said[:2]] == [nothing] * 2
    assert [text[: len(few)] for text in said[2:]] == [few] * 2


class Trainer:
    """A role that learns, in name: it writes down what it was given, and what it was told meanwhile."""

    everything = weights = "all of it"
    shares_prefixes = False
    row_advantages = np.zeros((0, 2))
    row_numbers = np.zeros((0, 8))

    def __init__(self) -> None:
        self.jobs: list[tuple[TrainJob, SampleSet]] = []
        self.told: list[object] = []

    def train(
        self,
        samples: SampleSet,
        job: TrainJob,
        scores: dict[str, object],
        meanwhile: Callable[[], object],
        expert: None = None,
    ) -> dict[str, float]:
        self.jobs.append((job, samples))
        self.told.append(meanwhile())
        return {}

    def values(self, samples: SampleSet) -> None:
        return None

    def log_probs(self, samples: SampleSet, temperature: float) -> None:
        return None


class Engine(Trainer):
    def metrics(self) -> dict[str, float]:
        return {}


class Holding:
    def hold(self, *needs: str) -> AbstractContextManager[None]:
        return nullcontext()

    reserved = hold


@dataclass
class Clusters:
    actor_train: Trainer = field(default_factory=Trainer)
    critic: Trainer = field(default_factory=Trainer)
    actor_infer: Engine = field(default_factory=Engine)
    reference: None = None
    placement: Holding = field(default_factory=Holding)
    versions: list[int] = field(default_factory=list)

    def publish_weights(self, version: int) -> int:
        self.versions.append(version)
        return 0

    def close(self) -> None:
        pass


@dataclass
class Prepared:
    """A scheduler whose groups are given."""

    steps: list[StepGroups]
    filters: bool = True

    def collect(self, step: int) -> StepGroups:
        return self.steps[step]

    def metrics(self) -> dict[str, float]:
        return {}

    def published(self, version: int) -> None:
        pass


def by_rank(batch: SampleBatch, ranks: list[np.ndarray]) -> Any:
    """Instead of Ray's store."""
    return tuple(batch.select(rows) for rows in ranks)


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RLVRPipeline]:
    """A PPO run of 8 groups of 2 in 4 updates of the policy and 2 of the critic."""
    monkeypatch.setattr("roll.distributed.executor.step_rows.share", by_rank)
    changes: dict[str, Any] = {
        "output_dir": str(tmp_path),
        "rollout_batch_size": 8,
        "num_return_sequences_in_group": 2,
        "actor_train.device_mapping": [0],
        "actor_train.training_args.per_device_train_batch_size": 4,
        "actor_train.training_args.gradient_accumulation_steps": 1,
        "critic": {
            "strategy_args": {"strategy_name": "deepspeed_train"},
            "device_mapping": [0],
            "training_args": {"per_device_train_batch_size": 8},
        },
        "adv_estimator": "gae",
    }
    given = config(changes)
    made = RLVRPipeline(given, build_plan(given))
    assert (made.plan.actor_train.updates_per_epoch, made.plan.critic and made.plan.critic.updates_per_epoch) == (4, 2)
    made.timer = Timer()
    made.clusters = Clusters()  # type: ignore[assignment]
    yield made
    made.close()


def test_dropped_groups_are_in_no_update_and_the_updates_keep_their_size(pipeline: RLVRPipeline) -> None:
    kept, dropped = [group(i, 1.0, 0.0) for i in (1, 4, 6)], [group(i, 0.0, 0.0) for i in (0, 2, 3, 5, 7)]
    pipeline.scheduler = Prepared([StepGroups([], kept + dropped), StepGroups(kept, dropped)])  # type: ignore[assignment]
    clusters: Clusters = pipeline.clusters  # type: ignore[assignment]

    nothing = pipeline.step(0)
    assert not clusters.actor_train.jobs and not clusters.critic.jobs
    assert nothing["actor/num_updates"] == nothing["rollout/kept_groups"] == 0
    assert nothing["rollout/reward_mean"] == 3 / 16
    assert clusters.versions == [1]  # the version counts steps, not updates

    some = pipeline.step(1)
    ((job, samples),), ((critic_job, critic_samples),) = clusters.actor_train.jobs, clusters.critic.jobs
    assert sorted(set(samples.meta.group_ids)) == [1, 4, 6]
    assert (job.num_updates, critic_job.num_updates, some["actor/num_updates"]) == (2, 1, 2)
    sizes = [[len(rank) for rank in held.shards] for held in (samples, critic_samples)]  # type: ignore[arg-type]
    assert sizes == [[6], [6]]
    assert (some["rollout/reward_mean"], some["rollout/kept_reward_mean"]) == (3 / 16, 0.5)
    assert some["rollout/trained_rows_fraction"] == 6 / 16


def test_a_step_of_which_nothing_is_kept_trains_on_as_many_groups_as_planned_or_ends_the_run(
    pipeline: RLVRPipeline,
) -> None:
    """`train_all` after replacements: 12 groups were sampled, the first 8 in the data fill the planned updates."""
    dropped = [group(i, 1.0, 1.0) for i in (9, 3, 1, 0, 2, 8, 7, 6, 5, 4, 11, 10)]
    pipeline.scheduler = Prepared([StepGroups([], dropped)])  # type: ignore[assignment]
    clusters: Clusters = pipeline.clusters  # type: ignore[assignment]
    pipeline.config = pipeline.config.model_copy(update={"on_empty": "train_all"})
    metrics = pipeline.step(0)
    ((job, samples),) = clusters.actor_train.jobs
    assert (job.num_updates, sorted(set(samples.meta.group_ids))) == (4, list(range(8)))
    assert (metrics["rollout/kept_groups"], metrics["rollout/trained_rows_fraction"]) == (0, 8 / 12)

    pipeline.config = pipeline.config.model_copy(update={"on_empty": "fail"})
    recorded = pipeline.records.recorder.directory / "step_000001.txt"
    recorded.unlink()
    with pytest.raises(AlgorithmError, match="step 1: the filter dropped all 12 groups, and on_empty is fail"):
        pipeline.step(0)
    assert "group 0 " in recorded.read_text()


def recorded(pipeline: RLVRPipeline, step: int) -> list[dict[str, Any]]:
    path = pipeline.records.recorder.directory / f"step_{step:06d}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rollouts_are_recorded_with_the_advantages_that_their_step_trained_on(pipeline: RLVRPipeline) -> None:
    """Attempts of groups 1, 4 and 5 are rows 0 to 5. Row 2 had no token to train on, rows 4 and 5 no numbers."""
    kept, dropped = [group(i, 1.0, 0.0) for i in (1, 4, 5)], [group(i, 0.0, 0.0) for i in (0, 2)]
    pipeline.scheduler = Prepared([StepGroups(kept, dropped), StepGroups(kept, dropped)])  # type: ignore[assignment]
    clusters: Clusters = pipeline.clusters  # type: ignore[assignment]
    clusters.actor_train.row_advantages = np.array(
        [[1.0, 2], [-4.0 / 3, 2], [0, 0], [0.0, 2], [np.nan, 2], [np.inf, 2]]
    )
    pipeline.step(0)
    rows = recorded(pipeline, 1)
    assert [row.get("advantage") for row in rows] == [0.5, -0.666667, None, 0.0, None, None]
    text = (pipeline.records.recorder.directory / "step_000001.txt").read_text()
    assert "sample 2 | reward 0 | advantage -0.6667 | stop" in text

    def train(*_: object) -> dict[str, float]:
        pipeline.report(StepGroups(kept, dropped), kept, 1)
        raise RuntimeError("a rank is out of memory")

    clusters.actor_train.train = train  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        pipeline.step(1)
    pipeline.close()
    assert [(row["reward"], "advantage" in row) for row in recorded(pipeline, 2)] == [(1.0, False), (0.0, False)] * 3


def test_operators_shape_and_drop_what_is_trained_on_and_not_what_was_sampled(pipeline: RLVRPipeline) -> None:
    shaping = ExperienceOperatorConfig(name="reward_shaping", args={"op": "multiply", "weight": 3.0})
    pipeline.parts = StepParts([Shaping([shaping, ExperienceOperatorConfig(name="std_filter")])])
    groups = [group(i, 1.0, float(i % 2)) for i in range(8)]
    pipeline.scheduler = Prepared([StepGroups(groups, [])], filters=False)  # type: ignore[assignment]
    metrics = pipeline.step(0)
    clusters: Clusters = pipeline.clusters  # type: ignore[assignment]
    ((job, samples),) = clusters.actor_train.jobs
    assert sorted(set(samples.meta.group_ids)) == [0, 2, 4, 6] and job.num_updates == 2
    assert sorted(set(samples.meta.rewards)) == [0.0, 3.0]
    assert (metrics["rollout/sampled_reward_mean"], metrics["rollout/kept_reward_mean"]) == (12 / 16, 1.5)
    assert metrics["rollout/dropped_groups"] == 4


@pytest.mark.parametrize("mode", ["padding", "copy", "delete", "auto", "random_sample"])
@pytest.mark.parametrize("policy_batch, critic_batch", [(8, 6), (6, 8)])
def test_policy_and_critic_train_on_the_same_rows(
    mode: str, policy_batch: int, critic_batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values of the critic's rows are the policy's baseline, log-probs of the policy's rows the critic's KL."""
    monkeypatch.setattr("roll.distributed.executor.step_rows.share", by_rank)
    critic = {
        "strategy_args": {"strategy_name": "deepspeed_train"},
        "device_mapping": [0],
        "training_args": {"per_device_train_batch_size": critic_batch},
    }
    given = agentic_config(
        output_dir=str(tmp_path),
        adv_estimator="gae",
        critic=critic,
        batch_adjust_mode=mode,
        train_env_manager__group_size=5,
        actor_train__training_args__per_device_train_batch_size=policy_batch,
    )
    made = AgenticPipeline(given, build_plan(given))
    made.clusters = Clusters()  # type: ignore[assignment]
    made.scheduler = Prepared([])  # type: ignore[assignment]
    kept = [group(i, *(float(5 * i + j) for j in range(5))) for i in range(made.plan.num_groups - 1)]
    samples, _ = RLPipeline.gather(made, StepGroups(kept, []), 0)
    made.close()
    assert samples is not None and samples.critic is not None
    assert samples.policy_updates != samples.critic_updates
    rows = [
        {float(reward) for shard in held.shards for reward in shard.rewards if reward == reward}  # type: ignore[attr-defined]
        for held in (samples.policy, samples.critic)
    ]
    assert rows[0] == rows[1] != set()
