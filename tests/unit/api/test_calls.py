"""Arguments of `roll.train` and its kin become the keys of a YAML, and what is wrong with them is said."""

import datetime
import functools
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import roll
from roll.api.composing import Arguments, compose
from roll.errors import ConfigError
from roll.utils.imports import resolve, script_code, with_script_code
from tests.helpers.configs import MINIMAL
from tests.layout.source import REPOSITORY

ROWS = [{"prompt": "1 + 1", "ground_truth": "2", "tag": "sums"}]
LEARNER = {key: value for key, value in MINIMAL["actor_train"].items() if key != "data_args"}
KEYS = {key: value for key, value in MINIMAL.items() if key not in ("pretrain", "rewards")} | {"actor_train": LEARNER}


def right(sample: Any) -> float:
    return float(str(sample.ground_truth) in sample.response_text)


class Right:
    def __init__(self, worth: float = 1.0):
        self.worth = worth

    def __call__(self, sample: Any) -> float:
        return self.worth


class Walk:
    def reset(self, seed: int) -> str:
        return "go"

    def step(self, action: str) -> Any:
        raise NotImplementedError


def two(prompt: str, answer: str) -> float:
    return 0.0


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def tree_of(**arguments: Any) -> dict[str, Any]:
    return compose(Arguments(**arguments)).raw.tree


def plan(**arguments: Any) -> roll.Plan:
    return roll.plan(**{"model": "org/model", "data": ROWS, "reward": right, **KEYS, **arguments})


def test_a_call_and_a_yaml_of_the_same_keys_are_the_same_settings() -> None:
    file_name = tree_of(kind="rlvr", data=ROWS)["actor_train"]["data_args"]["file_name"]
    section = {**MINIMAL["actor_train"], "data_args": {"file_name": file_name, "tag": ""}}
    rewards = {"reward": {"reward": f"{__name__}:right"}}
    tree = {**MINIMAL, "actor_train": section, "rewards": rewards, "exp_name": "mine"}
    Path("my.yaml").write_text(yaml.safe_dump(tree))
    called, written = plan(exp_name="mine"), roll.plan("my.yaml")
    assert called.config is not None and written.config is not None
    a, b = called.config.model_dump(), written.config.model_dump()
    assert a.pop("rewards")["reward"].pop("reward") == "roll_script:right"
    assert b.pop("rewards")["reward"].pop("reward") == f"{__name__}:right"
    assert a == b
    assert called.plan == written.plan


def test_a_plan_has_devices_text_and_every_mistake() -> None:
    good = plan()
    assert good.devices == {"actor_train": [0, 1], "actor_infer": [2], "rewards.reward": []}
    assert "32 prompts x 8 samples = 256" in good.text
    assert "32 prompts x 8 samples = 256" in str(good)
    assert {"Roles", "Algorithm", "Batch", "Schedule"} <= {*str(good).splitlines()}
    short: dict[str, Any] = {key: value for key, value in KEYS.items() if not key.startswith("actor_")}
    assert "\nChosen for this run, since" in str(roll.plan(model="org/model", data=ROWS, reward=right, **short))
    bad = plan(max_step=3, seed="x")
    assert (bad.ok, bad.text, bad.config, bad.devices) == (False, "", None, {})
    assert sum("max_step" in problem or "seed" in problem for problem in bad.problems) == 2
    assert "The run cannot start:" in str(bad)


@pytest.mark.parametrize(
    "arguments",
    [
        {"reward": "math_rul"},
        {"reward": two},
        {"reward": Walk},
        {"reward": ["math_rul", right]},
        {"data": "empty.jsonl"},
        {"data": None},
        {"data": None, "reward": None, "env": "frozen_lak"},
        {"data": "rows.jsonl", "reward": None},
    ],
)
def test_one_fault_is_one_problem(arguments: dict[str, Any]) -> None:
    Path("empty.jsonl").touch()
    Path("rows.jsonl").write_text('{"prompt": "1", "ground_truth": "1"}\n')
    given = {"model": "org/model", "data": ROWS, "reward": right, "max_steps": 1, **arguments}
    assert len(roll.plan(**given).problems) == 1


@pytest.mark.parametrize(
    "reward, names",
    [
        (right, ["right"]),
        (lambda sample: 1.0, ["function"]),
        (Right, ["Right"]),
        (Right(0.5), ["Right"]),
        (functools.partial(right), ["right"]),
        ([right, Right()], ["right", "Right"]),
        ({"sums": right, "words": lambda sample: 0.0}, ["right", "function"]),
        ({"sums": {"reward": right, "world_size": 2}}, ["right"]),
    ],
)
def test_a_reward_is_found_by_its_path_however_it_is_made(reward: Any, names: list[str]) -> None:
    composed = compose(Arguments("rlvr", reward=reward))
    assert [*composed.code] == names
    for name, value in composed.code.items():
        with composed.code_at_hand():
            assert resolve(f"roll_script:{name}") is value
    assert script_code() == {}


