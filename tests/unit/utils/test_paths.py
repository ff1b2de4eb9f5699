"""What is at a path that somebody wrote."""

import os
from pathlib import Path

import pytest

from roll.utils.files import path_info
from tests.helpers.paths import hide


def test_files_directories_and_devices_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    kinds = {name: path_info(tmp_path / name).kind for name in ("file", ".", "pipe", "none", "file/below")}
    assert kinds == {"file": "file", ".": "directory", "pipe": "device", "none": "absent", "file/below": "absent"}


def test_what_permissions_hide_is_neither_there_nor_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(tmp_path / "locked", monkeypatch)
    look = path_info(tmp_path / "locked" / "file")
    assert (look.kind, look.why) == ("hidden", f"no permission to look at {tmp_path}/locked/file")
    assert not look.exists


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("~nosuchuser/x", "there is no user nosuchuser, so ~nosuchuser/x is no path"),
        ("x" * 300, "is no path (file name too long)"),
        ("a\0b", "a\\x00b is no path (embedded null byte)"),
        ("\ud800", "is no path ('utf-8' codec can't encode"),
    ],
)
def test_a_text_that_can_be_no_path_is_said_so(text: str, why: str) -> None:
    assert why in path_info(text).why
    assert path_info(text).kind == "impossible"


def test_links_in_a_circle_are_no_path(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert "is no path (too many levels of symbolic links)" in path_info(tmp_path / "a").why


def test_home_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert path_info("~").path == tmp_path
