"""Users and limits of sandboxed programs."""

import grp
import os
import pwd
import sys
from pathlib import Path

import pytest

from roll.rewards.code.languages import find_python
from roll.rewards.code.local import cpu_s
from roll.utils.sandbox import job as launch
from roll.utils.sandbox.job import USERS, Job, Limits, Namespaces, job_user, own_python, view


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


def test_each_process_has_a_user_of_its_own_that_belongs_to_nobody(
    people: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def users() -> list[int]:
        launch._nobody.cache_clear()
        seen: list[int] = []
        for process in range(100, 110):
            monkeypatch.setattr(os, "getpid", lambda process=process: process)
            seen.append(job_user())
        return seen

    usual = users()
    assert len(set(usual)) == 10 and set(usual) <= set(USERS)
    people.add(usual[0])
    assert users()[0] == usual[1]
    people.update(USERS)
    with pytest.raises(OSError, match="users 20000 to 59999 are people or services"):
        users()


@pytest.mark.parametrize("privileged", [True, False])
def test_what_root_starts_runs_as_that_user(
    people: set[int], monkeypatch: pytest.MonkeyPatch, privileged: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(launch, "program", lambda *_, **__: b"")
    held: list[bytes] = []

    def hold(content: bytes) -> int:
        held.append(content)
        return 0

    _, user = Namespaces(privileged).launch(Job(("true",), view()), 0, hold, None)
    assert user == (None if privileged else job_user())
    assert any(f'"user": {job_user()}'.encode() in content for content in held) == privileged


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
