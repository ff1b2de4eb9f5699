"""A report shows the metrics of starts that a new one has put aside."""

from pathlib import Path

from roll.report.command import run
from roll.report.run_files import earlier_starts, read_run
from roll.run.tracking.local import write_metrics


def test_metrics_that_were_put_aside_are_runs_of_the_report(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for name, reward in (("metrics", 0.9), ("metrics.1", 0.1), ("metrics.2", 0.5)):
        write_metrics(
            logs / f"{name}.jsonl", [(1, {"rollout/reward_mean": reward}), (2, {"rollout/reward_mean": reward})]
        )
    found = earlier_starts(read_run(tmp_path))
    assert [start.name.rpartition(", ")[2] for start in found] == ["start 2", "start 1"]
    assert [dict(start.rows)[1]["rollout/reward_mean"] for start in found] == [0.5, 0.1]
    run([str(tmp_path), "--out", str(tmp_path / "report.html")])
    assert ", start 1" in (tmp_path / "report.html").read_text()
