"""The agentic part of a configuration: what it derives, and every kind of bad input with its message."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest

from roll.configs.checks.rl import config_problems, config_warnings
from roll.configs.load.validate import validate
from roll.configs.plan.batch_plan import build_plan
from roll.errors import ConfigError
from roll.pipeline.agentic.agentic_checks import (
    agentic_problems,
    agentic_warnings,
    code_problems,
    hub_problems,
    reports,
    unloaded_sets,
)
from roll.pipeline.agentic.agentic_config import AgenticConfig
from roll.pipeline.agentic.settings import episode_rules, episode_settings, num_questions
from roll.run.loop import of_known_length

TREE: dict[str, Any] = {
    "pretrain": "org/model",
    "prompt_length": 64,
    "sequence_length": 512,
    "rollout_batch_size": 32,
    "val_batch_size": 16,
    "actor_train": {
        "training_args": {"per_device_train_batch_size": 8},
        "strategy_args": {"strategy_name": "deepspeed_train"},
        "device_mapping": [0],
    },
    "actor_infer": {
        "strategy_args": {"strategy_name": "vllm"},
        "device_mapping": [1],
        "generating_args": {"max_new_tokens": 128, "temperature": 0.99, "num_return_sequences": 1},
    },
    "custom_envs": {"Lake": {"env_type": "frozen_lake"}, "Guess": {"env_type": "guess_number"}},
    "train_env_manager": {"num_env_groups": 4, "group_size": 8, "tags": ["Lake", "Guess"]},
    "val_env_manager": {"num_env_groups": 8, "group_size": 1, "tags": ["Lake"]},
}


def tree(changes: dict[str, Any]) -> dict[str, Any]:
    made = copy.deepcopy(TREE)
    for key, value in changes.items():
        *parents, last = key.split(".")
        node = made
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = value
    return made


def config(**changes: Any) -> AgenticConfig:
    made = validate(AgenticConfig, tree({key.replace("__", "."): value for key, value in changes.items()}))
    assert made.config is not None, made.problems
    return made.config


def problems(changes: dict[str, Any]) -> list[str]:
    result = validate(AgenticConfig, tree(changes))
    found = list(result.problems)
    if result.config is not None:
        found += result.about_sound_keys(config_problems(result.config) + agentic_problems(result.config))
    return [problem.text for problem in found]


def test_a_plain_configuration_has_no_problems() -> None:
    assert problems({}) == []
    assert agentic_warnings(config()) == []


def test_an_environment_that_nobody_plays_may_be_anything() -> None:
    unplayed = {"env_type": "sokoban_sandbox", "agent_template": "{no_such_field}", "max_tokens_per_step": 600}
    assert problems({"custom_envs.Shop": unplayed}) == []
    assert "Shop is in no tags of an env manager" in agentic_warnings(config(custom_envs__Shop=unplayed))[0]


def test_names_of_rolls_first_agentic_versions_mean_what_they_are_called_now() -> None:
    changes: dict[str, Any] = {"train_env_manager.env_groups": 4, "train_env_manager.n_groups": [4]}
    changes |= {f"custom_envs.Lake.{name}": 7 for name in ("max_actions_per_traj", "max_steps_per_traj")}
    changes |= {"action_sep": "||", "enable_think": False, "use_turn_scores": False, "enable_response_mask": True}
    made = tree(changes | {"custom_envs.Lake.max_tokens": 100, "added_text_think": "<think>"})
    for name in ("num_env_groups", "num_groups_partition"):
        made["train_env_manager"].pop(name, None)
    made["custom_envs"]["Lake"].pop("max_steps", None)
    found = validate(AgenticConfig, made)
    assert found.config is not None, found.problems
    manager = found.config.train_env_manager
    assert (manager.num_env_groups, manager.num_groups_partition) == (4, (4,))
    assert found.config.custom_envs["Lake"].max_steps == 7
    assert [text.partition(" ")[0] for text in found.warnings if "does nothing here" in text] == [
        "action_sep", "added_text_think", "custom_envs.Lake.max_tokens",
    ]  # fmt: skip
    asked = problems({"enable_think": True, "custom_envs.Lake.added_text": "<answer>"})
    assert len(asked) == 2 and all("is not implemented yet" in text for text in asked)


def test_an_instruction_that_no_template_shows_is_told() -> None:
    entry = {"env_type": "frozen_lake", "env_instruction": "Reach the goal."}
    said = "custom_envs.Lake.env_instruction is not shown: agent_template has no {env_instruction}."
    assert [text for text in agentic_warnings(config(custom_envs__Lake=entry)) if text.startswith(said)]
    shown = {**entry, "agent_template": "{env_instruction} {observation}"}
    assert agentic_warnings(config(custom_envs__Lake=shown)) == []


def test_what_follows_a_filter_does_nothing_without_one() -> None:
    said = agentic_warnings(config(is_use_additional_prompts=True, on_empty="fail"))
    assert said == [
        f"{key} does nothing: no group_filter_cls drops a group." for key in ("is_use_additional_prompts", "on_empty")
    ]


def test_what_is_seen_has_the_names_of_both_forms_of_roll() -> None:
    for name in ("observation", "current_observation", "state"):
        assert problems({"custom_envs.Lake.agent_template": f"You see {{{name}}}"}) == []


@pytest.mark.parametrize("lengths, prompt", [((None, 4096), 1024), ((None, 1024), 512), ((64, 1024), 64)])
def test_the_default_prompt_length_leaves_room_in_a_short_sequence(
    lengths: tuple[int | None, int], prompt: int
) -> None:
    assert config(prompt_length=lengths[0], sequence_length=lengths[1]).lengths == (
        prompt,
        lengths[1] - prompt,
        lengths[1],
    )


@pytest.mark.parametrize(
    ("mode", "micro_batch", "updates"),
    [
        ("padding", 10, 4),
        ("copy", 10, 4),
        ("random_sample", 10, 4),
        ("delete", 10, 3),
        ("auto", 10, 3),
        ("copy", 48, 1),
        ("delete", 48, 1),
        ("auto", 48, 1),
    ],
)
def test_batch_adjust_mode_decides_about_batches_that_do_not_divide(mode: str, micro_batch: int, updates: int) -> None:
    changes = {"batch_adjust_mode": mode, "actor_train.training_args.per_device_train_batch_size": micro_batch}
    assert problems(changes) == []
    made = AgenticConfig.model_validate(tree(changes))
    assert build_plan(made).actor_train.updates_per_epoch == updates
    said = [text for text in agentic_warnings(made) if text.startswith("rollout_batch_size: 32 samples do not split")]
    assert len(said) == 1 and f"batch_adjust_mode: {mode} makes {updates} update" in said[0]
    steps = tree(changes | {"custom_envs.Lake.env_manager_cls": "step"})
    assert not any("do not split" in text for text in agentic_warnings(AgenticConfig.model_validate(steps)))


def test_batch_arithmetic_counts_trajectories() -> None:
    plan = build_plan(config())
    assert (plan.num_groups, plan.group_size, plan.samples_per_step) == (4, 8, 32)
    assert plan.actor_train.updates_per_step == 4
    assert plan.prompts_per_domain == {"Lake": 2, "Guess": 2}


def test_tags_take_turns_in_the_shares_of_the_partition() -> None:
    manager = config(train_env_manager__num_groups_partition=[3, 1]).train_env_manager
    assert manager.slots == ("Lake", "Lake", "Guess", "Lake")


def test_workers_follow_from_environments_and_their_most_per_worker() -> None:
    made = config(train_env_manager__max_env_num_per_worker=8, train_env_manager__group_size_redundancy=2)
    assert (made.train_env_manager.num_envs, made.num_env_workers, made.jobs_per_worker) == (40, 5, 8)
    assert len(build_plan(made).layout["environments"].workers) == 5


def test_validation_samples_by_its_own_arguments_and_greedily_by_default() -> None:
    assert episode_rules(config(), "Lake", "train").sampling.temperature == 0.99
    assert episode_rules(config(), "Lake", "validation").sampling.temperature == 0.0
    own = config(val_env_manager__generating_args={"temperature": 0.5, "max_new_tokens": 7})
    rules = episode_rules(own, "Lake", "validation")
    assert (rules.sampling.temperature, rules.max_answer_tokens) == (0.5, 7)


def test_keys_of_roll_in_env_config_reach_the_env_manager() -> None:
    env = {
        "env_type": "frozen_lake",
        "env_manager_cls": "roll.pipeline.agentic.env_manager.step_env_manager.StepEnvManager",
        "use_thread_lock": True,
        "env_config": {"action_pattern": "(.*)", "format_penalty": -0.5, "max_steps": 7, "is_slippery": False},
    }
    made = config(custom_envs__Lake=env).custom_envs["Lake"]
    assert (made.action_pattern, made.format_penalty, made.max_steps, made.env_manager_cls) == ("(.*)", -0.5, 7, "step")
    assert made.env_config == {"is_slippery": False, "max_steps": 7}


def test_rolls_env_managers_are_known_by_their_paths() -> None:
    home = "roll.pipeline.agentic.env_manager."
    paths = {
        "traj_env_manager.TrajEnvManager": "trajectory",
        "step_env_manager.StepEnvManager": "step",
        "step_concat_env_manager.StepConcatEnvManager": "step_concat",
        "agent_native_env_manager.AgentNativeStepEnvManager": "agent_native",
    }
    for path, name in paths.items():
        assert config(custom_envs__Lake__env_manager_cls=home + path).custom_envs["Lake"].env_manager_cls == name


def test_a_program_is_named_by_agent_or_by_a_command() -> None:
    proxy = {"env_manager_cls": "proxy", "agent": "json:loads"}
    assert problems({"custom_envs.Lake": proxy}) == []
    path = "roll.pipeline.agentic.env_manager.proxy_env_manager.ProxyEnvManager"
    made = config(custom_envs__Lake={"env_manager_cls": path, "agent_command": "true", "tasks": "a.jsonl"})
    assert (made.custom_envs["Lake"].env_manager_cls, made.custom_envs["Lake"].env_type) == ("proxy", "program")
    assert list(map(str, code_problems(made))) == ["custom_envs.Lake.tasks: there is no file a.jsonl."]
    assert "without a sandbox" in agentic_warnings(made)[0]
    missing = config(custom_envs__Lake={"env_manager_cls": "proxy", "agent": "no_such_module:play"})
    assert "custom_envs.Lake.agent: there is no module no_such_module" in str(next(iter(code_problems(missing))))
    tasks = config(custom_envs__Lake={"env_manager_cls": "proxy", "agent": "json:loads", "tasks": "no/such"})
    assert "custom_envs.Lake.tasks: there is no folder no/such of Harbor tasks" in str(*code_problems(tasks))


def test_a_plan_names_the_columns_that_a_sandbox_hides(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"question": "2 + 2", "target": 4, "solution": "2 + 2 = 4"}\n')
    proxy = {"env_manager_cls": "proxy", "agent_command": "true", "tasks": str(tmp_path / "tasks.jsonl")}
    assert list(reports(config(custom_envs__Lake=proxy))) == []
    shown = {"sandbox": True, "agent_truths": ["target"]}
    assert list(reports(config(custom_envs__Lake=proxy | shown))) == [
        "custom_envs.Lake.sandbox hides the columns solution of a task from the program. Name those that it needs in "
        "agent_truths."
    ]


def test_a_class_plays_with_env_config_and_verifiers_names_its_environment() -> None:
    made = {"env_manager_cls": "proxy", "agent": "json:JSONDecoder", "env_config": {"strict": False, "max_steps": 3}}
    assert problems({"custom_envs.Lake": made}) == []
    assert config(custom_envs__Lake=made).custom_envs["Lake"].env_config == {"strict": False, "max_steps": 3}
    verifiers = {"env_manager_cls": "proxy", "agent": "verifiers", "env_config": {"env": "no/such-env"}}
    assert problems({"custom_envs.Lake": verifiers}) == []
    found = [str(problem) for problem in code_problems(config(custom_envs__Lake=verifiers))]
    assert any("the environment no/such-env is not installed: there is no module such_env" in text for text in found)
    unnamed = config(custom_envs__Lake=verifiers | {"env_config": {"package": "json"}})
    assert "custom_envs.Lake.env_config.env is missing" in str(*code_problems(unnamed))


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"env_manager_cls": "proxy"}, "custom_envs.Lake.agent and custom_envs.Lake.agent_command are missing"),
        ({"env_manager_cls": "proxy", "agent": "a:b", "agent_command": "c"}, "both name the program"),
        ({"env_manager_cls": "proxy", "agent": "play"}, "custom_envs.Lake.agent: 'play' is not module:function."),
        ({"env_manager_cls": "proxy", "agent": "roll_script:play"}, "play is defined in this script"),
        ({"env_manager_cls": "proxy", "agent": "a:b", "tasks": "rows:"}, "Lake.tasks: 'rows:' is not of the form"),
        ({"env_manager_cls": "proxy", "agent": "a:b", "env_type": "sokoban"}, "env_type does nothing with"),
        ({"env_manager_cls": "proxy", "agent_command": "a", "env_config": {"x": 1}}, "env_config does nothing with"),
        (
            {"env_manager_cls": "proxy", "agent": "a:b", "sandbox": True},
            "only a program that custom_envs.Lake.agent_comm",
        ),
        ({"env_type": "sokoban", "sandbox": True}, "sandbox is for programs that call over HTTP"),
        ({"env_type": "sokoban", "agent": "a:b"}, "agent is for programs that call over HTTP"),
        ({"env_type": "sokoban", "sides": ["a", "b"]}, "sides is for programs that call over HTTP"),
        ({"env_manager_cls": "proxy", "agent": "a:b", "sides": ["one"]}, "are not two or more different names"),
        ({"env_manager_cls": "proxy", "agent": "a:b", "sides": ["a", "a"]}, "are not two or more different names"),
        ({"env_manager_cls": "proxy", "agent": "a:b", "sides": ["a", ""]}, "are not two or more different names"),
        ({"env_type": "sokoban", "tasks": "a.jsonl"}, "tasks is for programs that call over HTTP"),
    ],
)
def test_keys_of_programs_that_do_nothing_are_refused(entry: dict[str, Any], text: str) -> None:
    (found,) = problems({"custom_envs.Lake": entry})
    assert text in found


def test_programs_that_run_elsewhere_need_a_port() -> None:
    outside = {"custom_envs.Lake": {"env_manager_cls": "proxy"}}
    (without,) = problems(outside)
    assert "agent_endpoint.listen" in without
    for listen in ("8900", "host:", ":8900", "host:99999", "::1:8900", "host:http"):
        (found,) = problems({**outside, "agent_endpoint.listen": listen})
        assert found.startswith(f"agent_endpoint.listen: '{listen}' is not host:port.")
    assert problems({**outside, "agent_endpoint.listen": "[::1]:8900"}) == []
    nodes = {"num_nodes": 2, "num_gpus_per_node": 1}
    (alone,) = problems({**outside, **nodes, "agent_endpoint.listen": "[::1]:8900"})
    assert "[::1]:8900 is reached from one machine alone" in alone and "Write 0.0.0.0:8900" in alone
    assert problems({**outside, **nodes, "agent_endpoint.listen": "0.0.0.0:8900"}) == []
    assert problems({**nodes, "agent_endpoint.listen": "127.0.0.1:8900"}) == [], "no program would ask there"
    entry = {"custom_envs__Lake": {"env_manager_cls": "proxy"}}
    (waits,) = agentic_warnings(config(**entry, agent_endpoint__listen="127.0.0.1:0"))
    assert "a step waits until programs have taken its sessions" in waits and "sandbox" not in waits
    public, _ = agentic_warnings(config(**entry, agent_endpoint__listen="0.0.0.0:8900"))
    assert "without encryption" in public
    assert "agent_endpoint.listen: 127.0.0.1:1 does nothing" in " ".join(
        agentic_warnings(config(agent_endpoint__listen="127.0.0.1:1"))
    )


@pytest.mark.parametrize("estimator", ["gae", "gigpo", "step_reinforce"])
@pytest.mark.parametrize(
    "manager", [{"env_manager_cls": "proxy", "agent": "a:b"}, {"env_manager_cls": "tools", "tool_class": "a:B"}]
)
def test_estimators_that_need_whole_rows_or_single_turns_refuse_sessions(
    manager: dict[str, str], estimator: str
) -> None:
    found = problems({"custom_envs.Lake": manager, "adv_estimator": estimator})
    assert any("custom_envs.Lake.env_manager_cls" in text and manager["env_manager_cls"] in text for text in found)


def test_rewards_of_sides_are_not_shaped_as_one() -> None:
    shaped = {"experience_operators": [{"name": "reward_shaping", "args": {"stat": "response_length", "weight": 0.1}}]}
    sided = {"env_manager_cls": "proxy", "agent": "a:b", "sides": ["white", "black"]}
    found = problems({"custom_envs.Lake": sided, **shaped})
    assert any("custom_envs.Lake.sides gives each side its own" in text for text in found)
    assert not any("sides" in text for text in problems({"custom_envs.Lake": sided}))


SERVERS = {"files": {"command": "cat", "args": ["a"]}}
TOOL_LOOP = {"env_manager_cls": "tools", "tool_servers": SERVERS, "answer_key": "answer", "tasks": "string:digits"}


def test_tools_are_named_by_servers_or_by_a_class() -> None:
    assert problems({"custom_envs.Lake": TOOL_LOOP}) == []
    made = config(custom_envs__Lake=TOOL_LOOP)
    assert (made.custom_envs["Lake"].env_type, agentic_warnings(made)) == ("tools", [])
    assert list(reports(made)) == [
        "Not checked here: custom_envs.Lake.tool_servers: files is asked for tools when an episode begins."
    ]
    of_class = {"env_manager_cls": "tools", "tool_class": "a:B", "env_config": {"max_steps": 3, "action_pattern": "x"}}
    entry = config(custom_envs__Lake=of_class).custom_envs["Lake"]
    assert (entry.max_steps, entry.env_config) == (10, of_class["env_config"]), "all of it is the constructor's"
    unread = config(custom_envs__Lake=TOOL_LOOP | {"agent_template": "x", "agent_system_template": "be brief"})
    assert agentic_warnings(unread) == ["custom_envs.Lake: agent_template does nothing with tools."]


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"tool_servers": {}}, "tool_servers and custom_envs.Lake.tool_class are missing: one says which tools"),
        ({"tasks": None}, "custom_envs.Lake.tasks is missing: the policy is asked custom_envs.Lake.question_key"),
        ({"answer_key": None}, "custom_envs.Lake.reward is missing: nothing gives the reward of an episode"),
        ({"reward": "a:b"}, "reward and custom_envs.Lake.answer_key both give the reward"),
        ({"tool_class": "Boxes"}, "Lake.tool_class: 'Boxes' is not module:Class."),
        ({"env_type": "sokoban"}, "Lake.env_type does nothing with custom_envs.Lake.env_manager_cls: tools"),
        ({"env_config": {"x": 1}}, "Lake.env_config does nothing with custom_envs.Lake.env_manager_cls: tools"),
        ({"agent": "a:b"}, "custom_envs.Lake.agent is for programs that call over HTTP"),
        (
            {"env_manager_cls": "step", "env_type": "sokoban", "answer_key": None, "tasks": None},
            "tool_servers is for a policy that calls",
        ),
        ({"tool_servers": {"a": {}}}, "a.command and custom_envs.Lake.tool_servers.a.url are missing"),
        ({"tool_servers": {"a": {"command": "x", "url": "http://y"}}}, "both say where the server is"),
        ({"tool_servers": {"a": {"command": "npx -y files"}}}, "Write command: npx and args: [-y, files]"),
        ({"tool_servers": {"a": {"url": "y:80/mcp"}}}, "'y:80/mcp' does not begin with http:// or https://"),
        ({"tool_servers": {"a": {"url": "http://y", "env": {"A": "b"}}}}, "a.env does nothing with"),
        ({"tool_servers": {"a": {"command": "x", "headers": {"A": "b"}}}}, "a.headers does nothing with"),
        ({"tool_servers": {"a/b": {"command": "x"}}}, "a server's name has letters, digits, - and _ only"),
        (
            {"tool_servers": {"a": {"command": "x"}, "b": {"command": "x"}}},
            "a and custom_envs.Lake.tool_servers.b are the same server",
        ),
    ],
)
def test_tools_that_cannot_be_called_are_refused(entry: dict[str, Any], text: str) -> None:
    (found,) = problems({"custom_envs.Lake": TOOL_LOOP | entry})
    assert text in found


def test_a_plan_looks_at_commands_classes_and_rewards_and_starts_no_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def said(**entry: Any) -> list[tuple[str, str]]:
        found = code_problems(config(custom_envs__Lake=TOOL_LOOP | entry))
        return [(problem.of, problem.text.removeprefix("custom_envs.Lake.")) for problem in found]

    assert said() == []
    gone = {"files": {"command": "no_such_program"}}
    assert said(tool_servers=gone) == [
        ("place", "tool_servers.files.command: there is no program 'no_such_program' on the PATH.")
    ]
    ((_, script),) = said(tool_servers={"files": {"command": "bash", "args": ["serve.py", "{x}/y.py", "--z"]}})
    assert script.startswith("tool_servers.files.command: there is no file serve.py, neither in ")
    assert said(tool_servers={"files": {"command": sys.executable, "args": ["-m", "no_such_module.x"]}}) == [
        ("place", "tool_servers.files.command: there is no module no_such_module.x.")
    ]
    home = "tests.unit.pipeline.agentic.proxy.test_tool_player"
    assert said(tool_class=f"{home}:Boxes") == []
    assert said(tool_class=f"{home}:Silent") == [
        ("run", "tool_class: Silent.shout has no docstring, which tells the policy what the tool does.")
    ]
    assert said(tool_class="no_such_module:Boxes")[0][0] == "place"
    assert "is not a class" in said(tool_class="json:dumps")[0][1]
    assert said(answer_key=None, reward="json:decoder") == [("run", "reward: json:decoder cannot be called.")]
    assert said(tasks="a.jsonl") == [("place", "tasks: there is no file a.jsonl.")]
    (tmp_path / "tasks.jsonl").write_text('{"answer": ["5"]}\n{"answer": []}\n')
    ((_, empty),) = said(tasks=str(tmp_path / "tasks.jsonl"))
    assert empty.endswith("tasks.jsonl:2: its ground truth is an empty list, so that no answer is right.")
    monkeypatch.setattr("roll.pipeline.agentic.tool_checks.is_installed", lambda name: False)
    assert said() == [("machine", "tool_servers needs the package mcp. Run pip install -e '.[mcp]' in the checkout.")]


def test_a_native_environment_finds_its_actions_and_chooses_the_words() -> None:
    env = {
        "env_type": "sokoban_native_env",
        "env_manager_cls": "roll.pipeline.agentic.env_manager.agent_native_env_manager.AgentNativeStepEnvManager",
        "agent_system_template": "not used",
        "agent_template": "no field at all",
        "env_config": {"action_pattern": "(Up)", "format_penalty": -0.5, "dim_room": [5, 5]},
    }
    tags = {"custom_envs.Lake": env, "custom_envs.Guess.env_manager_cls": "step"}
    assert problems(tags) == []
    made = AgenticConfig.model_validate(tree(tags))
    lake = made.custom_envs["Lake"]
    assert (lake.format_penalty, lake.env_config) == (-0.5, {"action_pattern": "(Up)", "dim_room": [5, 5]})
    assert agentic_warnings(made) == [
        "custom_envs.Lake: agent_system_template, agent_template do nothing with agent_native: the environment writes "
        "the messages, and gets whole responses."
    ]
    assert problems(tags | {"adv_estimator": "gigpo"}) == []


def test_ids_of_gem_are_environments_that_get_whole_answers() -> None:
    for name in ("game:GuessTheNumber-v0", "rg:arc_1d", "math:Math12K", "gem:own:Env-v1"):
        assert problems({"custom_envs.Lake.env_type": name}) == []
        assert config(custom_envs__Lake__env_type=name).custom_envs["Lake"].action_pattern == "(.*)"
    (text,) = map(str, code_problems(config(custom_envs__Lake__env_type="gem:own:Env-v1")))
    assert "custom_envs.Lake.env_config: gem:own:Env-v1 cannot be built: " in text
    assert "'own:Env-v1' is an id of GEM and needs the package gem-llm" in text


def test_a_plan_asks_no_hub_for_questions_and_a_start_does(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def load(name: str, *_: Any) -> list[Any]:
        asked.append(name)
        raise ConfigError(f"{name} is out of reach")

    monkeypatch.setattr("roll.envs.questions.load_hub_set", load)
    questions = {"env_type": "roll_math", "env_config": {"dataset_name": "org/no-such-questions"}}
    made = config(custom_envs__Lake=questions)
    assert agentic_problems(made) == [] and list(code_problems(made)) == [] and asked == []
    (found,) = unloaded_sets(made)
    assert found.of == "machine" and found.text.endswith("org/no-such-questions: not checked on the Hugging Face hub.")
    (problem,) = hub_problems(made)
    assert "org/no-such-questions is out of reach" in problem.text and asked == ["org/no-such-questions"]


def test_environments_that_read_texts_have_a_pattern_that_fits() -> None:
    def pattern(**env: Any) -> str:
        return config(custom_envs__Lake=env).custom_envs["Lake"].action_pattern

    assert pattern(env_type="roll_math") == "(.*)"
    assert pattern(env_type="roll_math", env_config={"action_pattern": "=(.*)"}) == "=(.*)"
    assert pattern(env_type="roll_qa") == ".*<answer>(.*?)</answer>"
    assert pattern(env_type="roll_qa", env_config={"extract_boxed": True}) == "(.*)"
    assert pattern(env_type="frozen_lake") == "<answer>(.*?)</answer>"


def test_reward_normalization_says_the_same_as_the_norm_types() -> None:
    def norms(**keys: str) -> tuple[object, object]:
        return episode_settings(config(reward_normalization=keys)).advantages.norms

    assert norms() == ("group", "group")  # grpo's own
    assert norms(grouping="traj_group_id", method="mean") == ("group", None)
    assert norms(grouping="batch", method="mean_std") == ("batch", "batch")
    assert norms(grouping="state", method="asym_clip") == ("group", "group")
    assert norms(grouping="inductive", method="mean") == ("batch", None)
    assert norms(method="identity") == (None, None)
    assert norms(norm_mean_type="batch", norm_std_type="group") == ("batch", "group")


def test_identity_leaves_rewards_alone_so_that_groups_of_one_are_fine() -> None:
    alone = {"train_env_manager.group_size": 1}
    assert "adv_estimator: grpo compares a reward with the others of its group" in problems(alone)[0]
    assert problems(alone | {"reward_normalization": {"method": "identity"}}) == []


def test_older_names_of_groupings_and_the_limits_of_asym_clip() -> None:
    for mean, compares in (("group", True), ("batch", False), ("none", False)):
        norms = {"norm_mean_type": mean, "norm_std_type": "batch"}
        assert episode_settings(config(reward_normalization=norms)).advantages.compares_groups == compares
    settings = episode_settings(config(reward_normalization={"grouping": "inductive", "method": "asym_clip"}))
    assert settings.by_domain and settings.advantages.limits == (-1.0, 3.0)
    assert not episode_settings(config(reward_normalization={"grouping": "state"})).by_domain
    assert episode_settings(config()).advantages.limits is None


def test_keys_and_worker_classes_of_roll_are_known_to_agentic_runs() -> None:
    old = {
        "model_name": "m", "default_history_length": 3, "reward_scale": True, "reward_shift": False,
        "reward_norm": "batch", "positive_loss_coef": 0.1, "offload_nccl": True, "reward_system_config": {"a": 1},
    }  # fmt: skip
    worker = "roll.pipeline.agentic.agentic_actor_pg_worker.ActorWorker"
    found = validate(AgenticConfig, tree(old | {"actor_train.worker_cls": worker, "actor_train.offload_nccl": True}))
    assert found.problems == () and found.config is not None
    assert config_problems(found.config) == []
    for key in (*old, "actor_train.offload_nccl"):
        assert any(text.startswith(key) and "does nothing here: " in text for text in found.warnings), key


def test_templates_without_turns_are_refused() -> None:
    key = "actor_train.data_args.template"
    for name in ("plain", "base", "empty", "longcot_V3"):
        assert problems({key: name}) == [
            f"{key}: {name} does not support several turns. Use native, or the path of a Jinja chat template."
        ]
    assert problems({key: "chatml"}) == problems({key: "qwen3_coder"}) == problems({key: "my/chat.jinja"}) == []
    assert problems({key: "qwen_coder"})[0].startswith(
        f"{key}: 'qwen_coder' is not a template. Did you mean qwen3_coder?"
    )


def test_null_is_the_default_of_a_norm_and_none_switches_it_off_wherever_it_stands() -> None:
    def norms(**keys: str | None) -> tuple[object, object]:
        return episode_settings(config(reward_normalization=keys)).advantages.norms

    assert norms(norm_mean_type="group", norm_std_type=None) == ("group", "group")  # grpo's own deviation
    assert norms(norm_mean_type="group", norm_std_type="none") == ("group", None)
    assert norms(norm_mean_type=None, norm_std_type=None) == ("group", "group")
    assert norms(method="mean", norm_std_type=None) == ("batch", None)
    assert norms(method="mean_std", norm_mean_type="none") == (None, "batch")
    at_the_top = config(norm_mean_type=None, norm_std_type="none")
    assert episode_settings(at_the_top).advantages.norms == ("group", None)


def test_replaced_groups_count_towards_max_traj_per_env() -> None:
    def replacements(max_traj_per_env: int, more: bool = True) -> int:
        keys = {"train_env_manager__max_traj_per_env": max_traj_per_env, "is_use_additional_prompts": more}
        return config(rollout_batch_size=48, train_env_manager__num_env_groups=4, **keys).max_replacements

    assert [replacements(n) for n in (-1, 0, 2, 3, 9)] == [6, 6, 2, 6, 6]
    assert replacements(-1, more=False) == 0


def test_ratio_type_segment_is_importance_sampling_by_segment() -> None:
    assert config(ratio_type="segment").importance_sampling == "segment"


@pytest.mark.parametrize(
    "changes, parts",
    [
        (
            {"train_env_manager.tags": ["Lakes"]},
            ["train_env_manager.tags", "no custom_envs.Lakes", "Did you mean Lake?"],
        ),
        ({"train_env_manager.tags": []}, ["train_env_manager.tags is missing", "Lake, Guess"]),
        ({"rollout_batch_size": 30}, ["rollout_batch_size: 30", "group_size: 8", "24 or 32, or group_size: 6 or 10"]),
        ({"val_env_manager.group_size": 3}, ["val_batch_size: 16", "15 or 18"]),
        ({"train_env_manager.num_env_groups": 5}, ["5 groups do not divide among 2 tags", "4 or 6"]),
        ({"train_env_manager.num_groups_partition": [3, 2]}, ["num_groups_partition: [3, 2]", "sums to 5"]),
        ({"train_env_manager.num_groups_partition": [4]}, ["has 1 entries for 2 tags"]),
        ({"train_env_manager.max_traj_per_env": 1, "rollout_batch_size": 64}, ["max_traj_per_env: 1", "2 or more"]),
        (
            {"train_env_manager.env_seeds": [0, 100], "val_env_manager.env_seeds": [90, 200]},
            ["[0, 100)", "[90, 200)", "overlap in [90, 100)"],
        ),
        ({"train_env_manager.env_seeds": [5]}, ["train_env_manager.env_seeds: [5] has too few entries"]),
        ({"custom_envs.Lake.agent_template": "hello"}, ["custom_envs.Lake.agent_template has no {observation}"]),
        ({"custom_envs.Lake.agent_template": "{observation!r}"}, ["{observation!r} is not a plain field"]),
        ({"train_env_manager.env_seeds": [5, 5]}, ["train_env_manager.env_seeds: [5, 5)"]),
        (
            {"custom_envs.Lake.action_pattern": "<answer>(.*"},
            ["custom_envs.Lake.action_pattern", "not a regular expression"],
        ),
        ({"custom_envs.Lake.action_pattern": ".*"}, ["has no group"]),
        (
            {"custom_envs.Lake.agent_template": "{observaton}"},
            ["unknown field {observaton}", "Did you mean observation?"],
        ),
        ({"custom_envs.Lake.agent_template": "{history}{observation}"}, ["unknown field {history}", "trajectories"]),
        ({"custom_envs.Lake.agent_template": "{observation.__class__}"}, ["not a plain field"]),
        ({"custom_envs.Lake.agent_template": "{observation"}, ["custom_envs.Lake.agent_template"]),
        (
            {"custom_envs.Lake.env_config": {"dim_x": 4}},
            ["custom_envs.Lake.env_config", "'dim_x'", "It takes size, p,"],
        ),
        (
            {"custom_envs.Lake.env_type": "sokoban_sandbox"},
            ["ROLL's sokoban_sandbox plays in containers of ROCK, a service; env_type: sokoban is the same game"],
        ),
        (
            {"custom_envs.Lake.env_type": "rock_tb_native_env"},
            ["ROLL's rock_tb_native_env runs in containers of ROCK, a service: write an environment that calls yours"],
        ),
        (
            {"custom_envs.Lake.tool_wrapper": {"tool_configs": [{"tool_id": "mcp"}]}},
            ["custom_envs.Lake.tool_wrapper.tool_configs[0].tool_id: ROLL's mcp calls a server of the Model Context"],
        ),
        (
            {"custom_envs.Lake.tool_wrapper": {"tool_configs": [{"tool_id": "serch"}]}},
            ["tool_configs[0].tool_id: 'serch' is not of the form package.module:object", "Did you mean search?"],
        ),
        ({"custom_envs.Lake.tool_wrapper": {}}, ["custom_envs.Lake.tool_wrapper.tool_configs is empty: name tools"]),
        ({"custom_envs.Lake.env_type": "frozen_lak"}, ["custom_envs.Lake.env_type", "Did you mean frozen_lake?"]),
        (
            {"custom_envs.Lake.env_manager_cls": "roll.x.OtherEnvManager"},
            ["roll.x.OtherEnvManager is not supported. Choose trajectory, vl_trajectory"],
        ),
        (
            {"custom_envs.Lake.env_manager_cls": "vl_trajectory", "actor_infer.strategy_args.strategy_name": "sglang"},
            ["custom_envs.Lake.env_manager_cls", "sglang, which does not show pictures"],
        ),
        (
            {"custom_envs.Lake.env_manager_cls": "agent_native"},
            ["env_type: frozen_lake shows text and has no conversation()", "Set env_type: native", "{env: frozen_lake"],
        ),
        (
            {"custom_envs.Lake.agent_template": "{state}", "custom_envs.Lake.pre_step_template": "Now:"},
            ["custom_envs.Lake: agent_template and pre_step_template both set the user message"],
        ),
        (
            {"custom_envs.Lake.pre_step_template": "{turn}"},
            [
                "custom_envs.Lake.pre_step_template: unknown field {turn}",
                "Fields of trajectories: turn_idx, observation",
            ],
        ),
        (
            {"custom_envs.Lake.next_step_template": "{actions_left"},
            ["custom_envs.Lake.next_step_template: expected '}'"],
        ),
        ({"adv_estimator": "gigpo"}, ["gigpo credits single steps", "trajectory"]),
        (
            {"adv_estimator": "optimal_token_baseline", "custom_envs.Lake.env_manager_cls": "step"},
            ["compares the tokens of whole conversations", "Set it to trajectory"],
        ),
        ({"ratio_type": "segment", "importance_sampling": "seq"}, ["ratio_type: segment contradicts"]),
        ({"train_env_manager.num_env_grups": 3}, ["num_env_grups: unknown key", "num_env_groups"]),
        ({"train_env_manager.device_mapping": [0]}, ["environments run on the CPU"]),
        ({"custom_envs.Lake.max_tokens_per_step": 600}, ["leaves no room for a prompt"]),
    ],
)
def test_bad_input_is_one_clear_message(changes: dict[str, Any], parts: list[str]) -> None:
    found = problems(changes)
    assert len(found) == 1, found
    assert all(part in found[0] for part in parts), found


@pytest.mark.parametrize(
    "changes, part",
    [
        ({"custom_envs__Lake__env_type": "no_such_package.env:Env"}, "importing no_such_package.env failed"),
        (
            {"custom_envs__Lake__env_type": "roll.errors:ConfigError"},
            "is not an environment: it has no reset and no step",
        ),
        (
            {"custom_envs__Lake": {"env_type": "gymnasium", "env_config": {"env": "NoSuchLake-v1"}}},
            "custom_envs.Lake.env_config: gymnasium cannot be built",
        ),
        ({"train_env_manager__group_filter_cls": "math:nothing"}, "train_env_manager.group_filter_cls: math:nothing"),
    ],
)
def test_what_does_not_import_is_said_before_anything_starts(changes: dict[str, Any], part: str) -> None:
    (text,) = map(str, code_problems(config(**changes)))
    assert part in text


def test_a_key_of_other_estimators_is_said_to_do_nothing() -> None:
    by_step = {"custom_envs__Lake__env_manager_cls": "step", "custom_envs__Guess__env_manager_cls": "step"}
    (text,) = config_warnings(config(adv_estimator="grpo", step_reward_weight=0.5))
    assert text == "step_reward_weight does nothing with adv_estimator: grpo; it belongs to gigpo."
    (text,) = config_warnings(config(adv_estimator="step_reinforce", gamma=0.9, step_reward_gamma=0.9, **by_step))
    assert text.startswith("gamma does nothing with adv_estimator: step_reinforce; it belongs to gae, reinforce, ")


def test_a_group_of_one_is_refused_only_where_it_is_compared_with_itself() -> None:
    alone = {"train_env_manager.group_size": 1, "train_env_manager.num_env_groups": 32, "rollout_batch_size": 32}
    within = {"reward_normalization": {"grouping": "traj_group_id", "method": "mean_std"}}
    over_all = {"reward_normalization": {"grouping": "batch", "method": "mean_std"}}
    for estimator in ("grpo", "reinforce"):
        (text,) = problems(alone | within | {"adv_estimator": estimator})
        assert "train_env_manager.group_size is 1: every advantage would be 0" in text
        assert problems(alone | over_all | {"adv_estimator": estimator}) == []


def test_answers_cannot_be_asked_to_be_longer_than_they_may_be() -> None:
    tight = {"custom_envs.Lake.max_tokens_per_step": 6, "custom_envs.Guess.max_tokens_per_step": 40}
    asked = {"actor_infer.generating_args.min_new_tokens": 10}
    assert problems(tight | asked) == [
        "actor_infer.generating_args.min_new_tokens: 10 is more than custom_envs.Lake.max_tokens_per_step: 6. Lower it."
    ]


def test_one_ratio_per_turn_and_one_per_token_contradict_each_other() -> None:
    assert config(ratio_type="segment").importance_sampling == "segment"
    for other in ("token", "seq"):
        (text,) = problems({"ratio_type": "segment", "importance_sampling": other})
        assert text == f"ratio_type: segment contradicts importance_sampling: {other}. Keep one."


def test_a_template_without_a_history_is_taken_with_a_warning() -> None:
    made = config(custom_envs__Lake__env_manager_cls="step_concat")
    assert [text for text in agentic_warnings(made) if "custom_envs.Lake.agent_template has no {history}" in text]


def test_epochs_of_questions_are_steps_and_games_have_none(tmp_path: Path) -> None:
    """3 epochs of 10 questions, 4 in a step, are 8 steps."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"problem": "{i}?", "answer": "{i}"}}\n' for i in range(10)))
    env = {"env_type": "roll_math", "env_config": {"dataset_name": str(rows)}, "agent_template": "{observation}"}
    changes = {"num_train_epochs": 3, "custom_envs": {"A": env}, "rollout_batch_size": 16}
    made = config(
        **changes, train_env_manager={"num_env_groups": 4, "group_size": 4, "tags": ["A"]}, val_env_manager=None
    )
    plan = build_plan(made)
    assert num_questions(made) == 10
    assert of_known_length(made, plan, 10, made.num_groups)[0].max_steps == 8
    assert num_questions(made.model_copy(update={"num_train_epochs": None})) is None
    assert made.can_count_rows and not config().can_count_rows


def test_a_typo_in_a_value_is_answered_about_that_value() -> None:
    for entry in (
        {"env_manager_cls": "prox", "agent": "verifiers"},
        {"env_manager_cls": "trajectry", "tasks": "a.jsonl"},
    ):
        (said,) = problems({"custom_envs.Lake": entry})
        name = entry["env_manager_cls"]
        assert said.startswith(f"custom_envs.Lake.env_manager_cls: {name} is not supported. Did you mean "), said
