"""An imported YAML leaves no number to roll that the other system has, too."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.configs.load.chosen_values import Machine
from roll.configs.load.validate import validate
from roll.importers.command import imported_from
from roll.importers.convert import Imported, read
from roll.run.spec import PIPELINES
from roll.run.start import machine as machine_module
from roll.run.start.load import choose
from tests.helpers.cases import cases
from tests.unit.importers.test_import import SOURCES

RATES = ("algorithm.optimizer.lr=null", "actor_rollout_ref.actor.optim.lr=null")
CASES: list[tuple[Path, tuple[str, ...]]] = [(source, ()) for source in SOURCES]
CASES += [
    (source, (word,)) for source in SOURCES for word in RATES if source.name.startswith(("verl", "trinity", "guide"))
]
ROLL: dict[str, Any] = {
    "pretrain": "org/m",
    "rollout_batch_size": 32,
    "response_length": 64,
    "actor_train": {"strategy_args": {"strategy_name": "deepspeed_train"}, "device_mapping": [0]},
    "actor_infer": {"strategy_args": {"strategy_name": "vllm"}, "device_mapping": [1]},
    "rewards": {"math": {"reward": "math_rule"}},
}


@pytest.mark.parametrize(("source", "words"), CASES)
def test_nothing_is_chosen_for_what_was_imported(
    source: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_module, "this_machine", lambda: Machine(8, 80e9, frozenset({"vllm", "deepspeed"})))
    found = imported_from(read(source, words), source=source)
    spec = PIPELINES[found.pipeline]
    keys = {key: value for key, value in found.tree.items() if key != "variables"}
    assert not choose(spec, validate(spec.config_class(), keys))[1]


def imported(tmp_path: Path, tree: dict[str, Any]) -> Imported:
    path = tmp_path / "roll.yaml"
    path.write_text(yaml.safe_dump(tree))
    return imported_from(read(path, ()), source=path)


def test_the_yaml_says_that_the_defaults_are_rolls(tmp_path: Path) -> None:
    found = imported(tmp_path, ROLL)
    assert found.tree["defaults_of"] == "roll" and found.defaults.keys() == {"defaults_of"}
    assert found.tree["actor_train"].get("training_args") == ROLL["actor_train"].get("training_args")
    own = imported(tmp_path, {**ROLL, "defaults_of": "here"})
    assert own.tree["defaults_of"] == "here" and not own.defaults


@cases("lengths, stays")
def test_a_length_that_roll_does_not_read_beside_another_is_left_out(
    tmp_path: Path, lengths: dict[str, Any], stays: bool
) -> None:
    """sequence_length counts where both are set, also against the sum of the others; a variable stays."""
    found = imported(tmp_path, {**ROLL, **lengths})
    assert ("response_length" in found.tree) == stays and found.is_as_meant == ("reward_args" not in lengths)
    assert found.tree.get("sequence_length") == lengths.get("sequence_length")


@pytest.mark.parametrize(("value", "asks"), [(0.01, True), (0, False)])
def test_what_a_plan_of_megatron_refuses_is_lost_in_the_import(tmp_path: Path, value: float, asks: bool) -> None:
    config = {"tensor_model_parallel_size": 2, "additional_configs": {"qsa_indexer_kl_coef": value, "fp8": None}}
    train = {**ROLL["actor_train"], "strategy_args": {"strategy_name": "megatron_train", "strategy_config": config}}
    found = imported(tmp_path, {**ROLL, "actor_train": train})
    kept = found.tree["actor_train"]["strategy_args"]["strategy_config"]
    assert kept == {"tensor_model_parallel_size": 2, "additional_configs": {}}
    at = "actor_train.strategy_args.strategy_config.additional_configs.qsa_indexer_kl_coef"
    assert any(change.startswith(at) for change in found.changes) == asks


@cases("strategy, config, changes")
def test_keys_that_a_strategy_does_not_know_are_lost(
    tmp_path: Path, strategy: str, config: dict[str, Any], changes: list[str]
) -> None:
    train = {**ROLL["actor_train"], "strategy_args": {"strategy_name": strategy, "strategy_config": config}}
    found = imported(tmp_path, {**ROLL, "actor_train": train}).changes
    assert len(found) == len(changes) and all(a in b for a, b in zip(changes, found, strict=True))


def test_norms_that_the_grpo_of_roll_does_not_read_are_left_out(tmp_path: Path) -> None:
    said = {**ROLL, "adv_estimator": "grpo", "norm_mean_type": "batch", "norm_std_type": None}
    found = imported(tmp_path, said)
    assert "norm_mean_type" not in found.tree and found.is_as_meant
    assert imported(tmp_path, {**said, "adv_estimator": "reinforce"}).tree["norm_mean_type"] == "batch"


def test_a_variable_of_a_fragment_stays_also_if_the_fragment_is_not_there(tmp_path: Path) -> None:
    agentic = {
        "defaults": ["./games@_here_"], "max_tokens_per_step": 64, "train_env_manager": {"tags": ["Lake"]},
        "custom_envs": {"Lake": "${games.Lake}"}, **ROLL,
    }  # fmt: skip
    del agentic["rewards"]
    alone = imported(tmp_path, agentic)
    assert alone.tree["max_tokens_per_step"] == 64 and any("Could not load" in note for note in alone.notes)
    (tmp_path / "games.yaml").write_text("games: {Lake: {env_type: frozen_lake, max_steps: 5}}\n")
    found = imported(tmp_path, agentic)
    assert "max_tokens_per_step" not in found.tree and found.is_as_meant
    (tmp_path / "games.yaml").write_text(
        "games: {Lake: {env_type: frozen_lake, max_tokens_per_step: '${max_tokens_per_step}'}}\n"
    )
    assert imported(tmp_path, agentic).tree["max_tokens_per_step"] == 64


def test_teachers_by_name_keep_their_keys(tmp_path: Path) -> None:
    teacher = {"model_args": {"model_name_or_path": "org/t"}, "opd_kl_coef": 0.5, "tag_included": ["math"]}
    found = imported(tmp_path, {**ROLL, "teacher": {"large": teacher}, "is_pure_opd": True})
    assert found.is_as_meant and found.tree["teachers"]["large"] == teacher


def test_what_a_yaml_of_roll_says_of_nothing_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "dpo.yaml"
    text = (Path(__file__).parents[2] / "importers" / "roll_dpo.yaml").read_text(encoding="utf-8")
    path.write_text(f"{text}\ntrack_name: None\nval_batch_size: 64\n", encoding="utf-8")
    found = imported_from(read(path), "roll", path)
    assert found.is_as_meant, found.changes
    shares = imported_from(read(path, ["actor_train.data_args.interleave_probs='0.5,0.5'"]), "roll", path)
    assert not shares.is_as_meant
    assert imported_from(read(path, ["actor_train.data_args.interleave_probs='1.0'"]), "roll", path).is_as_meant


@cases("variables, hub, left")
def test_the_hub_of_roll_is_chosen_by_a_key(
    variables: dict[str, object], hub: str | None, left: dict[str, object] | None, tmp_path: Path
) -> None:
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({**ROLL, "system_envs": variables}), encoding="utf-8")
    found = imported_from(read(tmp_path / "own.yaml"), source=tmp_path / "own.yaml")
    assert (found.tree.get("model_download_type"), found.tree.get("system_envs")) == (hub, left)
    told = {entry.key: entry.note for entry in found.entries}
    assert "model_download_type" not in told and len([key for key in told if key.startswith("system_envs.")]) == len(
        variables
    )
    assert (f"model_download_type: {hub}" in told.values()) is (hub is not None)
