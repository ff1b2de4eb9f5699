"""Composition: fragments, helper variables, overrides, and what cannot be read."""

import shutil
from pathlib import Path

import pytest

from roll.configs.load import loader, yaml_file
from roll.configs.load.loader import load_tree
from roll.errors import ConfigError
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from tests.helpers.cases import cases

YAML = """
defaults:
  - ../config/deepspeed_zero2@_here_
  - ../config/deepspeed_zero3@_here_

hydra:
  run:
    dir: .
  output_subdir: null

size: 8
max_steps: ${size}
exp_name: ${oc.env:ROLL_TEST_NAME,fallback}
rollout_batch_size: 64
val_batch_size: ${rollout_batch_size}
actor_train:
  strategy_args:
    strategy_config: ${deepspeed_zero2}
critic:
  strategy_args:
    strategy_config: ${deepspeed_zero2}
actor_infer:
  generating_args:
    stop_strings: [a, b]
"""
ACTOR = "actor_train.strategy_args.strategy_config"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A YAML far away from the shipped fragments."""
    (tmp_path / "run.yaml").write_text(YAML)
    return tmp_path


def load(directory: Path, *overrides: str) -> loader.Composed:
    return load_tree(directory, "run", overrides, RLVRConfig)


def refused(directory: Path, *overrides: str, name: str = "run") -> str:
    with pytest.raises(ConfigError) as error:
        load_tree(directory, name, overrides, RLVRConfig)
    return str(error.value)


def test_fragments_resolve_from_a_yaml_anywhere_and_are_variables(directory: Path) -> None:
    found = load(directory)
    assert found.settings["actor_train"]["strategy_args"]["strategy_config"]["zero_optimization"]["stage"] == 2
    assert set(found.variables) == {"size", "deepspeed_zero2", "deepspeed_zero3"}
    assert found.unused == ("deepspeed_zero3",)
    assert set(found.settings) >= {"max_steps", "rollout_batch_size", "actor_train"}
    assert not {"hydra", "defaults"} & set(found.settings)


def test_fragments_resolve_from_package_data_when_there_is_no_checkout(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = directory / "site-packages" / "roll" / "configs" / "fragments" / "config"
    shutil.copytree(yaml_file.CHECKOUT_FRAGMENTS, packaged)
    monkeypatch.setattr(yaml_file, "PACKAGED_FRAGMENTS", packaged)
    monkeypatch.setattr(yaml_file, "CHECKOUT_FRAGMENTS", directory / "nowhere")
    assert yaml_file.fragments_dir() == packaged
    assert load(directory).variables["deepspeed_zero3"]["zero_optimization"]["stage"] == 3


def test_a_fragment_beside_the_yaml_wins_over_the_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "recipe").mkdir()
    (tmp_path / "config" / "deepspeed_zero2.yaml").write_text("deepspeed_zero2: {zero_optimization: {stage: 1}}")
    (tmp_path / "recipe" / "run.yaml").write_text(YAML)
    found = load(tmp_path / "recipe")
    assert found.variables["deepspeed_zero2"] == {"zero_optimization": {"stage": 1}}


def test_helper_variables_and_the_environment_are_filled_in(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(directory).settings["exp_name"] == "fallback"
    monkeypatch.setenv("ROLL_TEST_NAME", "given")
    found = load(directory)
    assert (found.settings["exp_name"], found.settings["max_steps"]) == ("given", 8)
    assert "rollout_batch_size" in found.settings  # referred to, and a setting all the same


def test_the_yamls_name_is_the_experiments_unless_it_says_otherwise(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("max_steps: 3")
    assert load(tmp_path).settings == {"max_steps": 3, "exp_name": "run"}


def test_overrides_reach_what_uses_them_and_take_out_keys_and_items(directory: Path) -> None:
    found = load(directory, "size=3", "rollout_batch_size=16", "deepspeed_zero2.zero_optimization.stage=1")
    assert (found.settings["max_steps"], found.settings["val_batch_size"]) == (3, 16)
    for role in ("actor_train", "critic"):
        assert found.settings[role]["strategy_args"]["strategy_config"]["zero_optimization"]["stage"] == 1
    assert "rollout_batch_size" not in load(directory, "~rollout_batch_size", "~val_batch_size").settings
    found = load(directory, "~actor_infer.generating_args.stop_strings.0", "~val_batch_size")
    assert found.settings["actor_infer"]["generating_args"]["stop_strings"] == ["b"]
    assert "val_batch_size" not in found.settings


@pytest.mark.parametrize("order", [1, -1])
def test_an_override_through_a_reference_changes_that_roles_copy_only(directory: Path, order: int) -> None:
    overrides = [f"{ACTOR}.zero_optimization.stage=3", "deepspeed_zero2.zero_optimization.overlap_comm=false"][::order]
    found = load(directory, *overrides)
    mine = found.settings["actor_train"]["strategy_args"]["strategy_config"]["zero_optimization"]
    theirs = found.settings["critic"]["strategy_args"]["strategy_config"]["zero_optimization"]
    assert (mine["stage"], mine["overlap_comm"]) == (3, False)
    assert (theirs["stage"], theirs["overlap_comm"]) == (2, False)
    assert found.variables["deepspeed_zero2"]["zero_optimization"]["stage"] == 2


def test_overrides_need_no_plus_and_read_values_as_hydra_does(directory: Path) -> None:
    found = load(
        directory,
        "ppo_epochs=2",
        "+gamma=0.5",
        "++reference.device_mapping=[0,1]",
        "actor_train.device_mapping=list(range(0,8))",
        "rewards.math.reward_args={pattern: abc}",
        "rewards.math.format_pattern=<a>(.*)</a>",
        "output_dir='a b'",
        "val_prompt_length=null",
        "actor_infer.generating_args.stop_strings.1=c",
    ).settings
    assert (found["ppo_epochs"], found["gamma"], found["reference"]["device_mapping"]) == (2, 0.5, [0, 1])
    assert found["actor_train"]["device_mapping"] == "list(range(0,8))"
    assert found["rewards"]["math"] == {"reward_args": {"pattern": "abc"}, "format_pattern": "<a>(.*)</a>"}
    assert (found["output_dir"], found["val_prompt_length"]) == ("a b", None)
    assert found["actor_infer"]["generating_args"]["stop_strings"] == ["a", "c"]


@cases("override, message")
def test_what_is_not_there_cannot_be_taken_out(directory: Path, override: str, message: str) -> None:
    assert message in refused(directory, override)


def test_what_is_missing_or_leads_nowhere_is_named(directory: Path) -> None:
    assert load(directory, "pompt_length=3").settings["pompt_length"] == 3
    (directory / "run.yaml").write_text("a: ${nope}\nb: {c: '${nada.x}'}\nd: ???\n")
    text = refused(directory)
    assert "a: Interpolation key 'nope' not found." in text
    assert "b.c: Interpolation key 'nada.x' not found." in text
    assert "d is ??? (must be set)." in text
    assert "there is no rum.yaml" in refused(directory, name="rum")
    assert "Did you mean run?" in refused(directory, name="rum")
    assert "there is no such directory" in refused(directory / "elsewhere")
    (directory / "run.yaml").write_text("defaults:\n  - ../config/deepspeed_zero9@_here_\nmax_steps: 3\n")
    assert "Could not load '../config/deepspeed_zero9'" in refused(directory)
    (directory / "folder.yaml").mkdir()
    assert "folder.yaml is a directory, not a YAML." in refused(directory, name="folder")
    assert "There: run." in refused(directory, name="zzz")


@cases("override, message")
def test_an_override_that_cannot_be_applied_says_why(directory: Path, override: str, message: str) -> None:
    assert message in refused(directory, override)


@pytest.mark.parametrize("text", ["a: [1", "- 1\n- 2\n", "a: 1\na: 2\n"])
def test_what_is_no_mapping_is_refused_without_a_traceback(directory: Path, text: str) -> None:
    (directory / "run.yaml").write_text(text)
    assert str(directory / "run.yaml") in refused(directory)


@cases("damage, message")
def test_what_hydra_cannot_compose_is_one_message_with_the_file_or_key(
    directory: Path, damage: str, message: str
) -> None:
    (directory / "run.yaml").write_text(damage)
    text = refused(directory)
    assert message in text
    assert "\n" not in text


@pytest.mark.parametrize("override", ["a..b=1", "=1", "~"])
def test_an_override_that_is_none_is_refused(directory: Path, override: str) -> None:
    refused(directory, override)


@pytest.mark.parametrize("value", ["int(a)", "{a:"])
def test_a_value_that_hydra_cannot_read_is_text(directory: Path, value: str) -> None:
    assert load(directory, f"exp_name={value}").settings["exp_name"] == value
