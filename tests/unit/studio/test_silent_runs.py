"""Runs with files that never answer: pipes."""

import os
from pathlib import Path

import pytest

from roll.errors import ConfigError
from roll.report.command import run as report
from roll.studio.live_run import LiveRun
from roll.studio.rollout_index import Query, RolloutIndexes
from roll.studio.run_list import RunList, key_of
from tests.unit.studio.test_rollouts import record, write
from tests.unit.studio.test_runs import make_run

FILES = (
    "logs/run.json", "logs/metrics.jsonl", "logs/driver.log", "rollouts/step_000001.jsonl",
    "rollouts/step_000001.val.jsonl", "rollouts/step_000001.distributions.json",
)  # fmt: skip


def with_pipe(run: Path, name: str) -> Path:
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    return run


def prompts(indexes: RolloutIndexes, run: Path) -> list[str]:
    index = indexes.updated(key_of(run))
    return [] if index is None else [row["prompt"] for row in index.rows(Query(), 0, 9).rows]


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_a_run_hangs_neither_it_nor_others(tmp_path: Path, name: str) -> None:
    bad, good = make_run(tmp_path / "bad", "bad"), make_run(tmp_path / "good", "good")
    for run in (bad, good):
        write(run, 2, record(prompt_text=run.name))
    with_pipe(bad, name)
    found = RunList([tmp_path])
    assert {glance.name for glance in found.glances()} == {"good", "bad"}
    assert [glance.state for glance in found.glances() if glance.name == "bad"] == (
        ["broken"] if name == "logs/run.json" else ["finished"]
    )
    indexes = RolloutIndexes(found)
    assert prompts(indexes, good) == ["good"]
    assert prompts(indexes, bad) == ([] if name in FILES[:2] else ["bad"]), "no metrics know its steps"
    if name != "logs/run.json":
        live = LiveRun(bad)
        live.update()
        assert (live.warnings(), live.spreads()) == ([], [])


def test_a_report_reads_no_pipe(tmp_path: Path) -> None:
    bad = make_run(tmp_path / "bad")
    words = [str(bad), "--out", str(tmp_path / "report.html")]
    for name in FILES[2:]:
        with_pipe(bad, name)
    assert "report.html" in report(words)[0]
    for name in FILES[:2]:
        with pytest.raises(ConfigError, match=f"{name} cannot be read: it is no regular file"):
            report([str(with_pipe(make_run(tmp_path / f"bad_{Path(name).stem}"), name)), *words[1:]])
