"""Files, paths and disks: what is there, what cannot be read or written, and work that is done once."""

import errno
import os
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest

from roll.errors import StorageError
from roll.rl.records.token_records import Once
from roll.utils import files as disk
from roll.utils.files import naming_full_disk, open_regular, path_info, write_whole
from tests.helpers.paths import hide


def hidden() -> None:
    try:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise RuntimeError("unexpected pos 138944 vs 138832") from error


@pytest.mark.parametrize("said", ["", "I/O error: No space left on device (os error 28)", "Disk quota exceeded"])
def test_a_full_disk_is_named_with_the_directory_and_what_failed(said: str, tmp_path: Path) -> None:
    with (
        pytest.raises(StorageError, match=f"no space left in {tmp_path}/a .*It failed with"),
        naming_full_disk(tmp_path / "a"),
    ):
        if said:
            raise ValueError(said)
        hidden()


def test_a_disk_without_room_is_the_cause_of_what_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = SimpleNamespace(f_bavail=1, f_frsize=4096, f_blocks=1000, f_files=10, f_favail=5)
    monkeypatch.setattr(disk.os, "statvfs", lambda path: figures)
    with pytest.raises(StorageError, match="0.0 MB of 4 MB"), naming_full_disk(tmp_path):
        raise RuntimeError("unexpected pos 138944 vs 138832")


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that takes half of what is written."""
    write = Path.write_bytes

    def half(path: Path, data: bytes) -> int:
        write(path, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "write_bytes", half)


@pytest.mark.usefixtures("full")
def test_a_file_that_finds_no_room_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("earlier")
    for path in (page, tmp_path / "new.html"):
        with pytest.raises(OSError, match="No space left"):
            write_whole(path, "a page of today")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert page.read_text() == "earlier"


def test_a_file_keeps_its_permissions_and_may_have_the_longest_name_that_there_is(tmp_path: Path) -> None:
    path = tmp_path / ("ä" * 127)
    path.touch(0o600)
    write_whole(path, "private")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("private", 0o600)


def test_a_file_is_written_where_a_link_leads_and_into_a_device(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    for content in ("ä", b"\xff"):
        write_whole(tmp_path / "link", content)
        write_whole(Path(os.devnull), content)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"\xff"
    assert {path.name for path in tmp_path.iterdir()} == {"link", "target"}


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


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path / "link", tmp_path / "zeros", tmp_path):
        with pytest.raises(OSError, match="it is no regular file"):
            open_regular(path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "nothing")


def test_the_call_is_made_once_and_lets_go_of_what_it_needed() -> None:
    class Needed:
        pass

    needed, calls = Needed(), []
    seen = weakref.ref(needed)
    once = Once(lambda held=needed: calls.append(1) or held is not None)
    del needed
    assert not calls and seen() is not None
    assert once() and once()
    assert calls == [1] and seen() is None
