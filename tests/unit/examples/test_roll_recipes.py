"""YAMLs in the shape of ROLL's published recipes load under --dry_run: what ROLL accepts there is accepted here."""

from pathlib import Path
from typing import Any

import pytest

from roll.commands.run import main
from roll.configs.load.loader import compose_tree, resolve_tree
from roll.configs.plan.derive import weighs_importance
from roll.run.spec import PIPELINES
from roll.run.start.load import check
from tests.helpers.cases import cases

RLVR = """
hydra: {run: {dir: .}, output_subdir: null}
exp_name: rlvr-${pg_variant}
pg_variant: ppo
system_envs: {USE_MODELSCOPE: '1'}
checkpoint_config: {type: file_system, output_dir: ./ckpt}
num_gpus_per_node: 8
rollout_batch_size: 64
prompt_length: 2048
response_length: 4096
num_return_sequences_in_group: 8
adv_estimator: reinforce
use_kl_loss: true
kl_loss_coef: 0.01
value_clip: 0.5
max_grad_norm: 1.0
offload_nccl: true
reward_norm: null
reward_shift: false
reward_scale: false
reward_system_config: {host: none}
model_name: mine
pretrain: Qwen/Qwen3-30B-A3B
reward_pretrain: Qwen/Qwen3-30B-A3B
actor_train:
  model_args: {flash_attn: fa2, dtype: bf16, model_type: ~}
  training_args: {per_device_train_batch_size: 1, gradient_accumulation_steps: 32, warmup_steps: 20}
  data_args:
    {template: qwen3, file_name: [data/math.jsonl], messages: messages, dataset_dir: data, interleave_probs: "1.0",
     domain_interleave_probs: {math_rule: 0.5, aime: 0.4}}
  strategy_args: ACTOR_STRATEGY
  offload_nccl: ${offload_nccl}
  device_mapping: list(range(0,32))
  infer_batch_size: 2
actor_infer:
  model_args: {dtype: bf16}
  generating_args:
    {max_new_tokens: "${response_length}", top_p: 0.99, top_k: 100, temperature: 0.99,
     num_return_sequences: "${num_return_sequences_in_group}"}
  strategy_args:
    strategy_name: vllm
    strategy_config:
      {gpu_memory_utilization: 0.85, load_format: dummy, tensor_parallel_size: 2, sleep_level: 2, max_model_len: 6000}
  num_gpus_per_worker: 2
  device_mapping: list(range(0,24))
reference:
  model_args: {dtype: bf16}
  strategy_args: REFERENCE_STRATEGY
  device_mapping: list(range(0,32))
rewards:
  math_rule:
    worker_cls: roll.pipeline.rlvr.rewards.math_rule_reward_worker.MathRuleRewardWorker
    tag_included: deepmath_103k, aime24
    world_size: 8
  aime: {reward: math_rule, world_size: 4}
  gsm8k: {reward: math_rule, world_size: 4}
"""
MIXTURE = """
    strategy_name: megatron_train
    strategy_config:
      tensor_model_parallel_size: 1
      pipeline_model_parallel_size: 2
      virtual_pipeline_model_parallel_size: 5
      expert_model_parallel_size: 4
      context_parallel_size: 4
      account_for_loss_in_pipeline_split: true
      account_for_embedding_in_pipeline_split: true
      use_distributed_optimizer: true
      sequence_parallel: true
      apply_rope_fusion: true
      moe_grouped_gemm: true
      moe_token_dispatcher_type: alltoall
      recompute_granularity: selective
      recompute_modules: "moe,layernorm"
      overlap_p2p_comm: true
      bf16: true
      max_grad_norm: ${max_grad_norm}
      additional_configs: {moe_permute_fusion: true}
"""
SCORING = """
    strategy_name: megatron_infer
    strategy_config: {tensor_model_parallel_size: 2, expert_model_parallel_size: 4, moe_grouped_gemm: true, bf16: true}
"""
FRAGMENTS = "defaults: [../config/deepspeed_zero2@_here_, ../config/deepspeed_zero3@_here_]\n"
SHARDED = '{strategy_name: deepspeed_train, strategy_config: "${deepspeed_zero3}"}'
WHOLE = "{strategy_name: hf_infer, strategy_config: ~}"

AGENTIC = """
defaults: [../config/traj_envs@_here_, ../config/deepspeed_zero2@_here_]
exp_name: agentic_pipeline
model_name: ${exp_name}-1
default_history_length: 5
render_save_dir: ./output/render
num_gpus_per_node: 8
rollout_batch_size: 96
val_batch_size: 64
sequence_length: 8192
adv_estimator: ESTIMATOR
batch_adjust_mode: copy
max_grad_norm: 1.0
pretrain: Qwen/Qwen2.5-0.5B-Instruct
actor_train:
  worker_cls: roll.pipeline.agentic.agentic_actor_pg_worker.ActorWorker
  model_args: {attn_implementation: fa2, dtype: bf16}
  training_args: {per_device_train_batch_size: 2, gradient_accumulation_steps: 8}
  data_args: {template: qwen3_coder}
  strategy_args:
    strategy_name: megatron_train
    strategy_config: {tensor_model_parallel_size: 1, use_distributed_optimizer: true, max_grad_norm: "${max_grad_norm}"}
  device_mapping: list(range(0,8))
actor_infer:
  generating_args: {max_new_tokens: 128, top_p: 0.99, top_k: 100, temperature: 0.99, num_return_sequences: 1}
  data_args: {template: qwen3_coder}
  strategy_args: {strategy_name: vllm, strategy_config: {gpu_memory_utilization: 0.8, block_size: 16}}
  device_mapping: list(range(8,16))
reward_normalization: {grouping: GROUPING, method: METHOD}
train_env_manager:
  {format_penalty: -0.15, max_env_num_per_worker: 16, num_env_groups: 96, group_size: 1, tags: "TAGS",
   num_groups_partition: "PARTITION"}
val_env_manager: {max_env_num_per_worker: 32, num_env_groups: 64, group_size: 1, tags: [FrozenLake]}
custom_envs:
  FrozenLake:
    ${custom_env.FrozenLake}
  SimpleSokoban:
    ${custom_env.SimpleSokoban}
"""


