"""Users and limits of sandboxed programs."""

import grp
import os
import pwd
import sys
from pathlib import Path
from typing import Any

import pytest

from roll.envs.tools import python_code
from roll.envs.tools.python_code import PythonCodeTool
from roll.errors import EnvError
from roll.rewards.code.languages import find_python
from roll.rewards.code.local import cpu_s
from roll.rewards.code.reward import CodeSandbox
from roll.utils.sandbox import job as launch
from roll.utils.sandbox.job import USERS, Job, Limits, Namespaces, checked_users, job_user, own_python, view

WRONG = ("20000", 20000, [], [1], [1, 2, 3], ["1", "2"], [1.0, 2.0], [True, 5], [0, 5], [-5, 5], [9, 8], [1, 2**31])


@pytest.fixture
def people(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Numbers of users of this machine."""
    known: set[int] = set()

    def found(number: int) -> None:
        if number not in known:
            raise KeyError(number)

    launch._nobody.cache_clear()
    monkeypatch.setattr(pwd, "getpwuid", found)
    monkeypatch.setattr(grp, "getgrgid", found)
    return known


@pytest.mark.parametrize("given", WRONG)
def test_what_is_no_range_of_users_is_refused_by_reward_and_tool(given: object) -> None:
    with pytest.raises(ValueError, match="^sandbox_uids: "):
        checked_users(given)
    wrong: Any = given
    with pytest.raises(ValueError, match="^sandbox_uids: "):
        CodeSandbox(sandbox_uids=wrong)
    with pytest.raises(EnvError, match="^sandbox_uids: "):
        PythonCodeTool(sandbox_uids=wrong)


def test_a_range_is_two_numbers_and_there_is_a_usual_one() -> None:
    assert checked_users(None) == USERS == (20_000, 59_999)
    assert checked_users([70_000, 70_000]) == (70_000, 70_000)


def test_each_process_has_a_user_of_its_own_in_the_range(people: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    for process in range(100, 110):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        seen.add(job_user((70_000, 70_009)))
    assert seen == set(range(70_000, 70_010))


def test_a_number_that_belongs_to_somebody_is_passed_over(people: set[int]) -> None:
    usual = job_user((70_000, 70_009))
    launch._nobody.cache_clear()
    people.add(usual)
    assert job_user((70_000, 70_009)) == 70_000 + (usual - 70_000 + 1) % 10
    people.update(range(80_000, 80_010))
    with pytest.raises(OSError, match="sandbox_uids: users 80000 to 80009 are people or services"):
        job_user((80_000, 80_009))


@pytest.mark.parametrize("privileged", [True, False])
def test_the_sandbox_takes_the_range(people: set[int], monkeypatch: pytest.MonkeyPatch, privileged: bool) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(launch, "program", lambda *_, **__: b"")
    job = Job(("true",), view(), Limits(users=(70_001, 70_001)))
    held: list[bytes] = []

    def hold(content: bytes) -> int:
        held.append(content)
        return 0

    started = Namespaces(privileged).launch(job, 0, hold)
    if privileged:
        assert started.user is None and any(b'"user": 70001' in content for content in held)
    else:
        assert started.user == 70_001


def test_compiler_probe_and_trial_run_as_the_same_users(people: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}
    monkeypatch.setattr(python_code, "find_means", lambda *shown, users: asked.update(shown=shown, users=users))
    PythonCodeTool(sandbox_uids=[70_001, 70_002])
    assert asked == {"shown": own_python()[1], "users": (70_001, 70_002)}


def test_of_the_interpreter_a_program_sees_its_libraries_and_nothing_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conda = tmp_path / "conda"
    for name in ("bin", "lib", "envs/other/lib", "pkgs"):
        (conda / name).mkdir(parents=True)
    (conda / "bin" / "python").touch()
    (tmp_path / "link").symlink_to("conda")
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "link"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "link" / "bin" / "python"))
    assert own_python() == (f"{conda}/bin/python", (f"{conda}/lib", f"{conda}/bin/python"))
    python = find_python.__wrapped__()  # the other one keeps what it finds
    assert (python.command[0], python.shown) == own_python()


@pytest.mark.parametrize(("given", "whole"), [(0.2, 1), (1.0, 1), (1.1, 2), (4.5, 5), (5.0, 5)])
def test_seconds_of_the_cpu_are_rounded_up(given: float, whole: int) -> None:
    """Rounded down, a program that may compute for 4.5 seconds would be ended after 4."""
    limits = Limits(cpu_s=given, wall_s=60, memory_mb=256, disk_mb=1)
    assert Job(("/usr/bin/true",), view(), limits).resources["cpu"] == (whole, whole + 1)
    assert cpu_s(limits) == whole
