"""What every buffer of experience keeps to: groups whole, once, in order, across kills and restarts of both sides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from roll.errors import StorageError
from roll.features.experience.directory import DirectoryBuffer, Entry
from tests.unit.features.experience.made import experience, told

Open = Callable[..., DirectoryBuffer]


@pytest.fixture
def open_buffer(tmp_path: Path) -> Open:
    """Opens a further way to the same buffer, as another process has it."""
    return lambda keep=False: DirectoryBuffer(tmp_path, keep)


def test_what_is_written_is_read_whole_by_another_process(open_buffer: Open) -> None:
    writer, reader = open_buffer(), open_buffer()
    first = [experience(0), experience(2, is_kept=False), experience(1, version=3)]
    writer.write(first)
    later = experience(3, step=1, version=1)
    writer.write([later])
    assert reader.entries() == [Entry(0, 0, True, 0), Entry(0, 1, True, 3), Entry(0, 2, False, 0), Entry(1, 3, True, 1)]
    entries = reader.entries()
    found = reader.read([entries[3], entries[1]])
    assert [told(one) for one in found] == [told(later), told(first[2])]


def test_steps_are_finished_in_order_with_their_groups(open_buffer: Open) -> None:
    writer, reader = open_buffer(), open_buffer()
    assert (reader.finished(), reader.is_finished(0)) == ([], False)
    writer.write([experience(0), experience(2)])
    assert not reader.is_finished(0)
    writer.finish(0, [2, 0])
    writer.write([experience(1, step=1), experience(5, step=1)])
    writer.finish(1, [1, 5])
    writer.finish(1, [1, 5])
    assert (reader.is_finished(0), reader.is_finished(1), reader.is_finished(2)) == (True, True, False)
    assert reader.finished() == [{0, 2}, {1, 5}]


def test_a_number_is_written_once_and_never_again(open_buffer: Open) -> None:
    writer, trainer = open_buffer(), open_buffer()
    original = experience(4, version=1)
    writer.write([original])
    again = open_buffer()  # the explorer has died and samples the group anew
    again.write([experience(4, version=2), experience(5)])
    assert [entry.number for entry in trainer.entries()] == [4, 5]
    assert told(trainer.read(trainer.entries()[:1])[0]) == told(original)
    again.finish(0, [4, 5])
    trainer.release({4: 0})
    open_buffer().write([experience(4)])
    assert [entry.number for entry in open_buffer().entries()] == [5], "also when its rows are gone"


def test_released_groups_are_gone_for_good_and_others_stay(open_buffer: Open) -> None:
    writer, trainer = open_buffer(), open_buffer()
    writer.write([experience(n) for n in range(4)])
    writer.finish(0, range(4))
    entries = trainer.entries()
    trainer.release({0: 0, 2: 1})
    trainer.release({})
    assert [entry.number for entry in trainer.entries()] == [1, 3]
    assert [entry.number for entry in open_buffer().entries()] == [1, 3]
    with pytest.raises(StorageError, match="group 2"):
        trainer.read([entries[2]])
    assert open_buffer().finished() == [{0, 1, 2, 3}], "the explorer still knows of them"


def test_a_trainer_that_goes_back_finds_what_later_steps_trained_on_or_is_told_what_is_gone(open_buffer: Open) -> None:
    open_buffer().write([experience(n) for n in range(4)])
    kept = open_buffer(keep=True)
    kept.release({0: 0, 1: 1})
    kept.release({2: 2})
    back = open_buffer(keep=True)
    assert back.rewind(1) == []
    assert [entry.number for entry in back.entries()] == [1, 2, 3]
    assert [entry.number for entry in open_buffer().entries()] == [1, 2, 3]
    gone = open_buffer()
    gone.release({1: 1, 3: 2})
    assert open_buffer().rewind(2) == [3]
    assert open_buffer().rewind(3, in_use={0, 1, 2}) == [1], "of step 1, and a later one counts on it"
    assert [entry.number for entry in open_buffer().entries()] == [2], "nothing changed"
    assert open_buffer().rewind(3) == []


def test_a_group_that_was_cut_short_on_the_disk_is_not_there(tmp_path: Path) -> None:
    writer = DirectoryBuffer(tmp_path)
    writer.write([experience(0)])
    (path,) = (tmp_path / "groups").iterdir()
    (tmp_path / "groups" / f".{path.name.replace('0-000000000', '0-000000001')}.unfinished").write_bytes(b"half")
    reader = DirectoryBuffer(tmp_path)
    assert [entry.number for entry in reader.entries()] == [0]
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(StorageError, match="cannot be read"):
        reader.read(reader.entries())


@pytest.mark.parametrize("content", [b"", b"{}\n", b"[1]\n"])
def test_content_that_is_no_group_names_its_file(content: bytes, tmp_path: Path) -> None:
    buffer = DirectoryBuffer(tmp_path)
    buffer.write([experience(0)])
    (path,) = (tmp_path / "groups").iterdir()
    path.write_bytes(content)
    with pytest.raises(StorageError, match=f"{path.name} cannot be read"):
        buffer.read(buffer.entries())


@pytest.mark.parametrize("note", ["writing.json", "steps/000000.json", "trained/000001.json"])
@pytest.mark.parametrize("content", ["", "[]", "{}"])
def test_a_note_that_was_cut_short_is_named(note: str, content: str, tmp_path: Path) -> None:
    buffer = DirectoryBuffer(tmp_path)
    buffer.write([experience(0)])
    buffer.finish(0, [0])
    buffer.release({0: 0})
    (tmp_path / note).write_text(content)

    def read_all() -> object:
        other = DirectoryBuffer(tmp_path)
        other.recover()
        return other.finished(), other.entries()

    with pytest.raises(StorageError, match=f"{note} cannot be read"):
        read_all()


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        DirectoryBuffer(tmp_path / "file")
