"""What the RLVR pipeline looks at before it starts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.configs.plan.batch_plan import build_plan
from roll.configs.strategies.table import required_facts
from roll.distributed.strategy.saved_facts import SavedFacts
from roll.errors import ConfigError, StrategyError
from roll.pipeline.rlvr import rlvr_pipeline
from roll.pipeline.rlvr.rlvr_pipeline import RLVRPipeline, check_difficulty
from roll.run.saving.checkpoint import DriverState, write_state
from roll.run.saving.resume import state_of_roles
from roll.types.rollout import Task
from tests.helpers.configs import config


def task(difficulty: object) -> Task:
    return Task("row-7", "math", np.array([1], np.int32), payload={"difficulty": difficulty})


def test_a_difficulty_on_another_scale_is_refused() -> None:
    check_difficulty([task(0), task(0.5), task(1), task("hard"), task(None)])
    with pytest.raises(ConfigError, match=r"`difficulty` of the data holds 5 \(row-7\), but must be from 0"):
        check_difficulty([task(0.5), task(5)])


def rlvr_run(directory: Path, model: Path, data: list[str], **settings: Any) -> RLVRPipeline:
    file = directory / "train.jsonl"
    file.write_text("".join(json.dumps({"prompt": text, "ground_truth": text}) + "\n" for text in data))
    places = {"output_dir": str(directory / "out"), "logging_dir": str(directory / "logs"), "track_with": []}
    made = config({"pretrain": str(model), "actor_train.data_args.file_name": str(file), **places, **settings})
    return RLVRPipeline(made, build_plan(made))


@pytest.mark.parametrize(
    "now, settings, said",
    [
        (["1 2", "3 5"], {}, "actor_train.data_args: the rows of math are not those of the checkpoint"),
        (["1 2", "3 4"], {"seed": 7}, "seed: 42 -> 7 since the checkpoint"),
        (["1 2", "3 4"], {}, None),
    ],
    ids=["other data", "another seed", "the same"],
)
def test_a_resume_that_cannot_go_on_is_refused_before_any_process_starts(
    now: list[str],
    settings: dict[str, Any],
    said: str | None,
    tmp_path: Path,
    tiny_model_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = rlvr_run(tmp_path, tiny_model_dir, ["1 2", "3 4"])
    first.prepare(None)
    with first.checkpoints.writing(3) as directory:
        (directory / "actor_train").mkdir()
        SavedFacts(required_facts(first.config.actor_train, 2)).write(directory / "actor_train")
        state = {"data": first.source.state_dict(), "kl_coef": 0.2, "running_moments": {}}
        state |= state_of_roles(first.config, first.plan)
        write_state(directory, DriverState(steps_done=3, run=state, config=first.config.model_dump(mode="json")))
    first.loop.close()

    def started(*_: object, **__: object) -> None:
        raise StrategyError("processes were started")

    monkeypatch.setattr(rlvr_pipeline, "RLClusters", started)
    resumed = rlvr_run(tmp_path, tiny_model_dir, now, resume_from_checkpoint=True, **settings)
    assert resumed.run() == (2 if said else 1)
    log = (tmp_path / "logs" / "driver.log").read_text()
    assert (said or "processes were started") in log
    assert ("processes were started" in log) == (said is None)
