"""Runs of programs, when a process of the run or a program is killed amid a hundred sessions, and when the run is
stopped and resumed: each group is trained once, and programs only see that a session is lost."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import foreign_programs
from tests.e2e.faults import recorded
from tests.helpers.runs import END_LIMIT_S, Run

NUM_GROUPS, GROUP_SIZE, NUM_STEPS = 16, 8, 5
NUM_SESSIONS = NUM_GROUPS * GROUP_SIZE  # at once
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
YAML = """
defaults:
  - ../config/deepspeed_zero@_here_
exp_name: outside
pretrain: MODEL
num_gpus_per_node: 3
max_steps: 5
eval_steps: -1
save_steps: -1
track_with: [jsonl]
rollout_batch_size: 128
recorder: {num_groups: 16}
prompt_length: 100
sequence_length: 600
adv_estimator: grpo
custom_envs:
  Outside: {env_manager_cls: proxy, max_steps: 2, max_tokens_per_step: 16}
agent_endpoint: {listen: "127.0.0.1:0", idle_timeout_s: 20}
train_env_manager: {world_size: 2, num_env_groups: 16, group_size: 8, tags: [Outside], max_env_num_per_worker: 64}
actor_train:
  model_args: {dtype: fp32}
  training_args: {per_device_train_batch_size: 16, gradient_accumulation_steps: 1}
  strategy_args: {strategy_name: deepspeed_train, strategy_config: "${deepspeed_zero}"}
  device_mapping: [0]
actor_infer:
  model_args: {dtype: fp32}
  generating_args: {max_new_tokens: 16}
  strategy_args: {strategy_name: hf_infer}
  device_mapping: [1, 2]
"""


class Programs:
    """Threads that take sessions while `is_on`, as many as the run has at once.

    - `begun`, `given`: what identifies each session that was taken, or whose reward the run has acknowledged
    - `lost`: how each session ended that the run did not know any more
    - `num_leaving`: so many are to be left amid their session, as by a program that was killed"""

    def __init__(self, file: Path):
        self._file = file
        self.begun: set[int] = set()
        self.given: set[int] = set()
        self.lost: dict[int, str] = {}
        self.left: set[int] = set()
        self.num_leaving = 0
        self.is_on = True
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(NUM_SESSIONS)]
        for thread in self._threads:
            thread.start()

    @property
    def num_open(self) -> int:
        return len(self.begun) - len(self.given) - len(self.lost) - len(self.left)

    def stop(self) -> None:
        self.is_on = False
        for thread in self._threads:
            thread.join(30)

    def _serve(self) -> None:
        while self.is_on:
            try:
                told = foreign_programs.read(self._file)
                status, session = foreign_programs.asked(f"{told['url']}/sessions", told["token"], {"wait_s": 5})
            except (OSError, ValueError):  # there is no run now
                time.sleep(0.5)
                continue
            if status == 200:
                self._play(told["url"], session)

    def _play(self, url: str, taken: dict[str, Any]) -> None:
        session = foreign_programs.Session(taken)
        own = foreign_programs.own_reward(session)
        self.begun.add(own)
        try:
            earned = foreign_programs.play(taken["task"], session, pause_s=1.0)
            if self.num_leaving:
                self.num_leaving -= 1
                self.left.add(own)
                return
            earned["reward"] = own / foreign_programs.RARE
            foreign_programs.asked(f"{url}/sessions/{taken['session']}/reward", session.api_key, earned)
            self.given.add(own)
        except (OSError, ValueError) as error:
            self.lost[own] = str(error)


@contextmanager
def programs_of(folder: Path) -> Iterator[Programs]:
    programs = Programs(folder / "agent_endpoint.json")
    try:
        yield programs
    finally:
        programs.stop()


def amid_sessions(run: Run, num_open: Callable[[], int], step: int) -> None:
    """Waits for that step, then for a moment with a hundred open sessions."""
    run.wait_for_step(step)
    deadline = time.monotonic() + 120
    while num_open() < 100:
        assert run.process.poll() is None and time.monotonic() < deadline, f"{num_open()} sessions:\n{run.text}"
        time.sleep(0.01)


def trained(run: Run) -> list[int]:
    """What identifies the sessions that were trained; every group of every step is there once and whole."""
    steps = recorded(run)
    attempts = [row for step in steps for row in step]
    assert sorted(run.metrics) == list(range(1, NUM_STEPS + 1)) and len(steps) == NUM_STEPS
    assert all(row["rollout/failed_fraction"] == 0 for row in run.metrics.values())
    sizes = Counter(row["group_id"] for row in attempts)
    assert len(sizes) == NUM_STEPS * NUM_GROUPS and set(sizes.values()) == {GROUP_SIZE}
    assert all(len({row["group_id"] for row in step}) == NUM_GROUPS for step in steps)
    return [round(row["reward"] * foreign_programs.RARE) for row in attempts]


def test_a_killed_engine_worker_and_program_and_a_sigterm_amid_a_hundred_sessions_lose_no_group(
    tmp_path: Path, tiny_tied_model_dir: Path, start_run: Callable[..., Run]
) -> None:
    """The programs are elsewhere. What they earned is trained once, or belongs to a group that was played again."""
    (tmp_path / "outside.yaml").write_text(YAML.replace("MODEL", str(tiny_tied_model_dir)))
    run = start_run(tmp_path, "outside", example=tmp_path, pipeline="agentic")
    with programs_of(run.output_dir) as programs:
        amid_sessions(run, lambda: programs.num_open, 1)
        programs.num_leaving = 1
        run.worker("actor_infer").kill()
        amid_sessions(run, lambda: programs.num_open, 2)
        assert not programs.lost, "programs see nothing of an engine's death"
        run.worker("environments").kill()
        amid_sessions(run, lambda: programs.num_open, 3)
        num_lost = len(programs.lost)
        run.process.send_signal(signal.SIGTERM)
        assert run.wait(END_LIMIT_S) == 143, run.text
        row = run.metrics[3]
        run.assert_all_gone()
        assert len(run.metrics) < NUM_STEPS
        resumed = start_run(tmp_path, "outside", "resume_from_checkpoint=true", example=tmp_path, pipeline="agentic")
        assert resumed.wait(600) == 0, resumed.text
    resumed.assert_all_gone()
    assert row["env/restarted_workers"] == 1 and row["rollout/restarted_engines"] == 1 and len(programs.left) == 1
    num_crashes = sum(row["env/crashes"] for row in resumed.metrics.values())
    assert num_crashes == 1, f"one program was silent; {Counter(programs.lost.values())}"
    counts = Counter(trained(resumed))
    assert max(counts.values()) == 1 and counts.keys() <= programs.given
    assert programs.num_open == 0, "a program still waits"
    assert num_lost > 0, "the killed worker had sessions"
    assert len(programs.given) - len(counts) <= 2 * NUM_SESSIONS, "more was played again than two interruptions had"
