"""Old dotted names: YAMLs and users' code of the last release go on working, and hear the new name."""

import importlib
import logging
import subprocess
import sys

import pytest

from roll.utils.imports import resolve
from roll.utils.moved import FOLDERS, MODULES, new_name


@pytest.mark.parametrize("name", [*MODULES, *FOLDERS])
def test_an_old_name_gives_the_module_in_its_new_place(name: str) -> None:
    new = new_name(name)
    assert new is not None
    module = importlib.import_module(name)
    assert module is importlib.import_module(new)
    assert module.__name__ == new and module.__spec__ is not None and module.__spec__.name == new


def test_a_dotted_path_of_a_yaml_finds_the_same_class_and_says_the_new_name(caplog: pytest.LogCaptureFixture) -> None:
    sys.modules.pop("roll.pipeline.rlvr.rewards.penalties", None)
    with caplog.at_level(logging.WARNING):
        old = resolve("roll.pipeline.rlvr.rewards.penalties:Overlong")
    assert old is resolve("roll.rewards.penalties:Overlong")
    assert [r.getMessage() for r in caplog.records] == [
        "roll.pipeline.rlvr.rewards.penalties is roll.rewards.penalties now. The old name goes with the next release."
    ]


def test_a_name_that_never_was_is_not_found() -> None:
    with pytest.raises(ImportError):
        importlib.import_module("roll.pipeline.rlvr.rewards.math_rule_reward_worker")


def test_an_old_program_runs_by_its_old_name() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "roll.pipeline.agentic.check_env", "--help"], capture_output=True, text=True, timeout=120
    )
    assert shown.returncode == 0 and "env" in shown.stdout
