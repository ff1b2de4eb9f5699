"""Every env manager, environment and tool in one run, on a tiny model that knows nothing: rows of all kinds train
together, and none of them fails."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from tests.contract.test_foreign_environments import write_task
from tests.e2e import foreign_programs
from tests.helpers.pages import DOCS
from tests.helpers.runs import Run
from tests.unit.pipeline.agentic.proxy.parts import KEEPS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
DATA = Path(__file__).parents[2] / "examples" / "questions"
PER_TURN = ("Concat", "Native", "ShopStep")
KINDS = ("Around", "Math", "Program", "Search", "Shop", "Gem", "Started", "Outside", *PER_TURN)
YAML = """
defaults:
  - ../config/deepspeed_zero@_here_
exp_name: kinds
pretrain: MODEL
num_gpus_per_node: 2
max_steps: 2
eval_steps: 2
save_steps: -1
track_with: [jsonl]
rollout_batch_size: 22
val_batch_size: 11
prompt_length: 900
sequence_length: 1800
adv_estimator: grpo
custom_envs:
  Around:
    env_type: frozen_lake
    max_steps: 2
    pre_step_template: "Turn {turn_idx}: "
    next_step_template: " {actions_left} left."
  Concat:
    env_type: frozen_lake
    max_steps: 3
    env_manager_cls: step_concat
    agent_template: "{history} {observation}"
  Native: {env_type: sokoban_native_env, max_steps: 3, env_manager_cls: agent_native}
  Math: {env_type: roll_math, env_config: {dataset_name: DATA/math.jsonl, tries: 2}, max_steps: 2}
  Program:
    env_type: roll_math
    env_config: {dataset_name: DATA/math.jsonl, answer_format: text}
    max_steps: 2
    tool_wrapper: {tool_configs: [{tool_id: "tests.e2e.eager_tool:EagerTool"}, {tool_id: calculator}]}
  Search:
    env_type: roll_qa
    env_config: {dataset_name: DATA/qa.jsonl, reward: f1}
    max_steps: 2
    tool_wrapper:
      wrapper_args: {max_tool_uses: 1, tool_success_reward: 0.1}
      tool_configs: [{tool_id: search, tool_args: {corpus: DATA/corpus.jsonl}}]
  Shop: {env_type: webshop, max_steps: 2}
  ShopStep:
    env_type: webshop
    max_steps: 2
    env_manager_cls: step
    agent_template: "{env_instruction} {history} {observation}"
  Gem: {env_type: gem, env_config: {env: "tests.contract.gem_like:Echo"}, max_steps: 2}
  Started: {env_manager_cls: proxy, agent: "tests.e2e.foreign_programs:play", max_steps: 2, max_tokens_per_step: 24}
  Outside: {env_manager_cls: proxy, max_steps: 2, max_tokens_per_step: 24}
agent_endpoint: {listen: "127.0.0.1:0"}
train_env_manager: {world_size: 2, num_env_groups: 11, group_size: 2, tags: TAGS}
val_env_manager: {num_env_groups: 11, group_size: 1, tags: TAGS}
skip_idle_rows: false  # the log-probs of every kind are compared
actor_train:
  model_args: {dtype: fp32}
  training_args: {per_device_train_batch_size: 4, gradient_accumulation_steps: 4}
  strategy_args: {strategy_name: deepspeed_train, strategy_config: "${deepspeed_zero}"}
  device_mapping: [0]
actor_infer:
  model_args: {dtype: fp32}
  generating_args: {max_new_tokens: 24}
  strategy_args: {strategy_name: hf_infer}
  device_mapping: [1]
