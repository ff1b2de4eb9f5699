"""verl's tools and interactions become environments that are played in episodes, or the report says what is lost."""

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import yaml

from roll.commands.run import main
from roll.commands.table import main as roll
from roll.importers.command import imported_from
from roll.importers.convert import Imported, read
from tests.helpers.cases import cases
from tests.unit.importers.test_import import entry
from tests.unit.importers.test_verl_meaning import at

ROLLOUT = "actor_rollout_ref.rollout"
TURNS = f"{ROLLOUT}.multi_turn"
CHECKS = {"class_name": "verl.tools.gsm8k_tool.Gsm8kTool", "config": {"type": "native"}}
RUNS = {"class_name": "verl.tools.sandbox_fusion_tools.SandboxFusionTool", "config": {"default_timeout": 30}}
SEARCHES = {
    "class_name": "verl.tools.search_tool.SearchTool",
    "config": {"retrieval_service_url": "http://127.0.0.1:8000/retrieve", "topk": 5, "timeout": 30},
}
SCRIPT = f"""PROJECT_DIR="$(pwd)"
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=64 data.max_prompt_length=512 \\
    data.max_response_length=1536 data.return_raw_chat=True data.filter_overlong_prompts=True data.truncation=error \\
    data.train_files=$HOME/data/math/train.parquet data.val_files=$HOME/data/math/test.parquet \\
    actor_rollout_ref.model.path=org/model actor_rollout_ref.actor.ppo_mini_batch_size=32 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.actor.use_kl_loss=True \\
    {ROLLOUT}.name=vllm {ROLLOUT}.mode=async {ROLLOUT}.n=8 {ROLLOUT}.tensor_model_parallel_size=1 \\
    {TURNS}.enable=True {TURNS}.tool_config_path="$PROJECT_DIR/config/tools.yaml" {TURNS}.format=hermes \\
    trainer.n_gpus_per_node=8 trainer.nnodes=1 trainer.test_freq=5 trainer.total_epochs=3 trainer.logger=console $@
"""


def imported(folder: Path, tools: list[dict[str, Any]] | None, *words: str, section: str = "tools") -> Imported:
    (folder / "run.sh").write_text(SCRIPT)
    if tools is not None:
        (folder / "tools.yaml").write_text(yaml.safe_dump({section: tools}))
    return imported_from(read(folder / "run.sh", words), source=folder / "run.sh")


