"""Every YAML in examples/ has a plan that works."""

import re
from pathlib import Path

import pytest
import yaml

from roll.commands.run import main
from roll.configs.strategies.deepspeed import DeepSpeedFacts, deepspeed_problems
from tests.helpers.cases import cases

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
MODELS = EXAMPLES.parent / "tests" / "unit" / "configs" / "memory" / "models"
FRAGMENTS = sorted((EXAMPLES / "config").glob("deepspeed_*.yaml"))
RECIPES = sorted(
    path
    for path in EXAMPLES.glob("*/*.yaml")
    if path.parent.name != "config" and "rewards" in yaml.safe_load(path.read_text(encoding="utf-8"))
)
KINDS = ("sft", "dpo", "rm", "distill")
OF_ROWS = {path: kind for kind in KINDS for path in sorted(EXAMPLES.glob(f"*/*_{kind}.yaml"))}


def test_there_are_recipes_and_fragments_to_check() -> None:
    assert sorted(set(OF_ROWS.values())) == ["distill", "dpo", "rm", "sft"]
    assert len(RECIPES) >= 9
    assert [path.stem for path in FRAGMENTS] == [
        "deepspeed_zero",
        "deepspeed_zero2",
        "deepspeed_zero3",
        "deepspeed_zero3_cpuoffload",
    ]


