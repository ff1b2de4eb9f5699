"""Groups of episodes: the first to finish count, what fails is replaced by redundancy, seeds are apart."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from roll.distributed.executor.pools.job import FatalJobError, Job
from roll.pipeline.agentic.agentic_config import TRAIN_SEEDS, VAL_SEEDS
from roll.pipeline.agentic.agentic_pipeline import adjusted_rows, play_in
from roll.pipeline.agentic.env_rollouter import EnvRollouter, EnvTaskSource, Played
from roll.pipeline.agentic.episode import AbortedEpisode, EpisodeJob, episode_metrics, failed_row
from roll.types.collate import row_meta
from roll.types.rollout import Answered, Generation, GenerationRequest, Trajectory, TrajectoryGroup


async def nobody(request: GenerationRequest, answered: Answered | None = None) -> list[Generation]:
    raise AssertionError("episodes sample by themselves")


def row(index: int, reward: float = 1.0, turn: int = 0) -> Trajectory:
    mask = np.array([False, True, True])
    return Trajectory(
        input_ids=np.array([1, 2, 3], np.int32), response_mask=mask, log_probs=np.zeros(3, np.float32),
        policy_versions=np.zeros(3, np.int32), reward=reward, finish_reason="stop",
        index=index, turn=turn, metrics={"success": reward} if turn == 0 else {}, turn_rewards=np.array([reward]),
    )  # fmt: skip


def source(seeds: tuple[int, int] = TRAIN_SEEDS, seed: int = 1) -> EnvTaskSource:
    return EnvTaskSource(("a", "b"), seeds, seed)


def run(rollouter: EnvRollouter, group_id: int = 0) -> TrajectoryGroup:
    (task,) = source().next_tasks(1)
    return asyncio.run(rollouter.run_group(task, group_id, 0, nobody))


class Stage:
    """Episodes with index in `long` play until they are stopped: those have sampled 10 tokens and their index, but for
    `unborn`, which have not begun."""

    def __init__(self, long: tuple[int, ...] = (), unborn: tuple[int, ...] = ()):
        self.long, self.unborn = long, unborn
        self.stopped: dict[int, asyncio.Event] = {}

    async def play(self, job: EpisodeJob) -> Played:
        if job.index not in self.long:
            return [row(job.index)]
        self.stopped[job.index] = asyncio.Event()
        await self.stopped[job.index].wait()
        return None if job.index in self.unborn else AbortedEpisode(10 + job.index)

    def stop(self, job: EpisodeJob) -> None:
        if job.index in self.stopped:
            self.stopped[job.index].set()


def refuse(job: EpisodeJob) -> None:
    raise AssertionError("nothing is left to stop")


def test_the_first_to_finish_count_and_failures_only_if_nothing_is_left() -> None:
    stage = Stage(long=(1, 2))
    group = run(EnvRollouter(stage.play, stage.stop, group_size=4, redundancy=2))
    assert [t.index for t in group.trajectories] == [0, 3, 4, 5]
    assert sorted(group.surplus) == [(11, False), (12, False)]
    group = run(EnvRollouter(Stage().play, refuse, group_size=2, redundancy=1))
    assert len(group.trajectories) == 2 and group.surplus == ((2, True),)

    async def play(job: EpisodeJob) -> list[Trajectory]:
        return [failed_row(job.index, "broke", {})] if job.index < 2 else [row(job.index)]

    assert [t.failure for t in run(EnvRollouter(play, refuse, 3, redundancy=2)).trajectories] == [None] * 3
    assert [t.failure for t in run(EnvRollouter(play, refuse, 3, redundancy=1)).trajectories] == [None, None, "broke"]


def test_a_cancelled_group_tells_how_long_the_episodes_were_that_had_begun() -> None:
    stage = Stage(long=(1, 2), unborn=(2,))
    rollouter = EnvRollouter(stage.play, stage.stop, group_size=3)

    async def cancel() -> list[tuple[int, bool]]:
        (task,) = source().next_tasks(1)
        group = asyncio.create_task(rollouter.run_group(task, 0, 0, nobody))
        while len(stage.stopped) < 2:
            await asyncio.sleep(0)
        group.cancel()
        await asyncio.gather(group, return_exceptions=True)
        assert group.cancelled()
        return await rollouter.take_cut()

    assert sorted(asyncio.run(cancel())) == [(2, True), (11, False)]
    assert asyncio.run(rollouter.take_cut()) == []


def test_tasks_follow_from_seed_and_place_and_validation_has_others() -> None:
    train = source().next_tasks(200)
    assert [t.payload for t in source().next_tasks(200)] == [t.payload for t in train]
    assert [t.payload for t in source(seed=2).next_tasks(200)] != [t.payload for t in train]
    later = source()
    later.load_state_dict({"position": 150})
    assert [t.payload for t in later.next_tasks(50)] == [t.payload for t in train[150:]]
    assert [t.domain for t in train[:4]] == ["a", "b", "a", "b"]
    val = source(VAL_SEEDS).fixed_tasks(200)
    assert not {t.payload["env_seed"] for t in train} & {t.payload["env_seed"] for t in val}


def test_rows_of_one_attempt_share_a_trajectory_id_and_carry_their_turns() -> None:
    (task,) = source().next_tasks(1)
    groups = [
        TrajectoryGroup(task, 0, (row(0), row(0, turn=1), row(3, 0.0))),
        TrajectoryGroup(task, 1, (row(0), failed_row(1, "broke", {}))),
    ]
    meta = row_meta(groups)
    assert meta.trajectory_ids.tolist() == [0, 0, 1, 2, 3]
    assert meta.num_turns is not None and meta.num_turns.tolist() == [1, 1, 1, 1, 0]
    assert meta.turn_rewards is not None and meta.turn_rewards.tolist() == [1.0, 1.0, 0.0, 1.0]
    assert groups[0].rewards.tolist() == [1.0, 0.0]
    metrics = episode_metrics(groups, "env")
    assert metrics["env/a/success_mean"] == pytest.approx(2 / 3)
    assert metrics["env/a/failed_fraction"] == 0.25


def test_batch_adjust_modes_give_a_multiple() -> None:
    random = np.random.default_rng(0)
    copied = adjusted_rows("copy", 10, 4, 8, random)
    assert len(copied) == 12 and set(copied) == set(range(10))
    deleted = adjusted_rows("delete", 10, 4, 8, random)
    assert len(deleted) == 8 and len(set(deleted)) == 8
    assert len(adjusted_rows("auto", 9, 4, 8, random)) == 8
    assert len(adjusted_rows("auto", 11, 4, 8, random)) == 12
    assert len(set(adjusted_rows("random_sample", 11, 4, 8, random))) == 8
    assert len(adjusted_rows("random_sample", 5, 4, 8, random)) == 8
    assert len(adjusted_rows("delete", 3, 4, 8, random)) == 4  # nothing would be left


class Lethal:
    """A pool whose workers die of every job with index 1."""

    async def run(self, job: Job) -> list[Trajectory]:
        if job.work.index == 1:
            raise FatalJobError("environments rank 0 died in run: SIGSEGV")
        return [row(job.work.index)]


def test_an_episode_that_kills_every_process_fails_alone_and_is_counted() -> None:
    async def play(job: EpisodeJob) -> list[Trajectory]:
        return await play_in(Lethal(), 9.0, job)  # type: ignore[arg-type]

    group = run(EnvRollouter(play, refuse, 3))
    assert [t.failure for t in group.trajectories] == [None, None, "a: environments rank 0 died in run: SIGSEGV"]
    assert episode_metrics([group], "env")["env/crashes"] == 1