def test_tools_of_several_files_are_those_of_all(tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text(yaml.safe_dump({"tools": [SEARCHES]}))
    found = imported(tmp_path, [RUNS], f"{TURNS}.tool_config_path=[tools.yaml,more.yaml,gone.yaml]")
    configs = at(found, "custom_envs.Training")["tool_wrapper"]["tool_configs"]
    assert [tool["tool_id"] for tool in configs] == ["python_code", "search"]
    assert any("gone.yaml is not here" in change for change in found.changes)


def test_a_tool_that_checks_answers_is_a_question_with_several_tries(tmp_path: Path) -> None:
    """64 prompts x 8 answers are 512 episodes, updates of 32 x 8 = 256 = 4 x 8 x 8 ranks."""
    found = imported(tmp_path, [CHECKS], f"{TURNS}.max_assistant_turns=4", "data.train_files=/d/gsm8k/train.parquet")
    assert found.pipeline == "agentic" and found.is_as_meant, found.changes
    env, held_out = at(found, "custom_envs.Training"), at(found, "custom_envs.Validation")
    assert (env["env_type"], env["max_steps"], env["env_config"]["tries"]) == ("roll_math", 4, 4)
    assert env["env_config"]["dataset_name"] == "/d/gsm8k/train.parquet" and "####" in env["action_pattern"]
    assert env["env_config"]["question_key"] == "prompt"
    assert env["env_config"]["answer_key"] == "reward_model.ground_truth"
    assert held_out["env_config"]["mode"] == "val" and held_out["env_config"]["dataset_name"].endswith("test.parquet")
    assert (at(found, "rollout_batch_size"), at(found, "prompt_length"), at(found, "sequence_length")) == (
        512,
        512,
        2048,
    )
    manager = at(found, "train_env_manager")
    assert (manager["num_env_groups"], manager["group_size"], manager["tags"]) == (64, 8, ["Training"])
    args = at(found, "actor_train.training_args")
    assert (args["per_device_train_batch_size"], args["gradient_accumulation_steps"]) == (4, 8)
    assert at(found, "num_train_epochs") == 3
    assert not {"rewards", "validation", "response_length", "num_return_sequences_in_group"} & found.tree.keys()
    outcome, note = entry(found, f"{TURNS}.tool_config_path")
    assert outcome == "approximated" and "the right answer ends the episode" in note


def test_a_tool_that_runs_code_is_the_sandbox_of_here(tmp_path: Path) -> None:
    found = imported(tmp_path, [RUNS])
    assert found.is_as_meant, found.changes
    wrapper = at(found, "custom_envs.Training.tool_wrapper")
    assert wrapper["tool_configs"] == [{"tool_id": "python_code", "tool_args": {"timeout": 30.0}}]
    assert wrapper["wrapper_args"] == {"max_tool_uses": None}
    assert "JSON in the words of the model" in entry(found, f"{TURNS}.tool_config_path")[1]


def test_a_search_asks_the_same_server_about_questions_whose_answers_are_texts(tmp_path: Path) -> None:
    found = imported(tmp_path, [SEARCHES], f"{TURNS}.max_user_turns=3")
    assert found.is_as_meant, found.changes
    env = at(found, "custom_envs.Training")
    assert (env["env_type"], env["max_steps"]) == ("roll_qa", 4)
    assert env["env_config"]["answer_key"] == "reward_model.ground_truth.target"
    args = {"search_url": "http://127.0.0.1:8000/retrieve", "topk": 5, "timeout": 30.0}
    assert env["tool_wrapper"]["tool_configs"] == [{"tool_id": "search", "tool_args": args}]


def test_an_interaction_that_asks_to_try_again_is_another_try(tmp_path: Path) -> None:
    path = f"{TURNS}.interaction_config_path=tools.yaml"
    entries = [{"name": "sums", "class_name": "verl.interactions.gsm8k_interaction.Gsm8kInteraction", "config": {}}]
    found = imported(tmp_path, entries, f"{TURNS}.tool_config_path=null", path, section="interaction")
    assert found.is_as_meant, found.changes
    assert at(found, "custom_envs.Training.env_config.tries") == 5
    assert "tool_wrapper" not in at(found, "custom_envs.Training")


def test_a_tool_of_ones_own_is_called_as_it_is(tmp_path: Path) -> None:
    """Also where rows say something to its create."""
    schema = {"type": "function", "function": {"name": "weather", "description": "Tells the weather."}}
    own = {"class_name": "my.tools.Weather", "config": {"type": "native", "city": "Ulm"}, "tool_schema": schema}
    found = imported(tmp_path, [own])
    assert found.is_as_meant, found.changes
    configs = at(found, "custom_envs.Training.tool_wrapper.tool_configs")
    args = {"class_name": "my.tools.Weather", "config": own["config"], "tool_schema": schema}
    assert configs == [{"tool_id": "verl", "tool_args": args}]
    found = imported(tmp_path, [own], "data.need_tools_kwargs=true")
    assert found.is_as_meant and "get the tools_kwargs" in entry(found, "data.need_tools_kwargs")[1]
    assert imported(tmp_path, [RUNS], "data.need_tools_kwargs=true").is_as_meant


@cases("path")
def test_a_tool_that_a_fork_has_put_among_those_of_verl_is_its_own(path: str, tmp_path: Path) -> None:
    """The name of its class says nothing of what it does."""
    found = imported(tmp_path, [{"class_name": path, "config": {"url": "http://h:1/x"}}], f"{TURNS}.traj_save_dir=/d")
    (tool,) = at(found, "custom_envs.Training.tool_wrapper.tool_configs")
    assert (tool["tool_id"], tool["tool_args"]["class_name"]) == ("verl", path)
    assert at(found, "custom_envs.Training.env_type") == "roll_math"
    assert entry(found, f"{TURNS}.traj_save_dir") == ("not available", "rollout_dump_dir has the answers")
    assert found.is_as_meant, found.changes


def test_an_interaction_of_ones_own_is_no_tool(tmp_path: Path) -> None:
    path = f"{TURNS}.interaction_config_path=tools.yaml"
    own = [{"name": "chat", "class_name": "my.interactions.Chat", "config": {}}]
    found = imported(tmp_path, own, f"{TURNS}.tool_config_path=null", path, section="interaction")
    assert entry(found, f"{TURNS}.interaction_config_path")[0] == "changes the run"


@cases("tool, reason")
def test_a_tool_that_is_not_here_makes_another_run(
    tool: dict[str, Any] | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = imported(tmp_path, None if tool is None else [RUNS, tool])
    assert entry(found, f"{TURNS}.tool_config_path")[0] == "changes the run"
    assert reason in entry(found, f"{TURNS}.tool_config_path")[1]
    assert roll(["import", "run.sh", "--out", "my.yaml"]) == 3


@cases("word, key")
def test_what_episodes_lose_of_the_matter_is_told(word: str, key: str, tmp_path: Path) -> None:
    assert entry(imported(tmp_path, [RUNS], word), key)[0] == "changes the run"


def test_a_reward_that_nothing_tells_is_not_taken_for_maths(tmp_path: Path) -> None:
    """verl chooses it by data_source. Rows that are here tell, and so do names of files and tools that search; a file
    of tools that is not here is asked for first."""
    untold = "data.train_files=/d/train.parquet"
    (change,) = imported(tmp_path, [RUNS], untold).changes
    assert change.startswith("data.reward_fn_key: neither rows nor names of files tell data_source")
    assert imported(tmp_path, [SEARCHES], untold).is_as_meant and imported(tmp_path, [CHECKS], untold).is_as_meant
    (change,) = imported(tmp_path, None, untold, f"{TURNS}.tool_config_path=gone.yaml").changes
    assert "gone.yaml is not here" in change
    pyarrow.parquet.write_table(pyarrow.table({"data_source": ["openai/gsm8k"]}), tmp_path / "rows.parquet")
    assert imported(tmp_path, [RUNS], f"data.train_files={tmp_path}/rows.parquet").is_as_meant


@cases("words")
def test_episodes_of_an_import_pass_a_dry_run(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = imported(tmp_path, [RUNS], *words)
    assert roll(["import", "run.sh", *words, "--out", "my.yaml"]) == 0, found.changes
    assert len(found.entries) == len({each.key for each in found.entries})
    code = main("agentic", ["--config_path", str(tmp_path), "--config_name", "my", "--dry_run", "--elsewhere"])
    shown = capsys.readouterr()
    assert code == 0, shown.err + (tmp_path / "my.yaml").read_text()
    assert "The plan works." in shown.out
    assert " do nothing" not in shown.out and "does nothing" not in shown.out, shown.out


def test_a_size_of_the_validation_is_not_all_rows(tmp_path: Path) -> None:
    outcome, note = entry(imported(tmp_path, [RUNS], "data.val_batch_size=64"), "data.val_batch_size")
    assert outcome == "approximated" and "verl asks all rows" in note


def test_turns_that_are_off_ask_rows_once(tmp_path: Path) -> None:
    found = imported(tmp_path, [RUNS], f"{TURNS}.enable=false")
    assert found.pipeline == "rlvr" and "rewards" in found.tree


def test_tools_that_are_in_prompts_alone_make_no_turns(tmp_path: Path) -> None:
    """verl's SingleTurnAgentLoop renders the tools of data.tool_config_path; ToolAgentLoop has those of multi_turn."""
    own = ("data.tool_config_path=tools.yaml", "custom_reward_function.path=mine.py")
    found = imported(tmp_path, [RUNS], f"{TURNS}.enable=false", f"{TURNS}.tool_config_path=null", *own)
    assert found.pipeline == "rlvr" and at(found, "rewards.verl.reward") == "verl_function"
    (change,) = found.changes
    assert change.startswith(
        "data.tool_config_path: single_turn_agent there writes the tools of that file into prompts"
    )
    played = imported(tmp_path, [RUNS], "data.tool_config_path=other.yaml")
    assert entry(played, "data.tool_config_path")[0] == "asks for nothing" and played.is_as_meant


@cases("words, told")
def test_rows_that_ask_for_no_turns_of_verl_are_told_to_have_them(words: list[str], told: bool, tmp_path: Path) -> None:
    """AgentLoopWorker gives a row without the column agent_name to the default loop, single_turn_agent."""
    note = entry(imported(tmp_path, [RUNS], *words), f"{TURNS}.tool_config_path")[1]
    assert ("column agent_name is tool_agent" in note) == told


@pytest.mark.parametrize("files", ["/d/codecontests/train.parquet", "/d/eurus/train.parquet"])
def test_rows_with_tests_are_not_judged_as_maths(files: str, tmp_path: Path) -> None:
    """verl runs the tests of such a row; the environment would give a right program 0."""
    found = imported(tmp_path, [RUNS], f"data.train_files={files}")
    assert any("codecontests" in change and "would earn 0" in change for change in found.changes)
    own = imported(tmp_path, [RUNS], f"data.train_files={files}", "custom_reward_function.path=mine.py")
    assert not any("would earn 0" in change for change in own.changes)


def test_a_column_of_sources_on_this_machine_tells_of_tests(tmp_path: Path) -> None:
    rows = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"kind": ["taco"]}), rows)
    found = imported(tmp_path, [RUNS], f"data.train_files={rows}", "data.reward_fn_key=kind")
    assert entry(found, "data.reward_fn_key")[0] == "changes the run"
    assert "rows of taco have tests" in entry(found, "data.reward_fn_key")[1]