def test_two_functions_of_one_name_are_two() -> None:
    def made(worth: float) -> Callable[[Any], float]:
        def score(sample: Any) -> float:
            return worth

        return score

    composed = compose(Arguments("rlvr", reward={"a": made(1.0), "b": made(2.0)}))
    rewards = composed.raw.tree["rewards"]
    assert [rewards[name]["reward"] for name in "ab"] == ["roll_script:score", "roll_script:score_2"]
    assert {name: value(None) for name, value in composed.code.items()} == {"score": 1.0, "score_2": 2.0}  # type: ignore[operator]


def test_a_function_is_a_value_of_any_key_that_names_code() -> None:
    tree = tree_of(kind="rlvr", keys={"adv_estimator": right, "custom_envs": {"Walk": {"env_type": Walk}}})
    assert tree["adv_estimator"] == "roll_script:right"
    assert tree["custom_envs"]["Walk"]["env_type"] == "roll_script:Walk"
    env = tree_of(kind="agentic", env=Walk)
    assert env["custom_envs"] == {"Walk": {"env_type": "roll_script:Walk"}}
    assert env["train_env_manager"] == {"tags": ["Walk"]}


def test_arguments_win_over_a_yaml_of_any_kind() -> None:
    Path("my.yaml").write_text(yaml.safe_dump({**MINIMAL, "actor_train": {**LEARNER, "data_args": {"file_name": "x"}}}))
    tree = tree_of(config="my.yaml", data="mine.jsonl", reward=right, keys={"seed": 3})
    assert tree["actor_train"]["data_args"] == {"file_name": "mine.jsonl", "tag": ""}
    assert tree["rewards"] == {"reward": {"reward": "roll_script:right"}}
    assert (tree["seed"], tree["pretrain"]) == (3, "org/model")
    assert tree_of(config={"seed": 1}, env=Walk)["train_env_manager"] == {"tags": ["Walk"]}
    for config in ({"pipeline": "sft"}, {"sft_train": {}, "sequence_length": 8}):
        tree = tree_of(config=config, data="a.jsonl")
        assert tree["sft_train"] == {"data_args": {"file_name": "a.jsonl"}}


def test_script_code_is_set_for_a_while() -> None:
    with with_script_code({"right": right}):
        with with_script_code({"other": Right}):
            assert script_code() == {"other": Right}
        assert script_code() == {"right": right}
    assert script_code() == {}


@pytest.mark.parametrize("kind, section", [("sft", "sft_train"), ("dpo", "actor_train"), ("rm", "reward_train")])
def test_rows_go_to_the_section_that_learns(kind: str, section: str) -> None:
    tree = tree_of(kind=kind, model="org/model", data=Path("rows.jsonl"), eval_data="held_out.jsonl")
    assert tree == {
        "pretrain": "org/model",
        section: {"data_args": {"file_name": "rows.jsonl"}},
        "validation": {"data_args": {"file_name": "held_out.jsonl"}},
    }


def test_rows_of_python_are_a_file_that_equal_rows_share() -> None:
    rows = [{"prompt": "é", "n": np.int64(3), "xs": np.arange(2), "day": datetime.date(2026, 1, 2)}]
    first = tree_of(kind="sft", data=rows)["sft_train"]["data_args"]["file_name"]
    assert json.loads(Path(first).read_text()) == {"prompt": "é", "n": 3, "xs": [0, 1], "day": "2026-01-02"}
    assert tree_of(kind="sft", data=(row for row in rows))["sft_train"]["data_args"]["file_name"] == first
    assert tree_of(kind="sft", data=["a.jsonl", Path("b.jsonl")])["sft_train"]["data_args"]["file_name"] == [
        "a.jsonl",
        "b.jsonl",
    ]


def test_data_sets_and_data_frames_are_rows() -> None:
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    files = [
        tree_of(kind="sft", data=data)["sft_train"]["data_args"]["file_name"]
        for data in (ROWS, datasets.Dataset.from_list(ROWS), pandas.DataFrame(ROWS))
    ]
    assert len({*files}) == 1
    with pytest.raises(ConfigError, match="is of type DatasetDict. Give a path"):
        tree_of(kind="sft", data=datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}))


def test_sections_and_dotted_keys_are_joined_and_numbers_of_numpy_are_numbers() -> None:
    keys = {
        "actor_train": {"training_args": {"learning_rate": np.float64(0.5)}, "device_mapping": range(2)},
        "actor_train.training_args.per_device_train_batch_size": np.int32(4),
        "output_dir": Path("here"),
    }
    tree = tree_of(kind="rlvr", keys=keys)
    learning = {"learning_rate": 0.5, "per_device_train_batch_size": 4}
    assert tree == {"actor_train": {"training_args": learning, "device_mapping": [0, 1]}, "output_dir": "here"}
    assert {type(value) for value in tree["actor_train"]["training_args"].values()} == {float, int}


