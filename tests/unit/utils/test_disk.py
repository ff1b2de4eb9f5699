"""Full disks are named, whatever a library makes of them."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from roll.errors import StorageError
from roll.utils import files as disk
from roll.utils.files import naming_full_disk, write_whole


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


def test_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), naming_full_disk(tmp_path):
        raise PermissionError("no")


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


def test_a_link_to_itself_is_no_place_for_a_file(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        write_whole(tmp_path / "loop", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["loop"]


def test_a_file_is_written_where_a_link_leads_and_into_a_device(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    for content in ("ä", b"\xff"):
        write_whole(tmp_path / "link", content)
        write_whole(Path(os.devnull), content)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"\xff"
    assert {path.name for path in tmp_path.iterdir()} == {"link", "target"}
