"""A YAML in three stages on a machine that has its model and data, and runs that do nothing but save."""

import copy
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.configs.load.loader import compose_tree
from roll.configs.sections.run import RunConfig
from roll.run.saving.checkpoint import CheckpointStore, DriverState, write_state
from roll.run.spec import PipelineSpec
from roll.run.stages.planned import Stage, plan_stages
from tests.helpers.configs import tree

SHAPE = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3, "max_position_embeddings": 64}
LEARNER = {"strategy_args": {"strategy_name": "deepspeed_train"}, "device_mapping": [0]}
WARM_UP: dict[str, Any] = {
    "name": "warm-up",
    "pipeline": "sft",
    "max_steps": 6,
    "sequence_length": 32,
    "sft_train": {**LEARNER, "data_args": {"file_name": "sft.jsonl"}},
}
SHORT: dict[str, Any] = {"name": "short", "max_steps": 4, "response_length": 8}
LONG: dict[str, Any] = {"name": "long", "max_steps": 5}

Planner = Callable[..., list[Stage]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with model and data."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(SHAPE))
    (tmp_path / "train.jsonl").write_text('{"prompt": "1+1", "ground_truth": "2", "tag": "math"}\n')
    (tmp_path / "sft.jsonl").write_text('{"instruction": "1+1", "output": "2"}\n')
    return tmp_path


@pytest.fixture
def write(folder: Path) -> Callable[..., None]:
    """write(stage, ..., key=value): `run.yaml` with these stages, by default the three above; dotted keys of the whole
    YAML in `shared`."""

    def make(*stages: Mapping[str, Any], shared: Mapping[str, Any] | None = None) -> None:
        given = {"pretrain": "model", "track_with": "jsonl", "output_dir": "out", **copy.deepcopy(dict(shared or {}))}
        made = tree(given) | {"stages": [copy.deepcopy(dict(stage)) for stage in stages or (WARM_UP, SHORT, LONG)]}
        (folder / "run.yaml").write_text(yaml.safe_dump(made))

    return make


@pytest.fixture
def plan(folder: Path, write: Callable[..., None]) -> Planner:
    """plan(stage, ..., shared={...}, overrides=[...]): the stages as a script of RLVR plans them."""

    def make(*stages: Any, shared: Any = None, overrides: tuple[str, ...] = (), script: str | None = "rlvr") -> Any:
        write(*stages, shared=shared)
        return plan_stages(compose_tree(folder, "run", overrides), overrides, script)

    return make


class Runs:
    """Stands for the runs behind the checks: each does the steps that are left, at most `most`, and saves."""

    def __init__(self) -> None:
        self.most = 1000
        self.done: list[tuple[str, int, int]] = []  # name of the run, steps before and after
        self.configs: list[RunConfig] = []

    def make(self, config: RunConfig) -> "Runs":
        self.configs.append(config)
        return self

    def run(self) -> int:
        config = self.configs[-1]
        store = CheckpointStore(config.checkpoint_dir)
        found = store.resolve(config.resume_from_checkpoint)
        before = found.state.steps_done if found else 0
        after = min(config.max_steps, before + self.most)
        with store.writing(after) as directory:
            shutil.copytree("model", directory / "hf_model")
            write_state(directory, DriverState(steps_done=after, run={}, config=config.model_dump(mode="json")))
        self.done.append((config.exp_name, before, after))
        return 0 if after == config.max_steps else 130


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs()
    monkeypatch.setattr(PipelineSpec, "make_run", lambda spec, config, plan: made.make(config))
    return made
