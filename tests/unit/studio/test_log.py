"""The logs of a run, as its page shows them."""

from pathlib import Path

import pytest

pytest.importorskip("nicegui", reason="NiceGUI is not installed: the extra studio")

from roll.report.run_files import find_run
from roll.studio.pages.log import last_lines, log_files
from tests.unit.studio.test_runs import make_run

LOG = """cut off
2026-01-01 10:00:00 I [driver 1] a: ready
2026-01-01 10:00:01 W [driver 1] a: slow
  because of this
2026-01-01 10:00:02 D [driver 1] b: detail
"""


@pytest.mark.parametrize(
    "levels, words, numbers",
    [("DIWEC", "", [0, 1, 2, 3, 4]), ("WEC", "", [0, 2, 3]), ("DIWEC", "SLOW", [2, 3]), ("DIWEC", "because", [3])],
)
def test_a_log_has_the_lines_of_a_level_with_what_continues_them(
    tmp_path: Path, levels: str, words: str, numbers: list[int]
) -> None:
    (tmp_path / "x.log").write_text(LOG)
    lines = LOG.splitlines()
    assert last_lines(tmp_path / "x.log", levels, words) == [lines[number] for number in numbers]
    assert last_lines(tmp_path / "nothing.log", levels, words) == []


def test_the_logs_of_driver_workers_and_programs_can_be_chosen(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for place in ("logs/driver.log", "logs/workers/actor_train-0.err", "agents/mine/train/program-1.log"):
        (run / place).parent.mkdir(parents=True, exist_ok=True)
        (run / place).write_text("x\n")
    files = log_files(find_run(run))
    assert list(files) == ["logs/driver.log", "logs/workers/actor_train-0.err", "agents/mine/train/program-1.log"]
    assert files["logs/driver.log"] == run / "logs" / "driver.log"
