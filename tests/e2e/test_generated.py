"""A whole run on rows and rewards of reasoning-gym, and its resume and its fork bit for bit."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from roll.run.tracking.local import read_metrics
from tests.helpers.runs import Run, comparable

YAML = """
exp_name: tasks
pretrain: {model}
max_steps: 2
eval_steps: 2
save_steps: 1
num_gpus_per_node: 2
rollout_batch_size: 4
num_return_sequences_in_group: 2
prompt_length: 512
response_length: 8
entropy_loss_coef: 0.1     # no answer of a random model is right, so the rewards move nothing
actor_train:
  model_args: {{dtype: fp32}}
  training_args: {{gradient_accumulation_steps: 1, per_device_train_batch_size: 8}}
  data_args:
    file_name: [reasoning_gym:chain_sum, reasoning_gym:spell_backward]
    generator: {{size: 20, chain_sum: {{max_terms: 2}}}}
  strategy_args: {{strategy_name: fsdp2_train}}
  device_mapping: [0]
actor_infer:
  model_args: {{dtype: fp32}}
  strategy_args: {{strategy_name: hf_infer}}
  device_mapping: [1]
rewards:
  tasks: {{reward: reasoning_gym, tag_included: [chain_sum, spell_backward], world_size: 1, timeout_s: 120}}
validation:
  data_args: {{file_name: reasoning_gym:chain_sum, generator: {{size: 4, seed: 2}}}}
"""


@pytest.mark.slow
def test_a_run_on_tasks_by_name_scores_their_answers_and_resumes_and_forks_exactly(
    tiny_model_dir: Path, start_run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("reasoning_gym", reason="the tasks are those of the package reasoning-gym")
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "yaml"
    folder.mkdir()
    (folder / "tasks.yaml").write_text(YAML.format(model=tiny_model_dir))
    whole = start_run(tiny_model_dir, "tasks", name="whole", example=folder).finished()
    assert whole.metrics[2]["rollout/failed_fraction"] == 0
    assert whole.metrics[1]["actor/grad_norm"] > 0
    assert 0 <= whole.metrics[2]["val/reward_mean"] < 1

    saved = whole.output_dir / "checkpoints" / "step_000001"
    again = start_run(
        tiny_model_dir, "tasks", f"resume_from_checkpoint={saved}", name="again", example=folder
    ).finished()
    assert comparable(again.metrics[2]) == comparable(whole.metrics[2])

    command = [sys.executable, "-m", "roll", "fork", f"{whole.output_dir}@1", "--out", str(tmp_path / "fork")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = dict(read_metrics(tmp_path / "fork" / "logs" / "metrics.jsonl"))
    assert list(rows) == [2], "the fork takes the steps after its checkpoint, in a folder of its own"
    assert comparable(rows[2] | {"step": 2}) == comparable(whole.metrics[2])
