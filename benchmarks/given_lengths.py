"""A rollout loop whose answers are as long as a workload of the simulator says: for rollout_scheduling.py."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace

from roll.simulate.setup import LogNormal
from roll.types.rollout import Generate, GenerationRequest, Rollouter, Task, Trajectory, TrajectoryGroup

LENGTHS = "ROLL_BENCHMARK_LENGTHS"  # in the environment: fields of LogNormal, as JSON


class GivenLengths:
    """One request per answer; the reward of every second one is 1, so that there is something to train on."""

    def __init__(self, inner: Rollouter):
        self.inner = inner
        self.work = LogNormal(**json.loads(os.environ[LENGTHS]))

    async def run_group(self, task: Task, group_id: int, step: int, generate: Generate) -> TrajectoryGroup:
        sampling = self.inner.sampling  # type: ignore[attr-defined]

        async def attempt(index: int, length: int) -> Trajectory:
            given = replace(sampling, max_new_tokens=length, min_new_tokens=length, ignore_eos=True, seed=group_id)
            request = GenerationRequest(
                f"given-{group_id}-{index}", task.prompt_ids, given, first_sample=index, order=group_id
            )
            (answer,) = await generate(request)
            reward = float(index % 2)
            return Trajectory.from_generation(task.prompt_ids, answer, reward, index=index, response_text="")

        lengths = self.work.group(group_id, self.inner.group_size).lengths[:, 0].tolist()  # type: ignore[attr-defined]
        rows = await asyncio.gather(*(attempt(index, length) for index, length in enumerate(lengths)))
        return TrajectoryGroup(task, group_id, tuple(rows))
