"""Whole runs of examples/tiny-count: a model that sees learns to look, and does not where there is nothing to see."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from roll.run.records.replay import read
from tests.e2e.conftest import REPOSITORY, Run, comparable
from tests.e2e.test_rlvr import assert_engine_and_trainer_agree

StartRun = Callable[..., Run]
LAKE = """
defaults:
  - ../config/deepspeed_zero@_here_
exp_name: drawn_lake
output_dir: {data}/drawn_lake
pretrain: {data}/model
num_gpus_per_node: 2
max_steps: {steps}
eval_steps: -1
save_steps: 2
rollout_batch_size: 64
prompt_length: 48
sequence_length: 160
adv_estimator: grpo
loss_agg_mode: token-mean
custom_envs:
  Lake:
    env_type: tests.e2e.drawn_lake:DrawnLake
    env_config: {{size: 2, p: 0.9, render_mode: rgb_array}}
    env_manager_cls: roll.pipeline.agentic.env_manager.vl_traj_env_manager.VLTrajEnvManager
    max_steps: 3
    max_tokens_per_step: 3
    pre_step_template: "turn {{turn_idx}} "
    action_pattern: (.*)
train_env_manager:
  num_env_groups: 8
  group_size: 8
  tags: [Lake]
actor_train:
  model_args: {{dtype: fp32, disable_gradient_checkpointing: true}}
  training_args:
    {{learning_rate: 1.0e-3, warmup_steps: 1, per_device_train_batch_size: 16, gradient_accumulation_steps: 4}}
  strategy_args: {{strategy_name: deepspeed_train, strategy_config: "${{deepspeed_zero}}"}}
  device_mapping: [0]
actor_infer:
  model_args: {{dtype: fp32}}
  strategy_args: {{strategy_name: {engine}}}
  device_mapping: [1]
"""
SHORT = ("max_steps=3", "eval_steps=0", "save_steps=-1", "actor_train.training_args.warmup_steps=1")


def start(start_run: StartRun, data: Path, *overrides: str, config: str = "tiny_count", name: str = "run") -> Run:
    return start_run(data, config, *overrides, example="tiny-count", name=name)


def test_engine_and_trainer_see_the_same_pictures(count_data: Path, start_run: StartRun) -> None:
    """And a picture that is broken fails its task, is counted, and ends nothing."""
    rows = [json.loads(line) for line in (count_data / "train.jsonl").read_text().splitlines()[:64]]
    broken = count_data / "pictures" / "broken.png"
    broken.write_bytes((count_data / rows[0]["images"][0]).read_bytes()[:200])
    rows[5]["images"] = [str(broken.relative_to(count_data))]
    text_row = {"prompt": "say 1", "ground_truth": "1", "tag": "count"}  # rows of text stand among them
    file = count_data / "some.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *[text_row] * 8]))
    run = start(start_run, count_data, *SHORT, f"actor_train.data_args.file_name={file}", "max_failed_fraction=0.5")
    assert run.wait() == 0, run.text
    assert_engine_and_trainer_agree(run)
    records = "".join(path.read_text() for path in (run.output_dir / "rollouts").glob("step_*.jsonl"))
    assert '"form": "file"' in records
    assert sum(row.get("rollout/failed_fraction", 0) for row in run.metrics.values()) > 0, sorted(run.metrics[1])
    run.assert_all_gone()


@pytest.mark.slow
@pytest.mark.parametrize("config", ["tiny_count", "tiny_count_vllm", "tiny_count_fsdp2"])
def test_it_learns_to_look(config: str, count_data: Path, start_run: StartRun) -> None:
    """From chance, one in four, to above .9 on pictures that it has not seen."""
    run = start(start_run, count_data, config=config)
    assert run.wait(1200) == 0, run.text
    assert run.metrics[0]["val/reward_mean"] < 0.35
    assert run.metrics[125]["val/reward_mean"] > 0.9
    assert_engine_and_trainer_agree(run, 1e-3)
    run.assert_all_gone()


@pytest.mark.slow
def test_blind_it_stays_at_chance(tmp_path: Path, start_run: StartRun) -> None:
    command = [sys.executable, "examples/tiny-count/prepare.py", "--out", str(tmp_path / "blind"), "--blind"]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    run = start(start_run, tmp_path / "blind")
    assert run.wait(1200) == 0, run.text
    assert 0.15 < run.metrics[125]["val/reward_mean"] < 0.35


@pytest.mark.slow
def test_a_resumed_run_equals_it(count_data: Path, start_run: StartRun) -> None:
    steps = ("max_steps=6", "eval_steps=6", "actor_train.training_args.warmup_steps=1")
    whole = start(start_run, count_data, *steps, "save_steps=4", name="whole")
    assert whole.wait() == 0, whole.text
    checkpoint = whole.output_dir / "checkpoints" / "step_000004"
    again = start(start_run, count_data, *steps, "save_steps=-1", f"resume_from_checkpoint={checkpoint}", name="again")
    assert again.wait() == 0, again.text
    for step in (5, 6):
        assert learnt(again, step) == learnt(whole, step), f"step {step}"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["hf_infer", "vllm"])
def test_episodes_show_a_new_picture_at_each_turn(
    engine: str, count_data: Path, tmp_path: Path, start_run: StartRun
) -> None:
    """Engine and trainer see the same lake at every turn, a resumed run goes on, and records show what was seen."""
    config = tmp_path / "drawn_lake.yaml"
    config.write_text(LAKE.format(data=count_data, steps=4, engine=engine))
    run = start_run(count_data, "drawn_lake", example=tmp_path, pipeline="agentic", name="lake")
    assert run.wait() == 0, run.text
    assert_engine_and_trainer_agree(run, 1e-5)
    assert all(run.metrics[step]["env/Lake/failed_fraction"] == 0 for step in range(1, 5))
    assert run.metrics[4]["env/Lake/num_turns_mean"] > 1
    records = list(read(run.output_dir / "rollouts" / "step_000004.jsonl"))
    turns = [turn for record in records for turn in record.turns]
    assert turns and all(len(turn.pictures) == 1 for turn in turns)
    assert len({turn.pictures[0].place for turn in turns}) > 2
    assert all(Path(turn.pictures[0].place).read_bytes().startswith(b"\x89PNG") for turn in turns)
    checkpoint = run.output_dir / "checkpoints" / "step_000002"
    again = start_run(
        count_data, "drawn_lake", f"resume_from_checkpoint={checkpoint}", example=tmp_path, pipeline="agentic",
        name="again",
    )  # fmt: skip
    assert again.wait() == 0, again.text
    assert_engine_and_trainer_agree(again, 1e-5)
    again.assert_all_gone()


def learnt(run: Run, step: int) -> dict[str, float]:
    """All but what tells engine and trainer apart: prompts reach the engine when their pictures are decoded, and its
    last digits depend on which others it computes at once."""
    return {name: value for name, value in comparable(run.metrics[step]).items() if not name.startswith("train_infer/")}