def dry_run(pipeline: str, text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    (folder / "recipe.yaml").write_text(text)
    code = main(pipeline, ["--config_path", str(folder), "--config_name", "recipe", "--dry_run", "--elsewhere"])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert "The plan works." in shown.out
    return shown.out


def test_a_mixture_on_megatron(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = RLVR.replace("ACTOR_STRATEGY", MIXTURE).replace("REFERENCE_STRATEGY", SCORING)
    shown = dry_run("rlvr", text, tmp_path, capsys)
    assert "4 nodes x 8" in shown
    at = "actor_train.strategy_args.strategy_config"
    for warning in (
        f"{at}.sequence_parallel is off: tensor_model_parallel_size is 1.",
        f"{at}.overlap_p2p_comm does nothing here: ",
        "actor_infer.strategy_args.strategy_config.sleep_level does nothing here: ",
        "actor_train.data_args.domain_interleave_probs leaves out gsm8k: no prompt of a step belongs there.",
        "actor_infer.strategy_args.strategy_config: sequences end at the engine's 6000 tokens, before the 6144 of",
        "reference.strategy_args.strategy_config.sequence_parallel is on: with tensor parallel Megatron",
        "actor_train.offload_nccl: true does nothing here: ",
        *(f"{key} does nothing here: " for key in ("reward_norm", "reward_system_config", "model_name")),
    ):
        assert f"Warning: {warning}" in shown, warning


def test_zero3_with_fragments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = FRAGMENTS + RLVR.replace("ACTOR_STRATEGY", SHARDED).replace("REFERENCE_STRATEGY", WHOLE)
    shown = dry_run(
        "rlvr", text.replace("gradient_accumulation_steps: 32", "gradient_accumulation_steps: 8"), tmp_path, capsys
    )
    assert "4 nodes x 8" in shown
    assert "x 2 updates" in shown


@pytest.mark.parametrize(
    ("estimator", "fragment", "grouping", "method"),
    [("grpo", "traj_envs", "batch", "identity"), ("step_reinforce", "step_envs", "inductive", "asym_clip")],
)
def test_frozen_lake_and_sokoban(
    estimator: str, fragment: str, grouping: str, method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = AGENTIC.replace("ESTIMATOR", estimator).replace("traj_envs", fragment)
    text = text.replace("GROUPING", grouping).replace("METHOD", method)
    text = text.replace("TAGS", "FrozenLake, SimpleSokoban").replace("PARTITION", "64, 32")
    shown = dry_run("agentic", text, tmp_path, capsys)
    assert "2 nodes x 8" in shown
    assert "in 1 update, beside the 128 per update (2 x 8 x 8) that is asked for" in shown
    said = "96 samples do not split into updates of 128. batch_adjust_mode: copy makes 1 update of them."
    assert (said in shown) == (fragment == "traj_envs")


ASYNC = """
pretrain: model
max_steps: 3
prompt_length: 64
response_length: 64
adv_estimator: reinforce
dual_clip_loss: true
async_generation_ratio: 1
actor_train: {data_args: {file_name: x.jsonl}, strategy_args: {strategy_name: fsdp2_train}, device_mapping: [0]}
actor_infer: {generating_args: {top_k: 20}, strategy_args: {strategy_name: hf_infer}, device_mapping: [1]}
rewards: {math: {reward: math_rule}}
validation: {data_args: {file_name: y.jsonl}}
"""


@cases("more, is_rolls")
def test_a_yaml_of_roll_has_rolls_defaults(more: str, is_rolls: bool, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(ASYNC + more)
    raw = compose_tree(tmp_path, "mine", ())
    loaded = check(PIPELINES["rlvr"], resolve_tree(raw, PIPELINES["rlvr"].config_class()))
    config: Any = loaded.config
    assert any("Written for ROLL" in warning for warning in loaded.warnings) == is_rolls
    sampling, validation = config.actor_infer.generating_args, config.validation.generating_args
    assert (config.actor_train.training_args.learning_rate == 5e-5) == is_rolls
    assert (weighs_importance(config), sampling.top_k) == (not is_rolls, 20)
    assert (sampling.top_p, validation.temperature, validation.top_k) == ((0.7, 0.95, 20) if is_rolls else (1, 0, 0))
    assert config.dual_clip_ratio_c == (1.4 if is_rolls else 3)
