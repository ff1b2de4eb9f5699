"""A recipe in ROLL's style for every env manager, environment and tool: each loads under --dry_run, and what needs a
service says so."""

from pathlib import Path

import pytest

from roll.commands.run import main
from tests.unit.examples.test_agentic_recipes import ROLL_STYLE

MANAGERS = "roll.pipeline.agentic.env_manager"
HEAD = ROLL_STYLE[: ROLL_STYLE.index("train_env_manager:")]
PLAYED = """
train_env_manager:
  {max_env_num_per_worker: 16, num_env_groups: 128, group_size: 8, tags: [Kind], num_groups_partition: [128]}
val_env_manager: {max_env_num_per_worker: 32, num_env_groups: 1024, group_size: 1, tags: [Kind]}
max_tokens_per_step: 512
max_actions_per_traj: 6
custom_envs:
  Kind:
    max_steps: ${max_actions_per_traj}
    max_tokens_per_step: ${max_tokens_per_step}
    use_thread_lock: true
"""
TRAJ = f"    env_manager_cls: {MANAGERS}.traj_env_manager.TrajEnvManager\n"
TEXT = (
    TRAJ
    + """
    agent_system_template: Reason step by step, and put your final answer within \\boxed{}.
    agent_template: "{observation}"
"""
)

KINDS = {
    "webshop": TEXT
    + """
    env_type: webshop
    max_env_step_concurrent: 10
    env_config: {observation_mode: text, max_steps: "${max_actions_per_traj}", format_penalty: -0.05}
""",
    "webshop step by step": f"""
    env_type: webshop
    env_manager_cls: {MANAGERS}.step_env_manager.StepEnvManager
    history_length: 3
    agent_template: "{{env_instruction}} {{history_length}} steps: [{{history}}] Now: [{{current_observation}}]"
    env_config: {{observation_mode: text, max_steps: "${{max_actions_per_traj}}"}}
""",
    "step_concat": f"""
    env_type: sokoban
    env_manager_cls: {MANAGERS}.step_concat_env_manager.StepConcatEnvManager
    history_length: 4
    agent_system_template: You play.
    agent_template: "{{history}} step {{current_step}}: {{current_observation}}"
    env_config: {{dim_room: [6, 6], num_boxes: 1, format_penalty: -0.05}}
""",
    "agent_native": f"""
    env_type: "sokoban_native_env"
    env_manager_cls: {MANAGERS}.agent_native_env_manager.AgentNativeStepEnvManager
    agent_system_template: "agent_system_template placeholder"
    agent_template: "agent_template placeholder"
    env_config: {{dim_room: [6, 6], num_boxes: 1, max_steps: "${{max_actions_per_traj}}", format_penalty: -0.1}}
""",
    "before and after": TRAJ
    + """
    env_type: frozen_lake
    agent_system_template: You play.
    pre_step_template: "Turn {turn_idx}: "
    next_step_template: " You have {actions_left} actions left, and {max_response_length} tokens."
    env_config: {is_slippery: false, format_penalty: -0.01}
""",
    "roll_math": TEXT
    + """
    env_type: "roll_math"
    env_config:
      max_steps: ${max_actions_per_traj}
      dataset_name: open-r1/DAPO-Math-17k-Processed
      question_key: prompt
      answer_key: solution
""",
    "roll_math with python": TEXT
    + """
    env_type: "roll_math"
    env_config: {dataset_name: open-r1/DAPO-Math-17k-Processed, question_key: prompt, answer_key: solution}
    tool_wrapper:
      wrapper_args: {tool_reward: 0, tool_success_reward: 0, max_tool_uses: 1}
      tool_configs:
        - tool_id: python_code
          tool_args: {timeout: 5, sandbox_type: none, keep_error_last_line: false}
""",
    "roll_qa with search": TEXT
    + """
    env_type: "roll_qa"
    env_config: {dataset_name: axon-rl/HotpotQA, split: train}
    tool_wrapper:
      wrapper_args: {tool_reward: 0.0, tool_success_reward: 0.2, max_tool_uses: 3}
      tool_configs:
        - tool_id: search
          tool_args: {search_url: "http://localhost:8000/retrieve", topk: 3}
""",
    "pictures": "    env_type: sokoban\n    env_config: {render_mode: rgb_array}\n"
    f"    env_manager_cls: {MANAGERS}.vl_traj_env_manager.VLTrajEnvManager\n",
    "a game of GEM's": TEXT + '    env_type: "game:GuessTheNumber-v0"\n    env_config: {max_turns: 10}\n',
}  # fmt: skip
REFUSED = {
    "a sandbox of ROCK": (
        "    env_type: sokoban_sandbox\n",
        "plays in containers of ROCK, a service; env_type: sokoban is the same game in the process",
    ),
    "software tasks in ROCK": ("    env_type: rock_tb_native_env\n", "write an environment that calls yours"),
    "openreward": (
        "    env_type: openreward_env\n",
        "calls openreward.ai, a service: write an environment that calls it",
    ),
    "MCP": (
        "    env_type: sokoban\n    tool_wrapper: {tool_configs: [{tool_id: mcp, tool_args: {server_url: x}}]}\n",
        "calls a server of the Model Context Protocol: set env_manager_cls: tools, with the server under tool_servers",
    ),
}  # fmt: skip


def dry_run(text: str, folder: Path) -> int:
    head = HEAD.replace("adv_estimator: grpo", "adv_estimator: reinforce")
    (folder / "kind.yaml").write_text(head + PLAYED + text)
    return main("agentic", ["--config_path", str(folder), "--config_name", "kind", "--dry_run", "--elsewhere"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_recipe_of_every_kind_loads(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = dry_run(KINDS[kind], tmp_path)
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert "The plan works." in shown.out


@pytest.mark.parametrize("kind", REFUSED)
def test_what_asks_a_service_is_refused_with_what_to_do(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, said = REFUSED[kind]
    assert dry_run(text, tmp_path) == 2
    assert said in capsys.readouterr().err