def of_trl(completions: Any, **columns: Any) -> list[float]:
    return [0.0 for _ in completions]


LOCK = threading.Lock()


def locked(lock: Any) -> Callable[[Any], float]:
    return lambda sample: float(lock.locked())


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"reward": 5}, "reward: 5 cannot be called. Give a function: def reward(sample)"),
        ({"reward": of_trl}, " takes lists (completions), as rewards of TRL do"),
        ({"model": "m", "keys": {"pretrain": "n"}}, "model: the key pretrain is given beside it"),
        ({"data": "a.jsonl", "keys": {"actor_train.data_args.file_name": "b.jsonl"}}, "data: the key actor_train.data"),
        ({"reward": right, "keys": {"rewards": {"b": {"reward": right}}}}, "reward: the key rewards.b is given"),
        ({"reward": right, "keys": {"rewards.reward.reward": "math_rule"}}, "reward: the key rewards.reward.reward is"),
        ({"reward": []}, "reward: [] cannot be called"),
        ({"reward": locked(LOCK)}, "function cannot be sent to the workers of the run: TypeError: cannot pickle"),
        ({"data": []}, "data is empty: it has no rows to learn from"),
        (
            {"data": [{"prompt": object()}]},
            "data: row 1 cannot be written as JSON: TypeError: it holds a value of type object",
        ),
        ({"data": 7}, "data: 7 is of type int. Give a path"),
        ({"kind": "agentic", "env": 3}, "env: 3: give a class"),
        ({"keys": {"seed": {1, 2}}}, "seed: {1, 2} is of type set, which a YAML cannot hold"),
        ({"keys": {"seed": 1, "seed.x": 2}}, "seed.x: seed is 1, which has no keys below it"),
        ({"kind": "sft", "reward": right}, "reward: a run of the kind sft has no such argument"),
        ({"keys": {"stages": []}}, "stages: several runs one after the other are started with `roll run`"),
        ({"config": {"defaults": []}}, "defaults names fragments of a YAML"),
        ({"config": 3}, "3: give the path of a YAML"),
        ({"config": "not_there.yaml"}, "Name a YAML first"),
    ],
)
def test_arguments_that_are_none_are_refused_in_one_sentence(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        compose(Arguments(**{"kind": "rlvr", **arguments}))
    assert said in str(error.value)
    assert len(error.value.problems) == 1


def test_an_unknown_key_is_refused_with_the_one_that_is_meant(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_step.*Did you mean max_steps"):
        roll.train("org/model", ROWS, right, max_step=3, **KEYS)


@pytest.mark.parametrize("said", [{"custom_envs": {"Mine": {"env_type": Walk}}}, {"custom_envs.Mine.env_type": Walk}])
def test_environments_among_the_keys_make_an_agentic_run(said: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A program behind the endpoint has no class that `env` could name."""
    kinds: list[str] = []
    monkeypatch.setattr(roll.api.calls, "_run", lambda kind, **arguments: kinds.append(kind))
    roll.train("org/model", **said)
    roll.train("org/model", pipeline="agentic")
    assert kinds == ["agentic", "agentic"]
    with pytest.raises(ConfigError, match="reward: a run of the kind agentic has no such argument"):
        roll.start(model="org/model", reward=right, **said)
    assert "train_env_manager" not in str(roll.plan(model="org/model", **said).problems)


def test_what_train_needs_is_said() -> None:
    with pytest.raises(ConfigError, match="roll.train needs data and reward"):
        roll.train("org/model")
    with pytest.raises(ConfigError, match="roll.train needs data and reward"):
        roll.train("org/model", pipeline="rlvr")
    with pytest.raises(ConfigError, match="roll.train needs data and reward"):
        roll.train("org/model", custom_envs={})
    with pytest.raises(ConfigError, match="takes env, or data and reward"):
        roll.train("org/model", ROWS, env=Walk)
    assert "takes env, or data and reward" in roll.plan(model="org/model", data=ROWS, env=Walk).problems[0]
    with pytest.raises(ConfigError, match="takes env, or data and reward"):
        roll.start(model="org/model", reward=right, env="frozen_lake")
    with pytest.raises(ConfigError, match="mode: roll.eval sets it"):
        roll.eval({}, mode="bench")
    with pytest.raises(ConfigError, match="has neither|there is neither"):
        roll.open("not_there")


def test_importing_roll_imports_nothing_heavy_and_has_every_name() -> None:
    code = (
        "import sys, roll\nlight = set(sys.modules)\n"
        "print(*[name for name in ('torch', 'ray', 'pydantic', 'numpy', 'hydra') if name in light])\n"
        "missing = [name for name in roll.__all__ if getattr(roll, name, None) is None]\n"
        "print(*missing, *[name for name in ('torch', 'ray') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
    with pytest.raises(AttributeError, match="module 'roll' has no attribute 'trian'"):
        _ = roll.trian  # type: ignore[attr-defined]
    assert {"train", "open"} <= {*roll.__dir__()}