@cases("tools, word, told")
def test_what_earns_a_reward_in_episodes_is_told(tools: dict[str, Any], word: str, told: str, tmp_path: Path) -> None:
    assert told in entry(imported(tmp_path, [tools], word), f"{TURNS}.tool_config_path")[1]


def test_a_manager_of_rewards_sets_no_time_of_episodes(tmp_path: Path) -> None:
    found = imported(tmp_path, [RUNS], "reward_model.reward_manager=prime")
    assert entry(found, "reward_model.reward_manager") == ("asks for nothing", "the environment judges")
    assert at(found, "train_env_manager.episode_timeout_s") is None


def test_a_scheduler_of_chats_is_one_of_a_loop_and_an_empty_one_asks_for_nothing() -> None:
    key = f"{ROLLOUT}.chat_scheduler"
    words = ["algorithm.adv_estimator=grpo", "data.train_files=/d/gsm8k/a.parquet"]
    assert entry(imported_from(read(None, [*words, f"{key}=mine.Scheduler"]), "verl"), key)[0] == "changes the run"
    assert entry(imported_from(read(None, [*words, f"{key}=''"]), "verl"), key)[0] == "asks for nothing"


def test_a_switch_of_thinking_names_the_template_of_episodes(tmp_path: Path) -> None:
    key = "data.apply_chat_template_kwargs.enable_thinking"
    found = imported(tmp_path, None, f"+{key}=false")
    assert found.tree["actor_train"]["data_args"]["template"] == "native_nonthinking"
    assert entry(found, key)[1] == "actor_train.data_args.template: native_nonthinking."
