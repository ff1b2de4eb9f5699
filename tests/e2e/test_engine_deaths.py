"""The only engine of a run is killed at every point of a step: the run goes on, with the numbers of one in which nobody
died."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.e2e.dying_engine import DEATHS
from tests.e2e.faults import SMALL
from tests.e2e.test_rlvr import assert_engine_and_trainer_agree
from tests.helpers.process_table import name_of
from tests.helpers.runs import Run, comparable

OF_DEATHS = ("rollout/restarted_engines", "rollout/retried_requests", "rollout/moved_answers")
"""Metrics of what became of engines and their requests. A process counts the moved answers of its own life."""
LENGTH = ("max_steps=5", "eval_steps=3", "save_steps=-1")
TWO_RANKS = ("actor_train.training_args.per_device_train_batch_size=8",)
SHARED = ("num_gpus_per_node=1", "actor_infer.device_mapping=[0]")
CASES = {  # settings, and the methods in which the engine dies, each with the version of its weights then
    "answers, memory": ((), ("generate-0", "generate-2", "import-3")),
    "updates, broadcast": (("weight_sync_route=broadcast",), ("begin-1", "import-2", "finish-3")),
    "updates, files": (("weight_sync_route=file",), ("import-0", "import-2", "finish-3")),
    "set-up of the new one": ((), ("generate-1", "start-0")),
    "turns": (SHARED, ("offload-0", "load-2", "generate-3")),
}


@pytest.fixture
def assert_numbers_stay(
    start_run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Runs twice, without deaths and with them, and compares all metrics but those with an `ignored` prefix."""
    folder = tmp_path / "due"
    folder.mkdir()
    monkeypatch.setenv(DEATHS, str(folder))

    def assert_it(deaths: Sequence[str], *arguments: object, ignored: tuple[str, ...] = (), **options: str) -> None:
        arguments = (*arguments, "actor_infer.strategy_args.strategy_name=tests.e2e.dying_engine:SPEC")
        unbroken = start_run(*arguments, name="unbroken", **options).finished()
        for death in deaths:
            (folder / death).touch()
        run = start_run(*arguments, name="deaths", **options).finished()
        assert not list(folder.iterdir()), run.text
        assert "Traceback (most recent call last)" not in run.text, run.text
        assert run.metrics[max(run.metrics)]["rollout/restarted_engines"] == len(deaths)
        assert run.metrics.keys() == unbroken.metrics.keys()
        for step, row in unbroken.metrics.items():
            expected, found = (
                {
                    name: value
                    for name, value in comparable(each).items()
                    if name not in OF_DEATHS and not name.startswith(ignored)
                }
                for each in (row, run.metrics[step])
            )
            assert found == expected, f"step {step}"

    return assert_it


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_an_only_engine_that_is_killed_is_replaced_and_the_numbers_stay(
    case: str, sort_data: Path, assert_numbers_stay: Callable[..., None]
):
    settings, deaths = CASES[case]
    assert_numbers_stay(deaths, sort_data, "tiny_sort", *SMALL, *LENGTH, *settings)


@pytest.mark.slow
def test_episodes_of_other_processes_wait_for_the_engine_that_replaces_the_only_one(
    lake_data: Path, assert_numbers_stay: Callable[..., None]
):
    """Which requests share a forward pass is chance in episodes, and with it the last digits of log-probs."""
    deaths = ("generate-0", "generate-2", "import-3")
    lengths = ("max_steps=5", "eval_steps=-1", "save_steps=-1")
    lake = {"example": "tiny-frozen-lake", "pipeline": "agentic"}
    assert_numbers_stay(deaths, lake_data, "tiny_frozen_lake", *lengths, ignored=("train_infer/",), **lake)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["EngineCore", "ray::"])
def test_an_only_engine_of_vllm_is_replaced_whichever_of_its_processes_is_killed(
    victim: str, sort_data: Path, start_run: Callable[..., Run]
):
    """Twice: wherever in a step it happens to be."""
    run = start_run(sort_data, "tiny_sort_vllm", *SMALL, *TWO_RANKS, "max_steps=6", "eval_steps=-1", "save_steps=-1")
    for step in (1, 3):
        run.wait_for_step(step)
        next(process for process in run.processes(ROLL_ROLE="actor_infer") if victim in name_of(process)).kill()
    run.finished()
    assert run.metrics[6]["rollout/restarted_engines"] == 2
    assert_engine_and_trainer_agree(run)
    assert "Traceback (most recent call last)" not in run.text, run.text