"""


def test_every_kind_of_environment_plays_and_trains(
    tmp_path: Path, tiny_tied_model_dir: Path, start_run: Callable[..., Run]
) -> None:
    """The tool of the tag Program is called by any answer, so its first turn is a call and its second an answer."""
    text = YAML.replace("MODEL", str(tiny_tied_model_dir)).replace("DATA", str(DATA))
    (tmp_path / "kinds.yaml").write_text(text.replace("TAGS", f"[{', '.join(KINDS)}]"))
    run = start_run(tmp_path, "kinds", example=tmp_path, pipeline="agentic")
    with ThreadPoolExecutor(2) as threads:
        programs = [threads.submit(foreign_programs.serve, run.output_dir) for _ in range(2)]
        assert run.wait(1500) == 0, run.text
        played = sum(program.result(timeout=60) for program in programs)
    assert played == 2 * 2 + 2, "two steps with a group of two, and a validation before and after of one each"
    for step in (1, 2):
        row = run.metrics[step]
        assert {tag: row[f"env/{tag}/failed_fraction"] for tag in KINDS} == dict.fromkeys(KINDS, 0)
        assert row["env/crashes"] == row["env/hangs"] == 0
        assert row["env/Program/tool_call_mean"] == 0.5
        assert [row[f"env/{tag}/num_turns_mean"] for tag in PER_TURN] == [3, 3, 2]
        gap = row["train_infer/log_prob_diff_max"]
        assert gap < 1e-3, f"step {step}: the trainer's log-probs of the rows are not the sampler's: {gap}"
    assert {f"val/{tag}/return_mean" for tag in KINDS} <= set(run.metrics[2])
    run.assert_all_gone()


def shown(page: str, words: str) -> list[str]:
    """The indented blocks of a page that have these words."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return [dedent(block) for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, re.MULTILINE) if words in block]


def test_the_examples_of_the_pages_on_agents_play_in_one_run(
    tmp_path: Path, make_tiny_model_dir: Callable[..., Path], start_run: Callable[..., Run]
) -> None:
    """As the pages show them: a program, a class of tools, and a task of Harbor. Files has the class in place of its
    servers, which need npx."""
    pytest.importorskip("openai", reason="the program of the page is around its SDK")
    pages = [
        yaml.safe_load(block)["custom_envs"]
        for page in ("agents", "agent_tools", "other_environments")
        for block in shown(page, "custom_envs:")
    ]
    envs: dict[str, dict[str, Any]] = {tag: env for page in reversed(pages) for tag, env in page.items()}
    del envs["Stones"]  # a game that tests/unit/pipeline/agentic/proxy/test_sides.py plays
    assert set(envs) == {"Questions", "Files", "Shell"}
    model = make_tiny_model_dir(tie_word_embeddings=True, seed=7)
    for file in model.glob("chat_template*"):
        file.unlink()
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": KEEPS}))
    (tmp_path / "my_agent.py").write_text(shown("agents", "async def play")[0])
    (tmp_path / "boxes.py").write_text(shown("agent_tools", "class Boxes")[0])
    (tmp_path / "my_reward.py").write_text("def score(task, messages): return 1.0\n")
    (tmp_path / "data").mkdir()
    row = {"question": "what is in A?", "answer": "4", "digits": {"A": "4"}}
    (tmp_path / "data" / "questions.jsonl").write_text(json.dumps(row) + "\n")
    write_task(tmp_path / "tasks" / "hello")
    del envs["Files"]["tool_servers"], envs["Files"]["max_result_tokens"]
    envs["Files"]["tool_class"] = "boxes:Boxes"
    for env in envs.values():
        env |= {"max_steps": 2, "max_tokens_per_step": 16}
        env |= {"tasks": str(tmp_path / env["tasks"])} if "tasks" in env else {}
    config = yaml.safe_load(YAML.replace("MODEL", str(model)).replace("TAGS", f"[{', '.join(envs)}]"))
    config |= {
        "custom_envs": envs,
        "rollout_batch_size": 6,
        "val_batch_size": 3,
        "max_steps": 1,
        "eval_steps": 0,
        "recorder": {"num_groups": 3},
    }
    for key in ("train_env_manager", "val_env_manager"):
        config[key]["num_env_groups"] = 3
    del config["agent_endpoint"]
    config["actor_train"]["training_args"] = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1}
    (tmp_path / "pages.yaml").write_text(yaml.safe_dump(config))
    run = start_run(tmp_path, "pages", example=tmp_path, pipeline="agentic")
    assert run.wait(900) == 0, run.text
    failed = {tag: run.metrics[1][f"env/{tag}/failed_fraction"] for tag in envs}
    assert failed == dict.fromkeys(envs, 0), run.text
    lines = (run.output_dir / "rollouts" / "step_000001.jsonl").read_text().splitlines()
    program = next(row for row in map(json.loads, lines) if row["domain"] == "Questions")
    assert (run.output_dir / program["extra"]["output"]).is_file() and program["turns"][0]["metrics"]["time_s"] > 0
    run.assert_all_gone()
