"""Which buffer the settings make."""

from __future__ import annotations

from pathlib import Path

import pytest

from roll.rl.experience.directory import DirectoryBuffer
from roll.rl.experience.sql import SqlBuffer
from roll.rl.modes import make_buffer, make_reader
from tests.helpers.configs import config
from tests.unit.rl.experience.made import experience


@pytest.mark.parametrize(
    ("keys", "kind", "place"),
    [
        ({}, DirectoryBuffer, "experience/groups"),
        ({"storage_type": "file", "format": "parquet"}, DirectoryBuffer, "experience/groups"),
        ({"storage_type": "sql"}, SqlBuffer, "experience/experience.db"),
    ],
)
def test_a_buffer_is_where_its_keys_say(keys: dict[str, object], kind: type, place: str, tmp_path: Path) -> None:
    for mode in ("explore", "train"):
        made = config({"mode": mode, "output_dir": str(tmp_path), "experience": keys})
        buffer = make_buffer(made)
        assert isinstance(buffer, kind) and (tmp_path / place).exists()
        if mode == "explore":
            buffer.write([experience(0)])
            buffer.finish(0, [0])
        else:
            reader = make_reader(made, buffer, lambda: True)
            assert [group.group_id for group in reader.take(0).groups.groups] == [0]
        buffer.close()


def test_a_database_of_its_own_is_taken_by_its_address(tmp_path: Path) -> None:
    keys = {"storage_type": "sql", "url": f"sqlite:///{tmp_path}/mine.db"}
    make_buffer(config({"mode": "train", "output_dir": str(tmp_path / "out"), "experience": keys})).close()
    assert (tmp_path / "mine.db").exists()
