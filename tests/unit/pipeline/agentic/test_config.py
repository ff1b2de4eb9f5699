"""The agentic part of a configuration: what it derives, and every kind of bad input with its message."""

from __future__ import annotations

import copy
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
from tests.helpers.cases import cases

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
    "custom_envs": {"Lake": {"env_type": "frozen_lake"}, "Guess": {"env_type": "countdown"}},
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


def test_plain_configurations_and_idle_environments_have_no_problems() -> None:
    assert problems({}) == []
    assert agentic_warnings(config()) == []
    unplayed = {"env_type": "sokoban_sandbox", "agent_template": "{no_such_field}", "max_tokens_per_step": 600}
    assert problems({"custom_envs.Shop": unplayed}) == []
    assert "Shop is in no tags of an env manager" in agentic_warnings(config(custom_envs__Shop=unplayed))[0]
    for name in ("game:GuessTheNumber-v0", "rg:arc_1d", "math:Math12K", "gem:own:Env-v1"):
        assert problems({"custom_envs.Lake.env_type": name}) == []
        assert config(custom_envs__Lake__env_type=name).custom_envs["Lake"].action_pattern == "(.*)"
    (text,) = map(str, code_problems(config(custom_envs__Lake__env_type="gem:own:Env-v1")))
    assert "custom_envs.Lake.env_config: gem:own:Env-v1 cannot be built: " in text
    assert "'own:Env-v1' is an id and needs the package gem-llm" in text


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


def test_what_does_nothing_is_told() -> None:
    entry = {"env_type": "frozen_lake", "env_instruction": "Reach the goal."}
    said = "custom_envs.Lake.env_instruction is not shown: agent_template has no {env_instruction}."
    assert [text for text in agentic_warnings(config(custom_envs__Lake=entry)) if text.startswith(said)]
    shown = {**entry, "agent_template": "{env_instruction} {observation}"}
    assert agentic_warnings(config(custom_envs__Lake=shown)) == []
    said = agentic_warnings(config(is_use_additional_prompts=True, on_empty="fail"))
    assert said == [
        f"{key} does nothing: no group_filter_cls drops a group." for key in ("is_use_additional_prompts", "on_empty")
    ]
    by_step = {"custom_envs__Lake__env_manager_cls": "step", "custom_envs__Guess__env_manager_cls": "step"}
    (text,) = config_warnings(config(adv_estimator="grpo", step_reward_weight=0.5))
    assert text == "step_reward_weight does nothing with adv_estimator: grpo; it belongs to gigpo."
    (text,) = config_warnings(config(adv_estimator="step_reinforce", gamma=0.9, step_reward_gamma=0.9, **by_step))
    assert text.startswith("gamma does nothing with adv_estimator: step_reinforce; it belongs to gae, reinforce, ")


def test_names_of_both_forms_of_roll_mean_the_same() -> None:
    for name in ("observation", "current_observation", "state"):
        assert problems({"custom_envs.Lake.agent_template": f"You see {{{name}}}"}) == []
    for mean, compares in (("group", True), ("batch", False), ("none", False)):
        norms = {"norm_mean_type": mean, "norm_std_type": "batch"}
        assert episode_settings(config(reward_normalization=norms)).advantages.compares_groups == compares
    settings = episode_settings(config(reward_normalization={"grouping": "inductive", "method": "asym_clip"}))
    assert settings.by_domain and settings.advantages.limits == (-1.0, 3.0)
    assert not episode_settings(config(reward_normalization={"grouping": "state"})).by_domain
    assert episode_settings(config()).advantages.limits is None
    assert config(ratio_type="segment").importance_sampling == "segment"


@pytest.mark.parametrize("lengths, prompt", [((None, 4096), 1024), ((None, 1024), 512), ((64, 1024), 64)])
def test_the_default_prompt_length_leaves_room_in_a_short_sequence(
    lengths: tuple[int | None, int], prompt: int
) -> None:
    assert config(prompt_length=lengths[0], sequence_length=lengths[1]).lengths == (
        prompt,
        lengths[1] - prompt,
        lengths[1],
    )


@cases("mode, micro_batch, updates")
def test_batch_adjust_mode_decides_about_batches_that_do_not_divide(mode: str, micro_batch: int, updates: int) -> None:
    changes = {"batch_adjust_mode": mode, "actor_train.training_args.per_device_train_batch_size": micro_batch}
    assert problems(changes) == []
    made = AgenticConfig.model_validate(tree(changes))
    assert build_plan(made).actor_train.updates_per_epoch == updates
    said = [text for text in agentic_warnings(made) if text.startswith("rollout_batch_size: 32 samples do not split")]
    assert len(said) == 1 and f"batch_adjust_mode: {mode} makes {updates} update" in said[0]
    steps = tree(changes | {"custom_envs.Lake.env_manager_cls": "step"})
    assert not any("do not split" in text for text in agentic_warnings(AgenticConfig.model_validate(steps)))


