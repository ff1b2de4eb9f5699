"""The JSON schema for editors lets every good YAML pass, and marks what is misspelt or of a wrong type."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from roll.commands.table import main
from roll.configs.schema import schema_of
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.run.kind import kind_of
from roll.run.spec import PIPELINES
from tests.helpers.cases import cases
from tests.helpers.configs import tree

REPOSITORY = Path(__file__).resolve().parents[3]
SHIPPED = sorted(
    path
    for path in (REPOSITORY / "examples").glob("*/*.yaml")
    if path.parent.name not in ("config", "launch")
    and all("config/" in name for name in yaml.safe_load(path.read_text()).get("defaults", ()))
)


def faults(content: Any, kind: str = "rlvr") -> list[str]:
    schema = schema_of(PIPELINES[kind].config_class())
    return [error.json_path for error in Draft202012Validator(schema).iter_errors(content)]


@pytest.mark.parametrize("kind", PIPELINES)
def test_every_kind_of_run_has_a_valid_schema(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", kind]) == 0
    Draft202012Validator.check_schema(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_yamls_pass(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    kind = "rlvr" if "stages" in content else kind_of(content).name
    assert faults(content, kind) == []


@cases("changes, at")
def test_a_slip_is_marked(changes: dict[str, Any], at: str) -> None:
    assert faults(tree()) == []
    (found,) = faults(tree(changes))
    assert found.startswith(at)


def test_a_schema_takes_what_loading_takes_and_shows_descriptions() -> None:
    content = tree({"max_steps": "${many}", "many": 3, "eval_steps": None, "actor_train.use_remove_padding": True})
    assert faults(content) == []
    assert faults(tree({"stages": [{"name": "a", "max_steps": 3, "models": {"reference": "start"}}]})) == []
    assert faults(tree({"stages": [{"name": "a", "max_steps": "many"}]})) != []
    assert faults(tree({"stages": [{"name": "a", "models": "start"}]})) != []
    assert faults(tree({"stages": [{"max_steps": 3}]})) != []
    seed = schema_of(RLVRConfig)["properties"]["seed"]
    assert seed["description"].startswith("Seed of all random numbers") and seed["default"] == 42


def test_a_kind_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "rlvf"]) == 2
    assert main(["schema"]) == 2
    assert "name one kind of run: rlvr" in capsys.readouterr().err
