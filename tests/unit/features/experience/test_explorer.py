"""An explorer beside a trainer: its steps, its lock, its weights and its buffer."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from roll.distributed.scheduler.rollout_core import StepGroups
from roll.errors import StorageError
from roll.features.experience.directory import DirectoryBuffer
from roll.features.experience.explorer import Explorer, Progress, StreamingRollouter
from roll.features.experience.modes import ProcessLock, make_buffer, make_reader
from roll.features.experience.weights import WeightFolder
from roll.run.interrupts import StepAbandoned
from roll.types.rollout import Generate, Generation, GenerationRequest, Task, TrajectoryGroup
from tests.helpers.configs import config
from tests.unit.features.experience.made import experience, told


def explorer_at(directory: Path, is_in_order: bool = True) -> Explorer:
    return Explorer(DirectoryBuffer(directory), 2, is_in_order)


def test_a_step_is_handed_over_with_what_the_filter_dropped(tmp_path: Path) -> None:
    groups = [experience(number).group for number in range(3)]
    explorer_at(tmp_path).write_step(0, StepGroups([groups[0], groups[2]], [groups[1]]))
    entries = explorer_at(tmp_path).buffer.entries()
    assert [(entry.step, entry.number, entry.is_kept) for entry in entries] == [
        (0, 0, True),
        (0, 1, False),
        (0, 2, True),
    ]
    assert Progress.of(explorer_at(tmp_path).buffer) == Progress(1, 3, ())


def test_an_explorer_that_starts_again_samples_what_no_step_took(tmp_path: Path) -> None:
    assert Progress.of(explorer_at(tmp_path).buffer) == Progress(0, 0, ())
    explorer_at(tmp_path).write_step(0, StepGroups([experience(0).group, experience(3).group], []))
    explorer_at(tmp_path).write_step(1, StepGroups([experience(1).group, experience(5).group], []))
    progress = Progress.of(explorer_at(tmp_path).buffer)
    assert progress == Progress(2, 6, (2, 4))
    assert progress.groups() == {"place": 0, "next": 6, "active": [[2, 2], [4, 2]]}


def test_a_group_whose_step_is_known_is_there_as_soon_as_it_is_sampled(tmp_path: Path) -> None:
    class Loop:
        async def run_group(self, task: Task, group_id: int, step: int, generate: Generate) -> TrajectoryGroup:
            return experience(group_id).group

    async def generate(request: GenerationRequest) -> list[Generation]:
        return []

    explorer = explorer_at(tmp_path)
    task = Task("row 5", "math", np.array([1], np.int32))
    group = asyncio.run(StreamingRollouter(Loop(), explorer).run_group(task, 5, 2, generate))
    assert [(entry.step, entry.number) for entry in explorer.buffer.entries()] == [(2, 5)]
    assert told(explorer.buffer.read(explorer.buffer.entries())[0]) == told(experience(5, step=2))
    explorer.write_step(2, StepGroups([group], []))
    assert len(explorer.buffer.entries()) == 1


def test_a_step_that_was_written_but_not_finished_is_over_where_its_numbers_hang_on_time(tmp_path: Path) -> None:
    explorer_at(tmp_path).buffer.write([experience(0), experience(3)])
    assert Progress.of(explorer_at(tmp_path).buffer).steps_done == 0
    assert Progress.of(explorer_at(tmp_path, is_in_order=False).buffer) == Progress(1, 4, (1, 2))


_SITS = """
import sys, time
from pathlib import Path
from roll.features.experience.modes import ProcessLock
lock = ProcessLock(Path(sys.argv[1]), "explore")
print("here", flush=True)
time.sleep(600)
"""


def test_a_second_explorer_is_refused_until_the_first_is_gone_and_a_trainer_is_not(tmp_path: Path) -> None:
    first = subprocess.Popen([sys.executable, "-c", _SITS, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert first.stdout is not None and first.stdout.readline() == b"here\n"
        with pytest.raises(StorageError, match="another process with mode: explore is running"):
            ProcessLock(tmp_path, "explore")
        ProcessLock(tmp_path, "train").leave()
    finally:
        first.kill()
        first.communicate()
    ProcessLock(tmp_path, "explore").leave()


def weights(tmp_path: Path, **keys: object) -> WeightFolder:
    return WeightFolder(config({"mode": "explore", "output_dir": str(tmp_path), "experience": keys}))


def model_of(version: int, directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / "model.safetensors").write_text(str(version))


def test_the_newest_whole_weights_are_found(tmp_path: Path) -> None:
    trainer, explorer = weights(tmp_path), weights(tmp_path)
    assert explorer.newest(0) is None
    for version in (1, 2, 3, 4, 5):
        trainer.write(version, lambda directory, v=version: model_of(v, directory))
    found = explorer.newest(2)
    assert found is not None and found[0] == 5 and (found[1] / "model.safetensors").read_text() == "5"
    assert explorer.newest(6) is None
    kept = sorted(path.name for path in (tmp_path / "experience" / "weights").glob("step_*"))
    assert kept == ["step_000003", "step_000004", "step_000005"]


def test_weights_that_were_not_finished_are_none(tmp_path: Path) -> None:
    trainer = weights(tmp_path)

    def fails(directory: Path) -> None:
        model_of(1, directory)
        raise RuntimeError("the trainer dies")

    with pytest.raises(RuntimeError):
        trainer.write(1, fails)
    assert weights(tmp_path).newest(0) is None
    with pytest.raises(StepAbandoned):
        weights(tmp_path).wait(1, lambda: True)


def test_versions_that_are_written_again_do_not_hide_newer_ones(tmp_path: Path) -> None:
    """A trainer that was killed goes on from an earlier checkpoint."""
    trainer = weights(tmp_path)
    for version in (1, 2, 3, 2):
        trainer.write(version, lambda directory, v=version: model_of(v, directory))
    found = weights(tmp_path).newest(3)
    assert found is not None and found[0] == 3


def test_a_buffer_is_where_its_keys_say(tmp_path: Path) -> None:
    for mode in ("explore", "train"):
        made = config({"mode": mode, "output_dir": str(tmp_path)})
        buffer = make_buffer(made)
        assert (tmp_path / "experience" / "groups").exists()
        if mode == "explore":
            buffer.write([experience(0)])
            buffer.finish(0, [0])
        else:
            reader = make_reader(made, buffer, lambda: True)
            assert [group.group_id for group in reader.take(0).groups.groups] == [0]
