"""Whole runs of examples/tiny-count: a model that sees learns to look, and does not where there is nothing to see."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from PIL import Image
from transformers import AutoModelForImageTextToText

from roll.run.records.replay import read
from tests.e2e.picture_loop import PlainLoop, recorded
from tests.e2e.test_rlvr import assert_engine_and_trainer_agree
from tests.helpers.runs import REPOSITORY, Run, comparable
from tests.parity.strategies import shown as tiny
from tests.unit.datasets.pictures.files import pixels

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
    run = start(
        start_run, count_data, *SHORT, f"actor_train.data_args.file_name={file}", "max_failed_fraction=0.5"
    ).finished()
    assert_engine_and_trainer_agree(run)
    records = "".join(path.read_text() for path in (run.output_dir / "rollouts").glob("step_*.jsonl"))
    assert '"form": "file"' in records
    assert sum(row.get("rollout/failed_fraction", 0) for row in run.metrics.values()) > 0, sorted(run.metrics[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "config"),
    [("glm4v", "tiny_count_vllm"), ("qwen3_5", "tiny_count"), ("qwen3_vl_moe", "tiny_count_vllm")],
)
def test_engine_and_trainer_of_other_families_agree(
    arch: str, config: str, tmp_path: Path, start_run: StartRun
) -> None:
    """Whole runs of a few steps, each with an update that engines get."""
    command = [sys.executable, "examples/tiny-count/prepare.py", "--out", str(tmp_path / "data"), "--arch", arch]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    run = start(start_run, tmp_path / "data", *SHORT, config=config).finished()
    assert_engine_and_trainer_agree(run)
    assert "train_infer/log_prob_diff_max" in run.metrics[3]


@pytest.mark.slow
def test_boxes_in_pixels_of_the_file_are_compared_with_what_the_model_saw(
    count_data: Path, tmp_path: Path, start_run: StartRun
) -> None:
    """ROLL's detection by its own path, whose answers are digits and score nothing; and beside it answers with the
    right boxes in the picture as it was resized, which score everything."""
    lines = []
    for number in range(32):
        Image.fromarray(pixels(100 + number, 200, number)).save(tmp_path / f"{number}.png")
        boxes = [{"bbox_2d": [number, 10, 150, 90], "label": "square"}, {"bbox_2d": [0, 0, 9, 9], "label": "dot"}]
        row = {"prompt": "<image>how many?", "images": [f"{number}.png"], "ground_truth": json.dumps(boxes)}
        lines.append(json.dumps(row | {"tag": ("sampled", "perfect")[number % 2]}) + "\n")
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    given = {"reward_args": {"reference_pixels": "of_file"}, "world_size": 1}
    roll = "roll.pipeline.rlvr.rewards.detection_reward_worker.DetectionRewardWorker"
    rewards = {
        "sampled": {"worker_cls": roll, **given},
        "perfect": {"reward": "tests.e2e.perfect_boxes:PerfectBoxes", **given},
    }
    text = (REPOSITORY / "examples" / "tiny-count" / "tiny_count.yaml").read_text()
    (tmp_path / "boxes.yaml").write_text(text.partition("rewards:")[0] + yaml.safe_dump({"rewards": rewards}))
    run = start_run(
        count_data, "boxes", *SHORT, "eval_steps=-1", f"actor_train.data_args.file_name={tmp_path / 'rows.jsonl'}",
        "num_return_sequences_in_group=2", "actor_train.training_args.gradient_accumulation_steps=1",
        "recorder.num_groups=64", example=tmp_path, name="boxes",
    ).finished()  # fmt: skip
    assert_engine_and_trainer_agree(run)
    files = (run.output_dir / "rollouts").glob("step_*.jsonl")
    found = {(record.domain, round(record.reward or 0.0, 9)) for path in files for record in read(path)}
    assert found == {("sampled", 0.0), ("perfect", 1.0)}


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
    whole = start(start_run, count_data, *steps, "save_steps=4", name="whole").finished()
    checkpoint = whole.output_dir / "checkpoints" / "step_000004"
    again = start(
        start_run, count_data, *steps, "save_steps=-1", f"resume_from_checkpoint={checkpoint}", name="again"
    ).finished()
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
    run = start_run(count_data, "drawn_lake", example=tmp_path, pipeline="agentic", name="lake").finished()
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
    ).finished()  # fmt: skip
    assert_engine_and_trainer_agree(again, 1e-5)


def learnt(run: Run, step: int) -> dict[str, float]:
    """All but what tells engine and trainer apart: prompts reach the engine when their pictures are decoded, and its
    last digits depend on which others it computes at once."""
    return {name: value for name, value in comparable(run.metrics[step]).items() if not name.startswith("train_infer/")}


PPO = (
    "adv_estimator=gae",
    "+critic.model_args={dtype: fp32, disable_gradient_checkpointing: true}",
    "+critic.training_args={learning_rate: 1.0e-3, per_device_train_batch_size: 64}",
    "+critic.strategy_args={strategy_name: fsdp2_train}",
    "+critic.device_mapping=[0]",
)


@pytest.mark.slow
def test_a_critic_a_reward_model_and_a_judge_see_the_pictures(
    count_data: Path, tmp_path: Path, start_run: StartRun
) -> None:
    """One domain is scored by a reward model of the policy's family, the other one judged by the policy's own start,
    on engines beside the run's. Each looks: a random head gives other pictures other numbers, and the judge's prompt
    is as long as its pictures make it."""
    scorer = tiny.with_numbers(count_data / "model", tmp_path / "scorer")
    model = "{dtype: fp32, model_name_or_path: '%s'}"
    run = start(
        start_run, count_data, *SHORT, *PPO, "eval_steps=-1", "num_gpus_per_node=4", "recorder.num_groups=64",
        "rewards.count.reward=reward_model", "~rewards.count.world_size",
        f"+rewards.count.model_args={model % scorer}", "+rewards.count.strategy_args.strategy_name=hf_infer",
        "+rewards.count.device_mapping=[2]",
        "++rewards.colour.reward=llm_judge", "~rewards.colour.world_size", "+rewards.colour.judge_model_type=inference",
        "+rewards.colour.judge_prompt='how many?{response}'", "+rewards.colour.judge_verdict_pattern='([1-4])'",
        "+rewards.colour.judge_score_range=[1, 4]",
        f"+rewards.colour.model_args={model % (count_data / 'model')}",
        "+rewards.colour.strategy_args.strategy_name=hf_infer", "+rewards.colour.device_mapping=[3]",
        "+rewards.colour.generating_args={max_new_tokens: 3, temperature: 0.0}", "max_failed_fraction=1",
    ).finished()  # fmt: skip
    assert_engine_and_trainer_agree(run)
    row = run.metrics[3]
    assert row["critic/value_loss"] > 0 and row["rollout/reward_std"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("config", ["tiny_count", "tiny_count_fsdp2"])
def test_a_run_learns_what_a_plain_loop_learns_of_the_same_rollouts(
    config: str, count_data: Path, tmp_path: Path, start_run: StartRun
) -> None:
    """Three steps of two updates, rows of text among those with pictures. AdamW moves each weight by about its rate,
    and where a gradient is near 0 a rounding error is a share of that: no weight is off by half of one of six steps,
    and all together by a thousandth of one."""
    rows = [json.loads(line) for line in (count_data / "train.jsonl").read_text().splitlines()[:16]]
    for row in rows:
        row["images"] = [str(count_data / name) for name in row["images"]]
    text_row = {"prompt": "say 1", "ground_truth": "1", "tag": "count"}
    file, dumps, rate = tmp_path / "rows.jsonl", tmp_path / "dumps", 1e-3
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *[text_row] * 8]))
    run = start(
        start_run, count_data, "max_steps=3", "eval_steps=-1", "save_steps=3", "rollout_batch_size=8",
        "actor_train.training_args.warmup_steps=0", "+actor_train.training_args.lr_scheduler_type=constant",
        f"actor_train.training_args.learning_rate={rate}", "actor_train.training_args.per_device_train_batch_size=16",
        f"actor_train.data_args.file_name={file}", "+ppo_epochs=2", "+rollout_mock.enable=true",
        f"+rollout_mock.dump_dir={dumps}", config=config,
    ).finished()  # fmt: skip
    loop, steps = PlainLoop(count_data / "model", rate, epochs=2), recorded(dumps)
    assert [len(groups) for groups in steps] == [8, 8, 8]
    assert {bool(row.media) for groups in steps for group in groups for row in group.trajectories} == {True, False}
    before = {name: weight.detach().clone() for name, weight in loop.model.named_parameters()}
    for groups in steps:
        loop.learn(groups)
    saved = run.output_dir / "checkpoints" / "step_000003" / "hf_model"
    found = dict(AutoModelForImageTextToText.from_pretrained(saved, dtype="float32").named_parameters())
    assert found.keys() == before.keys()
    learnt_there = dict(loop.model.named_parameters())
    off, moved = (
        {name: float((found[name] - weight).detach().abs().max()) for name, weight in weights.items()}
        for weights in (learnt_there, before)
    )
    tower = [name for name in moved if name.startswith("model.visual.")]
    assert min(max(moved.values()), max(moved[name] for name in tower)) > rate
    assert max(off.values()) < rate / 2, max(off.items(), key=lambda item: item[1])
    sums = [float((found[name] - weight).detach().abs().sum()) for name, weight in learnt_there.items()]
    assert sum(sums) / sum(weight.numel() for weight in learnt_there.values()) < rate / 1000
    for step in (1, 2, 3):
        mean = (loop.norms[2 * step - 2] + loop.norms[2 * step - 1]) / 2
        assert run.metrics[step]["actor/grad_norm"] == pytest.approx(mean, rel=1e-3), step
