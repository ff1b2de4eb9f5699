"""The pipeline of docs/adding_a_pipeline.md, followed from a folder outside the repository: a dry run, what is refused,
and a whole run that is resumed."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from roll.commands import run as cli
from tests.helpers.cases import cases
from tests.helpers.pages import importable, snippets, write_files
from tests.helpers.runs import Run, comparable

LINES = "\n".join(f"{a}{b}{(a + b) % 10}" for a in range(8) for b in range(10))

WRONG = """
from dataclasses import replace
from lines import SPEC, LinesConfig, Role, RunConfig
def raises(config):
    return {}['files']
def gives_none(config): pass
class NoLength(RunConfig):
    role_table = LinesConfig.role_table
class NoTable(RunConfig):
    trained_length = LinesConfig.trained_length
class NoSection(LinesConfig):
    role_table = {**LinesConfig.role_table, "teacher": Role("teacher", "score", "lm")}
RAISES = replace(SPEC, problems=("wrong:raises",))
GIVES_NONE = replace(SPEC, warnings=("wrong:gives_none",))
PLAN = replace(SPEC, plan="wrong:gives_none")
FUNCTION = replace(SPEC, config="wrong:raises")
LENGTH = replace(SPEC, config="wrong:NoLength")
TABLE = replace(SPEC, config="wrong:NoTable")
SECTION = replace(SPEC, config="wrong:NoSection")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The files of the page, and 80 lines to learn."""
    folder = tmp_path / "mine"
    folder.mkdir()
    assert write_files(snippets("adding_a_pipeline.md", "python"), folder) == ["lines", "lines_run", "start"]
    (settings,) = snippets("adding_a_pipeline.md", "yaml")
    (folder / "lines.txt").write_text(LINES)
    (folder / "mine.yaml").write_text(settings.replace("files: lines.txt", f"files: {folder / 'lines.txt'}"))
    with importable(folder):
        yield folder


def dry_run(folder: Path, *overrides: str) -> int:
    return cli.main("lines:SPEC", ["--config_path", str(folder), "--config_name", "mine", "--dry_run", *overrides])


def test_a_dry_run_shows_and_checks_a_pipeline_of_ones_own(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TINY_SORT_DIR", str(tmp_path))
    assert dry_run(folder) == 2
    assert f"pretrain: there is no model directory {tmp_path}/model." in capsys.readouterr().err
    assert dry_run(folder, "--elsewhere") == 0
    shown = capsys.readouterr().out
    assert "learner  deepspeed_train  1 worker  device 0  fp32" in shown
    assert "8 per update (8 x 1 x 1), an update in every step; 4 updates in the run" in shown
    assert shown.rstrip().endswith("The plan works.")
    assert dry_run(folder, "files=[]", "learner.device_mapping=[0,0]", "learner.generating_args.top_p=0.5") == 2
    said = capsys.readouterr().err
    assert "files is missing: name one or several text files." in said
    assert "learner.device_mapping names device 0 more than once." in said
    words = ("--elsewhere", "learner.generating_args.top_p=0.5", "learner.training_args.warmup_steps=9")
    assert dry_run(folder, *words) == 0
    warned = capsys.readouterr().out
    assert "Warning: learner: generating_args does nothing here: this role learns." in warned
    assert "Warning: learner.training_args: the warm-up of 9 updates is not over when the run ends after 4." in warned


@cases("name, message")
def test_what_is_no_pipeline_is_refused(
    name: str, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TINY_SORT_DIR", str(folder))
    (folder / "wrong.py").write_text(WRONG)
    (folder / "headless.py").write_text("from roll.configs.tables.roles import Role\nROLE = Role('learner', 'train')\n")
    assert cli.main(name, ["--config_path", str(folder), "--config_name", "mine", "--dry_run"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_it_learns_validates_and_resumes_bit_for_bit(
    folder: Path, sort_data: Path, start_run: Callable[..., Run]
) -> None:
    whole = start_run(sort_data, "mine", example=folder, pipeline=folder / "start.py").finished()
    losses = [whole.metrics[step]["train/nll_mean"] for step in range(1, 5)]
    assert all(math.isfinite(loss) for loss in losses) and losses[-1] < losses[0]
    assert whole.metrics[4]["val/nll_mean"] < whole.metrics[0]["val/nll_mean"]
    saved = whole.output_dir / "checkpoints" / "step_000002"
    resumed = start_run(
        sort_data, "mine", f"resume_from_checkpoint={saved}", example=folder, pipeline=folder / "start.py", name="again"
    ).finished()
    assert [comparable(resumed.metrics[step]) for step in (3, 4)] == [
        comparable(whole.metrics[step]) for step in (3, 4)
    ]