@pytest.mark.parametrize("path", RECIPES + list(OF_ROWS), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_shipped_recipe_has_a_plan_that_works(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--config_path", str(path.parent), "--config_name", path.stem, "--dry_run", "--elsewhere"]
    assert main(OF_ROWS.get(path, "rlvr"), arguments) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    assert "The plan works." in shown
    doing_nothing = [line for line in shown.splitlines() if "do nothing" in line or "does nothing" in line]
    assert doing_nothing == []


LARGE = [path for path in RECIPES if "B-rlvr" in path.parent.name]


@pytest.mark.parametrize("path", LARGE, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_recipe_of_a_large_model_packs_its_rows(path: Path) -> None:
    """By arithmetic, not measured: two rows of a 30B mixture take as long as a pack of 16k tokens."""
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    scorers = ("deepspeed_infer", "fsdp2_infer", "megatron_infer")
    packing = [
        tree[role].get("use_sequence_packing")
        for role in ("actor_train", "reference")
        if role == "actor_train" or tree.get(role, {}).get("strategy_args", {}).get("strategy_name") in scorers
    ]
    assert packing and all(packing)


@cases("recipe, model, most")
def test_a_recipe_trains_on_gpus_of_80_gb_with_what_the_page_on_trainers_says(
    recipe: str,
    model: str,
    most: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "config.json").write_text((MODELS / f"{model}.json").read_text())
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setenv("MODEL", str(tmp_path))
    folder, _, name = recipe.partition("/")
    given = [
        "--config_path",
        str(EXAMPLES / folder),
        "--config_name",
        name,
        "--dry_run",
        "--all",
        "--elsewhere",
        "gpu_memory_gb=80",
        "host_memory_gb=1000",
    ]
    assert main("rlvr", given) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    assert "does not fit" not in shown
    assert re.search(rf"training (of| ) *actor_train,? +~{most} ", shown), shown
    page = (EXAMPLES.parent / "docs" / "trainers.md").read_text(encoding="utf-8")
    assert re.search(rf"\| `{recipe}.yaml` \| \d+ \| ~{most} GB \|", page)


@pytest.mark.parametrize("path", FRAGMENTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_fragment_holds_one_mapping_under_its_own_name_and_serves_every_dtype(path: Path, dtype: str) -> None:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert list(content) == [path.stem]
    assert list(deepspeed_problems("actor_train", content[path.stem], DeepSpeedFacts(dtype, 4, 2, 2, 1.0))) == []


def test_a_yaml_written_for_roll_has_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The constructions that ROLL users have in their files: hydra section, fragments, role classes, keys without
    effect."""
    (tmp_path / "roll.yaml").write_text(
        """
defaults:
  - ../config/deepspeed_zero@_here_
  - ../config/deepspeed_zero2@_here_
  - ../config/deepspeed_zero3@_here_
  - ../config/deepspeed_zero3_cpuoffload@_here_
hydra: {run: {dir: .}, output_subdir: null}
pg_variant: ppo
exp_name: rlvr-${pg_variant}
logging_dir: ./output/logs
output_dir: ./output
system_envs: {USE_MODELSCOPE: '1'}
checkpoint_config: {type: file_system, output_dir: ./ckpt}
track_with: tensorboard
tracker_kwargs: {log_dir: ./output/tb}
num_gpus_per_node: 16
max_steps: 100
rollout_batch_size: 16
prompt_length: 2048
response_length: 4096
num_return_sequences_in_group: 8
adv_estimator: reinforce
value_clip: 0.5
reward_clip: 10
advantage_clip: 2.0
dual_clip_loss: true
norm_mean_type: ~
norm_std_type: ~
max_len_mask: true
difficulty_mask: true
difficulty_low_threshold: 0.2
error_max_len_clip: false
add_token_level_kl: false
whiten_advantages: true
pretrain: Qwen/Qwen3-8B-Base
reward_pretrain: Qwen/Qwen3-8B-Base
validation:
  data_args: {template: qwen3, file_name: [data/bench.jsonl]}
  generating_args: {top_p: 0.6, top_k: 50, num_beams: 1, temperature: 0.6, num_return_sequences: 1}
  eval_steps: 10
actor_train:
  worker_cls: roll.pipeline.rlvr.actor_pg_worker.ActorPGWorker
  pg_variant: ppo
  model_args: {flash_attn: fa2, disable_gradient_checkpointing: false, dtype: bf16, model_type: ~}
  training_args:
    {learning_rate: 1.0e-6, weight_decay: 0, per_device_train_batch_size: 1, gradient_accumulation_steps: 8,
     warmup_steps: 2, num_train_epochs: 50}
  data_args:
    {template: qwen3, file_name: [data/math.jsonl], domain_interleave_probs: {math_rule: 1}, dataset_dir: data,
     messages: messages, interleave_probs: "1.0", preprocessing_num_workers: 16}
  strategy_args: {strategy_name: deepspeed_train, strategy_config: "${deepspeed_zero3_cpuoffload}"}
  device_mapping: list(range(0,8))
  infer_batch_size: 1
actor_infer:
  model_args: {flash_attn: fa2, disable_gradient_checkpointing: true, dtype: bf16}
  generating_args:
    {max_new_tokens: "${response_length}", top_p: 0.99, top_k: 100, num_beams: 1, temperature: 0.99,
     num_return_sequences: "${num_return_sequences_in_group}"}
  data_args: {template: qwen3}
  strategy_args:
    {strategy_name: vllm, strategy_config: {gpu_memory_utilization: 0.6, block_size: 16, max_model_len: 8000}}
  device_mapping: list(range(8,12))
  infer_batch_size: 4
reference:
  strategy_args: {strategy_name: hf_infer, strategy_config: ~}
  device_mapping: list(range(12,16))
rewards:
  math_rule:
    worker_cls: roll.pipeline.rlvr.rewards.math_rule_reward_worker.MathRuleRewardWorker
    model_args: {model_name_or_path: "${reward_pretrain}"}
    data_args: {template: qwen3}
    strategy_args: {strategy_name: hf_infer, strategy_config: ~}
    tag_included: [deepmath_103k, MATH-500, math_rule]
    world_size: 8
    infer_batch_size: 1
"""
    )
    assert main("rlvr", ["--config_path", str(tmp_path), "--config_name", "roll", "--dry_run", "--elsewhere"]) == 0, (
        capsys.readouterr().err
    )
    shown = capsys.readouterr().out
    assert "rlvr-ppo: 100 steps" in shown
    assert "16 prompts x 8 samples = 128 = 64 per update (1 x 8 x 8) x 2 updates" in shown
    assert "reference is not started: no KL term is in use" in shown
    for line in (
        "actor_train.data_args.dataset_dir does nothing here",
        "actor_train.data_args.interleave_probs does nothing here",
        "validation.eval_steps: 10 does nothing here: the run's eval_steps counts.",
        "actor_infer: model_args.disable_gradient_checkpointing, data_args, infer_batch_size do nothing here: this "
        "role generates.",
        "rewards.math_rule: strategy_args, model_args, data_args, infer_batch_size do nothing here: this reward is a "
        "function and runs on the CPU.",
    ):
        assert f"Warning: {line}" in shown