def test_batches_tags_and_workers_are_counted() -> None:
    plan = build_plan(config())
    assert (plan.num_groups, plan.group_size, plan.samples_per_step) == (4, 8, 32)
    assert plan.actor_train.updates_per_step == 4
    assert plan.prompts_per_domain == {"Lake": 2, "Guess": 2}
    manager = config(train_env_manager__num_groups_partition=[3, 1]).train_env_manager
    assert manager.slots == ("Lake", "Lake", "Guess", "Lake")
    made = config(train_env_manager__max_env_num_per_worker=8, train_env_manager__group_size_redundancy=2)
    assert (made.train_env_manager.num_envs, made.num_env_workers, made.jobs_per_worker) == (40, 5, 8)
    assert len(build_plan(made).layout["environments"].workers) == 5

    def replacements(max_traj_per_env: int, more: bool = True) -> int:
        keys = {"train_env_manager__max_traj_per_env": max_traj_per_env, "is_use_additional_prompts": more}
        return config(rollout_batch_size=48, train_env_manager__num_env_groups=4, **keys).max_replacements

    assert [replacements(n) for n in (-1, 0, 2, 3, 9)] == [6, 6, 2, 6, 6]
    assert replacements(-1, more=False) == 0


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
    (problem,) = code_problems(missing)
    assert problem.of == "place" and "custom_envs.Lake.agent: no_such_module:play: " in problem.text
    tasks = config(custom_envs__Lake={"env_manager_cls": "proxy", "agent": "json:loads", "tasks": "no/such"})
    assert "custom_envs.Lake.tasks: there is no folder of Harbor tasks no/such" in str(*code_problems(tasks))
    misspelt = config(custom_envs__Lake={"env_manager_cls": "proxy", "agent": "json:loads", "tasks": "json:laods"})
    assert str(*code_problems(misspelt)).startswith("custom_envs.Lake.tasks: ")


def test_a_class_plays_with_env_config() -> None:
    made = {"env_manager_cls": "proxy", "agent": "json:JSONDecoder", "env_config": {"strict": False, "max_steps": 3}}
    assert problems({"custom_envs.Lake": made}) == []
    assert config(custom_envs__Lake=made).custom_envs["Lake"].env_config == {"strict": False, "max_steps": 3}


@cases("entry, text")
def test_keys_of_programs_that_do_nothing_are_refused(entry: dict[str, Any], text: str) -> None:
    (found,) = problems({"custom_envs.Lake": entry})
    assert text in found


def test_programs_that_run_elsewhere_need_a_port() -> None:
    outside = {"custom_envs.Lake": {"env_manager_cls": "proxy"}}
    (without,) = problems(outside)
    assert "agent_endpoint.listen" in without
    for listen in ("8900", "host:", ":8900", "host:http"):
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


def test_rewards_of_groups_are_compared_where_that_means_something() -> None:
    alone = {"train_env_manager.group_size": 1}
    assert "adv_estimator: grpo compares a reward with the others of its group" in problems(alone)[0]
    assert problems(alone | {"reward_normalization": {"method": "identity"}}) == []
    alone = {"train_env_manager.group_size": 1, "train_env_manager.num_env_groups": 32, "rollout_batch_size": 32}
    within = {"reward_normalization": {"grouping": "traj_group_id", "method": "mean_std"}}
    over_all = {"reward_normalization": {"grouping": "batch", "method": "mean_std"}}
    for estimator in ("grpo", "reinforce"):
        (text,) = problems(alone | within | {"adv_estimator": estimator})
        assert "train_env_manager.group_size is 1: every advantage would be 0" in text
        assert problems(alone | over_all | {"adv_estimator": estimator}) == []


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


@cases("entry, text")
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
    home = "tests.unit.pipeline.agentic.proxy.test_tool_player"
    assert said(tool_class=f"{home}:Boxes") == []
    assert said(tool_class=f"{home}:Silent")[0][1].startswith("tool_class: Silent.shout has no schema: ")
    assert said(tool_class="no_such_module:Boxes")[0][0] == "place"
    assert "is not a class" in said(tool_class="json:dumps")[0][1]
    assert said(answer_key=None, reward="json:decoder") == [("run", "reward: json:decoder cannot be called.")]
    assert said(tasks="a.jsonl") == [("place", "tasks: there is no file a.jsonl.")]
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
        "custom_envs.Lake: agent_system_template, agent_template do nothing with agent_native."
    ]
    assert problems(tags | {"adv_estimator": "gigpo"}) == []


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


@cases("changes, parts")
def test_bad_input_is_one_clear_message(changes: dict[str, Any], parts: list[str]) -> None:
    found = problems(changes)
    assert len(found) == 1, found
    assert all(part in found[0] for part in parts), found


@cases("changes, part")
def test_what_does_not_import_is_said_before_anything_starts(changes: dict[str, Any], part: str) -> None:
    (text,) = map(str, code_problems(config(**changes)))
    assert part in text


def test_contradictions_are_answered_about_their_values() -> None:
    assert config(ratio_type="segment").importance_sampling == "segment"
    for other in ("token", "seq"):
        (text,) = problems({"ratio_type": "segment", "importance_sampling": other})
        assert text == f"ratio_type: segment contradicts importance_sampling: {other}. Keep one."
    for entry in (
        {"env_manager_cls": "prox", "agent": "a:b"},
        {"env_manager_cls": "trajectry", "tasks": "a.jsonl"},
    ):
        (said,) = problems({"custom_envs.Lake": entry})
        name = entry["env_manager_cls"]
        assert said.startswith(f"custom_envs.Lake.env_manager_cls: {name} is not supported. Did you mean "), said


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
