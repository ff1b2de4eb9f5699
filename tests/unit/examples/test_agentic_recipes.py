"""Every shipped agentic recipe composes, passes all checks and makes a plan; so does a YAML as ROLL users write it."""

from pathlib import Path

import pytest

from roll.commands.run import main
from tests.helpers.pages import snippets

EXAMPLES = Path(__file__).parents[3] / "examples"
RECIPES = sorted(
    path.relative_to(EXAMPLES)
    for folder in ("tiny-frozen-lake", "tiny-tools", "qwen2.5-0.5B-agentic", "qwen2.5-vl-agentic")
    for path in (EXAMPLES / folder).glob("*.yaml")
)

ROLL_STYLE = """
defaults:
  - ../config/traj_envs@_here_
  - ../config/deepspeed_zero2@_here_
exp_name: agentic_pipeline
seed: 42
num_gpus_per_node: 8
max_steps: 1024
rollout_batch_size: 1024
val_batch_size: 1024
sequence_length: 8192
advantage_clip: 0.2
ppo_epochs: 1
adv_estimator: grpo
init_kl_coef: 0.0
whiten_advantages: true
entropy_loss_coef: 0
pretrain: Qwen/Qwen2.5-0.5B-Instruct
actor_train:
  model_args: {attn_implementation: fa2, dtype: bf16, model_type: ~}
  training_args: {learning_rate: 1.0e-6, per_device_train_batch_size: 2, gradient_accumulation_steps: 64}
  data_args: {template: qwen2_5}
  strategy_args: {strategy_name: deepspeed_train, strategy_config: "${deepspeed_zero2}"}
  device_mapping: list(range(0,8))
actor_infer:
  generating_args: {max_new_tokens: 128, top_p: 0.99, top_k: 100, temperature: 0.99, num_return_sequences: 1}
  data_args: {template: qwen2_5}
  strategy_args: {strategy_name: vllm, strategy_config: {gpu_memory_utilization: 0.8}}
  device_mapping: list(range(0,8))
reward_normalization:
  grouping: traj_group_id
  method: mean_std
train_env_manager:
  format_penalty: -0.15
  max_env_num_per_worker: 16
  num_env_groups: 128
  group_size: 8
  tags: [FrozenLake]
  num_groups_partition: [128]
val_env_manager:
  max_env_num_per_worker: 32
  num_env_groups: 1024
  group_size: 1
  tags: [SimpleSokoban, LargerSokoban, SokobanDifferentGridVocab, FrozenLake]
  num_groups_partition: [256, 256, 256, 256]
custom_envs:
  SimpleSokoban:
    ${custom_env.SimpleSokoban}
  LargerSokoban:
    ${custom_env.LargerSokoban}
  SokobanDifferentGridVocab:
    ${custom_env.SokobanDifferentGridVocab}
  FrozenLake:
    ${custom_env.FrozenLake}
"""


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_the_recipe_loads_under_dry_run(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        "agentic",
        ["--config_path", str(EXAMPLES / recipe.parent), "--config_name", recipe.stem, "--dry_run", "--elsewhere"],
    )
    assert code == 0, capsys.readouterr().err
    assert "The plan works." in capsys.readouterr().out


def test_the_yamls_of_the_page_on_environments_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, tools = snippets("adding_an_env.md", "yaml")
    roles = ROLL_STYLE[ROLL_STYLE.index("pretrain:") : ROLL_STYLE.index("reward_normalization:")]
    rest = roles.replace("${deepspeed_zero2}", "{}").replace('"{}"', "{}")
    groups = "train_env_manager: {num_env_groups: 16, group_size: 8, tags: [Questions]}"
    for name, text in (("Coins", own), ("Questions", f"{tools}\n{groups}")):
        (tmp_path / "page.yaml").write_text(f"{text}\nrollout_batch_size: 128\nsequence_length: 4096\n{rest}")
        arguments = ["--config_path", str(tmp_path), "--config_name", "page", "--dry_run", "--elsewhere"]
        assert main("agentic", [*arguments, "actor_train.training_args.gradient_accumulation_steps=8"]) == 0
        out = capsys.readouterr().out
        assert f"environments  {name}" in out
        assert "Did you mean" not in out


@pytest.mark.parametrize("fragment, form", [("envs", "trajectory"), ("traj_envs", "trajectory"), ("step_envs", "step")])
def test_every_fragment_composes_alone_and_a_problem_of_all_tags_is_told_of_each(
    fragment: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agentic.yaml").write_text(ROLL_STYLE.replace("traj_envs", fragment))
    arguments = ["--config_path", str(tmp_path), "--config_name", "agentic", "--dry_run", "--elsewhere"]
    assert main("agentic", arguments) == 0, capsys.readouterr().err
    assert "environments  FrozenLake       64 processes" in capsys.readouterr().out
    assert main("agentic", [*arguments, "agent_template={moves}"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 5, error
    for tag in ("FrozenLake", "SimpleSokoban", "LargerSokoban", "SokobanDifferentGridVocab"):
        assert f"custom_envs.{tag}.agent_template: unknown field {{moves}}" in error
    assert ("step samples" if form == "step" else "trajectories") in error


def test_bad_input_ends_with_code_2_before_ray_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*arguments: object, **keywords: object) -> None:
        raise AssertionError("Ray was started")

    monkeypatch.setattr("ray.init", start)
    (tmp_path / "agentic.yaml").write_text(ROLL_STYLE.replace("  tags: [FrozenLake]\n", "  tags: [FrozenLakes]\n"))
    assert main("agentic", ["--config_path", str(tmp_path), "--config_name", "agentic"]) == 2
    text = capsys.readouterr().err
    assert "there is no custom_envs.FrozenLakes. Did you mean FrozenLake?" in text
    assert "Traceback" not in text
