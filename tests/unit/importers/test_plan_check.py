"""An import ends with what `roll plan` would refuse in its YAML."""

from pathlib import Path

from roll.commands.table import main as roll
from tests.helpers.cases import cases

RUN = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=/d/t.parquet "
    "data.train_batch_size=8 actor_rollout_ref.model.path=/m custom_reward_function.path=/r.py trainer.logger=console "
    "actor_rollout_ref.actor.ppo_mini_batch_size=8 actor_rollout_ref.rollout.tensor_model_parallel_size=1 "
    "actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.name=vllm trainer.n_gpus_per_node=2 "
    "algorithm.use_kl_in_reward=false "
)
AGENTIC = """
exp_name: e
max_steps: 3
rollout_batch_size: 16
sequence_length: 4096
num_gpus_per_node: 2
pretrain: /m
actor_train:
  training_args: {learning_rate: 3.0e-6, per_device_train_batch_size: 1, gradient_accumulation_steps: 8}
  strategy_args: {strategy_name: megatron_train, strategy_config: {tensor_model_parallel_size: 1}}
  device_mapping: list(range(0,2))
actor_infer:
  generating_args: {max_new_tokens: 512, temperature: 0.9}
  strategy_args: {strategy_name: vllm, strategy_config: {gpu_memory_utilization: 0.4}}
  device_mapping: list(range(0,2))
train_env_manager: {num_env_groups: 2, group_size: 8, tags: [A], num_groups_partition: [2]}
custom_envs: {A: {env_type: remote_multi_android, max_steps: 40, env_config: {task: all_task}}}
"""


def imports(folder: Path, name: str, text: str, *words: str) -> tuple[int, str]:
    """The exit code of an import, and its report."""
    (folder / name).write_text(text, encoding="utf-8")
    code = roll(["import", str(folder / name), *words, "--out", str(folder / "my.roll.yaml"), "--force"])
    return code, (folder / "my.roll.report.md").read_text(encoding="utf-8")


@cases("words, told")
def test_what_a_plan_refuses_is_not_as_its_author_meant(words: str, told: str, tmp_path: Path) -> None:
    code, page = imports(tmp_path, "run.sh", RUN + words)
    assert code == (3 if told or "$" in words else 0), page
    assert told in page and ("`roll plan` refuses it" in page) == bool(told)


def test_an_environment_that_is_not_here_is_refused(tmp_path: Path) -> None:
    code, page = imports(tmp_path, "old.yaml", AGENTIC)
    assert code == 3 and "custom_envs.A.env_type: 'remote_multi_android'" in page.split("## Mapped")[0]
