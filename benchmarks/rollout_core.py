"""What the core of the rollouts costs by itself, and a checkpoint of finished groups.

    python benchmarks/rollout_core.py [--groups 1000 10000 100000] [--events 20000] [--gigabytes 0.5]

Groups that take no time of their own end in any order, a step takes them, the weights are published, and others start:
microseconds of the process for each group, from its start to its being taken, with so many in flight. The checkpoint
holds groups of 16 answers of 4000 tokens with their texts; seconds of the process per GB, and of the clock beside those
of a plain write of as many bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Coroutine, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))

from roll.configs.plan.batch_plan import RolloutBounds
from roll.distributed.scheduler.rollout_core import RolloutCore
from roll.types.group_codec import RecordedGroup, load_groups, save_groups
from roll.types.rollout import Task, Trajectory, TrajectoryGroup

TASK = Task("t", "d", np.zeros(1, np.int32))
GROUPS_A_STEP, GROUP_SIZE, TOKENS, PROMPT = 100, 16, 4000, 200


async def event_us(num_in_flight: int, num_events: int) -> float:
    """CPU microseconds of a group."""
    ends: dict[int, asyncio.Future[None]] = {}

    def play(number: int) -> Coroutine[Any, Any, TrajectoryGroup]:
        ends[number] = asyncio.get_running_loop().create_future()
        return group(number)

    async def group(number: int) -> TrajectoryGroup:
        await ends[number]
        return TrajectoryGroup(TASK, number, ())

    staleness = 2 * num_in_flight // GROUPS_A_STEP + 1
    core = RolloutCore(play, RolloutBounds(GROUPS_A_STEP, num_in_flight - GROUPS_A_STEP, max_staleness=staleness))
    core.published(0)
    await asyncio.sleep(0)
    random = np.random.default_rng(0)
    started = time.process_time()
    for step in range(num_events // GROUPS_A_STEP):
        open_ones = random.permutation(list(islice(ends, 2 * GROUPS_A_STEP)))[:GROUPS_A_STEP].tolist()
        for number in open_ones:
            ends.pop(number).set_result(None)
        await core.collect(step)
        core.published(step + 1)
        await asyncio.sleep(0)
    spent = time.process_time() - started
    await core.cancel()
    return 1e6 * spent / num_events


def finished_groups(gigabytes: float) -> list[RecordedGroup]:
    """About as much, as stored: 9 bytes a token, and the texts."""
    random = np.random.default_rng(0)
    mask = np.arange(TOKENS) >= PROMPT
    versions = np.where(mask, 3 + (np.arange(TOKENS) > TOKENS // 2), -1).astype(np.int32)

    def row(index: int) -> Trajectory:
        return Trajectory(
            input_ids=random.integers(0, 150_000, TOKENS, dtype=np.int32),
            response_mask=mask,
            log_probs=random.random(TOKENS).astype(np.float32),
            policy_versions=versions,
            reward=0.5,
            finish_reason="stop",
            index=index,
            response_text="some " * (3 * TOKENS // 5),
            metrics={"correct": 1.0},
        )

    count = int(gigabytes * 1e9 / (GROUP_SIZE * TOKENS * 12))
    return [RecordedGroup(n, f"task {n}", tuple(map(row, range(GROUP_SIZE)))) for n in range(count)]


def checkpoint(gigabytes: float, directory: Path) -> None:
    groups, target = finished_groups(gigabytes), directory / "rollouts"
    clock, process = time.perf_counter(), time.process_time()
    save_groups(target, groups)
    clock, process = time.perf_counter() - clock, time.process_time() - process
    size = sum(path.stat().st_size for path in target.iterdir()) / 1e9
    reading = time.process_time()
    load_groups(target)
    reading = time.process_time() - reading
    data = bytes(int(size * 1e9))
    plain = time.perf_counter()
    (directory / "plain").write_bytes(data)
    plain = time.perf_counter() - plain
    tokens = sum(len(row.input_ids) for group in groups for row in group.trajectories)
    print(f"checkpoint: {size:.2f} GB, {tokens / 1e6:.1f} M tokens: written in {process / size:.2f} CPU s per GB")
    print(
        f"  ({clock / size:.2f} s on the clock, a plain write {plain / size:.2f} s), read in {reading / size:.2f} CPU s"
    )


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--gigabytes", type=float, default=0.5)
    given = parser.parse_args(arguments)
    for count in given.groups:
        print(f"{count:7d} groups in flight: {asyncio.run(event_us(count, given.events)):6.1f} us per group")
    directory = Path(tempfile.mkdtemp(prefix="rollout_core-"))
    try:
        checkpoint(given.gigabytes, directory)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main(sys.argv[1:])
