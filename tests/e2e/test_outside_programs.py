"""Runs whose programs are elsewhere, when a process of the run is killed amid their sessions, and when the run is
stopped and resumed: each group is trained once, and programs only see that a session is lost."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import foreign_programs
from tests.e2e.conftest import END_LIMIT_S, Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
YAML = """
defaults:
  - ../config/deepspeed_zero@_here_
exp_name: outside
pretrain: MODEL
num_gpus_per_node: 2
max_steps: STEPS
eval_steps: -1
save_steps: -1
track_with: [jsonl]
rollout_batch_size: 16
prompt_length: 100
sequence_length: 600
adv_estimator: grpo
custom_envs:
  Outside: {env_manager_cls: proxy, max_steps: 2, max_tokens_per_step: 16}
agent_endpoint: {listen: "127.0.0.1:0"}
train_env_manager: {world_size: 2, num_env_groups: 4, group_size: 4, tags: [Outside], max_env_num_per_worker: 8}
actor_train:
  model_args: {dtype: fp32}
  training_args: {per_device_train_batch_size: 16, gradient_accumulation_steps: 1}
  strategy_args: {strategy_name: deepspeed_train, strategy_config: "${deepspeed_zero}"}
  device_mapping: [0]
actor_infer:
  model_args: {dtype: fp32}
  generating_args: {max_new_tokens: 16}
  strategy_args: {strategy_name: hf_infer}
  device_mapping: [1]
"""


class Programs:
    """Threads that take sessions while `is_on`. `num_lost`: sessions that the run did not know any more."""

    def __init__(self, file: Path, pause_s: float):
        self._file, self._pause_s = file, pause_s
        self.num_given = self.num_lost = self.num_open = 0
        self.is_on = True
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(8)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self.is_on = False
        for thread in self._threads:
            thread.join(30)

    def _serve(self) -> None:
        while self.is_on:
            try:
                told = foreign_programs.read(self._file)
                status, session = foreign_programs.asked(f"{told['url']}/sessions", told["token"], {"wait_s": 1})
            except (OSError, ValueError):  # there is no run now
                time.sleep(0.2)
                continue
            if status == 200:
                self._play(told["url"], session)

    def _play(self, url: str, taken: dict[str, Any]) -> None:
        self.num_open += 1
        try:
            session = foreign_programs.Session(taken)
            earned = foreign_programs.play(taken["task"], session, self._pause_s)
            foreign_programs.asked(f"{url}/sessions/{taken['session']}/reward", session.api_key, earned)
            self.num_given += 1
        except (OSError, ValueError):
            self.num_lost += 1
        finally:
            self.num_open -= 1


@contextmanager
def programs_of(folder: Path, pause_s: float = 0.3) -> Iterator[Programs]:
    programs = Programs(folder / "agent_endpoint.json", pause_s)
    try:
        yield programs
    finally:
        programs.stop()


def write(tmp_path: Path, model: Path, num_steps: int) -> None:
    (tmp_path / "outside.yaml").write_text(YAML.replace("MODEL", str(model)).replace("STEPS", str(num_steps)))


def test_a_killed_worker_costs_its_sessions_and_no_episode(
    tmp_path: Path, tiny_tied_model_dir: Path, start_run: Callable[..., Run]
) -> None:
    write(tmp_path, tiny_tied_model_dir, 4)
    run = start_run(tmp_path, "outside", example=tmp_path, pipeline="agentic")
    with programs_of(run.output_dir) as programs:
        run.wait_for_step(1)
        while programs.num_open < 4:
            time.sleep(0.01)
        run.worker("environments").kill()
        assert run.wait(600) == 0, run.text
    assert sorted(run.metrics) == [1, 2, 3, 4]
    assert all(row["rollout/failed_fraction"] == 0 for row in run.metrics.values())
    assert run.metrics[4]["env/restarted_workers"] == 1
    assert programs.num_lost >= 1 and programs.num_given >= 4 * 16
    run.assert_all_gone()


def test_sigterm_amid_sessions_and_a_resumed_run_train_every_group_once(
    tmp_path: Path, tiny_tied_model_dir: Path, start_run: Callable[..., Run]
) -> None:
    write(tmp_path, tiny_tied_model_dir, 5)
    run = start_run(tmp_path, "outside", example=tmp_path, pipeline="agentic")
    with programs_of(run.output_dir) as programs:
        run.wait_for_step(2)
        while programs.num_open < 4:
            time.sleep(0.01)
        run.process.send_signal(signal.SIGTERM)
        assert run.wait(END_LIMIT_S) == 143, run.text
        steps = sorted(run.metrics)
        run.assert_all_gone()
        resumed = start_run(tmp_path, "outside", "resume_from_checkpoint=true", example=tmp_path, pipeline="agentic")
        assert resumed.wait(600) == 0, resumed.text
    assert sorted(resumed.metrics) == [1, 2, 3, 4, 5] and steps[-1] < 5
    assert all(row["rollout/failed_fraction"] == 0 for row in resumed.metrics.values())
    resumed.assert_all_gone()
