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
from roll.run.start import choose
from tests.unit.importers.test_import import SOURCES

RATES = ("algorithm.optimizer.lr=null", "actor_rollout_ref.actor.optim.lr=null")
CASES: list[tuple[Path, tuple[str, ...]]] = [(source, ()) for source in SOURCES]
CASES += [
    (source, (word,))
    for source in SOURCES
    for word in RATES
    if source.name.startswith(("verl", "trinity", "guide")) and "stages" not in source.name
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
    monkeypatch.setattr(choose, "this_machine", lambda: Machine(8, 80e9, frozenset({"vllm", "deepspeed"})))
    found = imported_from(read(source, words), source=source)
    for stage in found.tree.get("stages", [{}]):
        tree = {**found.tree, **stage}
        spec = PIPELINES[tree.get("pipeline", found.pipeline)]
        keys = {key: value for key, value in tree.items() if key not in ("stages", "name", "variables")}
        assert not choose.choose(spec, validate(spec.config_class(), keys))[1]


def imported(tmp_path: Path, tree: dict[str, Any]) -> Imported:
    path = tmp_path / "roll.yaml"
    path.write_text(yaml.safe_dump(tree))
    return imported_from(read(path, ()), source=path)


def test_the_defaults_of_roll_are_written_where_those_of_here_are_others(tmp_path: Path) -> None:
    found = imported(tmp_path, ROLL)
    assert found.tree["actor_train"]["training_args"] == {
        "learning_rate": 5e-5, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1,
    }  # fmt: skip
    assert found.tree["num_return_sequences_in_group"] == 1 and "critic" not in found.tree
    assert found.defaults["actor_train.training_args.learning_rate"] == "5e-5, ROLL's default"


def test_what_a_yaml_of_roll_says_stays(tmp_path: Path) -> None:
    args = {"learning_rate": 1e-6, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    said = {**ROLL, "num_return_sequences_in_group": 8, "actor_train": {**ROLL["actor_train"], "training_args": args}}
    found = imported(tmp_path, said)
    assert found.tree["actor_train"]["training_args"] == args and not found.defaults


def test_what_a_yaml_of_roll_says_of_nothing_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "dpo.yaml"
    text = (Path(__file__).parents[2] / "importers" / "roll_dpo.yaml").read_text(encoding="utf-8")
    path.write_text(f"{text}\ntrack_name: None\nval_batch_size: 64\n", encoding="utf-8")
    found = imported_from(read(path), "roll", path)
    assert found.is_as_meant, found.changes
    shares = imported_from(read(path, ["actor_train.data_args.interleave_probs='0.5,0.5'"]), "roll", path)
    assert not shares.is_as_meant
    assert imported_from(read(path, ["actor_train.data_args.interleave_probs='1.0'"]), "roll", path).is_as_meant
