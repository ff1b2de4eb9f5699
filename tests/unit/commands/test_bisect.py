"""`roll bisect`: first differences planted into what two runs recorded."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.commands.bisect import run
from roll.errors import ConfigError
from roll.rl.pipeline import VIEW
from roll.run.records.digests import DIGESTS_FILE, Digests
from roll.run.records.run_record import RunRecord
from roll.run.saving.checkpoint import CheckpointStore, DriverState, write_state
from roll.run.tracking.local import METRICS_FILE, write_metrics
from roll.types.batch import TrainBatch
from roll.types.row_numbers import row_numbers
from tests.helpers.configs import config
from tests.integration.executor.parts import make_samples

LENGTHS, STEPS, PLANTED = (4, 6, 5), (1, 2, 3, 4), 3
METRICS = {"actor/pg_loss": 0.25, "actor/grad_norm": 1.5, "actor/learning_rate": 1e-3}
Change = Callable[[TrainBatch], TrainBatch]


def batch_of(step: int) -> TrainBatch:
    samples = make_samples(LENGTHS, seed=step)
    values = np.where(samples.response_mask, np.linspace(-1, -0.1, samples.num_tokens), 0).astype(np.float32)
    samples = replace(samples, rollout_log_probs=values)
    return TrainBatch(samples, advantages=2 * values, old_log_probs=values, ref_log_probs=values)


def bumped(values: np.ndarray | None, place: int) -> np.ndarray:
    assert values is not None
    changed = values.copy()
    changed[place] += 1
    return changed


def with_samples(**changed: Callable[[Any], Any]) -> Change:
    def change(batch: TrainBatch) -> TrainBatch:
        columns = {name: of(getattr(batch.samples, name)) for name, of in changed.items()}
        return replace(batch, samples=replace(batch.samples, **columns))

    return change


def recorded(
    folder: Path,
    planted: Change = lambda batch: batch,
    metrics: Mapping[str, float] = METRICS,
    weights: str = "",
    **keys: object,
) -> Path:
    RunRecord(folder / "logs", VIEW).begin(config({"output_dir": str(folder), **keys}), steps_done=0)
    digests = Digests(folder / "logs")
    for step in STEPS:
        digests.record(step, row_numbers(planted(batch_of(step)) if step >= PLANTED else batch_of(step)))
    write_metrics(folder / "logs" / METRICS_FILE, [(step, metrics if step >= PLANTED else METRICS) for step in STEPS])
    with CheckpointStore(folder / "checkpoints").writing(PLANTED) as directory:
        (directory / "model.safetensors").write_text(weights)
        write_state(directory, DriverState(steps_done=PLANTED, run={}))
    return folder


PLANTS: dict[str, dict[str, Any]] = {
    "prompt ids": {"planted": with_samples(input_ids=lambda ids: bumped(ids, 0))},
    "sampled tokens": {"planted": with_samples(input_ids=lambda ids: bumped(ids, 2))},
    "rewards (1 | 1.33333, +0.33)": {"planted": with_samples(rewards=lambda rewards: bumped(rewards, 1))},
    "log-probs of the engine": {"planted": with_samples(rollout_log_probs=lambda values: bumped(values, 2))},
    "log-probs of the trainer": {"planted": lambda batch: replace(batch, old_log_probs=bumped(batch.old_log_probs, 2))},
    "log-probs of the reference": {
        "planted": lambda batch: replace(batch, ref_log_probs=bumped(batch.ref_log_probs, 2))
    },
    "advantages": {"planted": lambda batch: replace(batch, advantages=bumped(batch.advantages, 2))},
    "loss (0.25 | 0.5, +0.25)": {"metrics": {**METRICS, "actor/pg_loss": 0.5}},
    "gradient norm (1.5 | 1.25, -0.25)": {"metrics": {**METRICS, "actor/grad_norm": 1.25}},
    "weights": {"weights": "changed"},
}


@pytest.mark.parametrize("stage", PLANTS)
def test_the_first_difference_is_named(stage: str, tmp_path: Path) -> None:
    one, other = recorded(tmp_path / "one"), recorded(tmp_path / "other", **PLANTS[stage])
    keys, first, before, *_ = run([str(one), str(other)])
    assert keys == "keys of the configuration that differ: none"
    assert first.startswith(f"first difference: step {PLANTED}, {stage}")
    assert before.startswith("  equal before it: steps 1 to 2")


def test_rows_in_another_order_have_the_same_prompts(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, order in ((one, [0, 1, 2]), (other, [2, 0, 1])):
        recorded(folder)
        (folder / "logs" / DIGESTS_FILE).unlink()
        Digests(folder / "logs").record(1, row_numbers(batch_of(1))[order])
    lines = list(run([str(one), str(other)]))
    assert lines[1:3] == ["first difference: step 1, data order", "  equal before it: in step 1 prompt ids"]


def test_keys_that_differ_come_first_and_equal_runs_have_no_difference(tmp_path: Path) -> None:
    lines = list(run([str(recorded(tmp_path / "one")), str(recorded(tmp_path / "other", seed=7))]))
    assert lines == [
        "keys of the configuration that differ: 1",
        "  seed: 42 | 7",
        "no difference in 4 steps, 1 to 4",
    ]


def test_nan_in_both_is_equal_and_a_stage_of_one_run_is_named(tmp_path: Path) -> None:
    metrics = {**METRICS, "actor/pg_loss": float("nan")}
    one = recorded(tmp_path / "one", metrics=metrics)
    other = recorded(tmp_path / "other", metrics=metrics, planted=lambda batch: replace(batch, ref_log_probs=None))
    (other / "logs" / DIGESTS_FILE).unlink()
    for step in STEPS:
        Digests(other / "logs").record(step, row_numbers(replace(batch_of(step), ref_log_probs=None)))
    assert list(run([str(one), str(other)]))[1:] == [
        "only in the first run: log-probs of the reference",
        "no difference in 4 steps, 1 to 4",
    ]


def test_a_run_of_an_earlier_roll_has_no_digests(tmp_path: Path) -> None:
    one, other = recorded(tmp_path / "one"), recorded(tmp_path / "other")
    (other / "logs" / DIGESTS_FILE).unlink()
    with pytest.raises(ConfigError, match="has no step"):
        list(run([str(one), str(other)]))


def test_a_run_that_goes_on_writes_its_last_steps_again(tmp_path: Path) -> None:
    path = recorded(tmp_path / "one") / "logs" / DIGESTS_FILE
    with path.open("a") as file:
        file.write('{"step": 5, "dig')  # the run was killed
    Digests(path.parent).record(3, row_numbers(batch_of(3)))
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]
