"""Which buffer the settings make."""

from __future__ import annotations

from pathlib import Path

from roll.features.experience.modes import make_buffer, make_reader
from tests.helpers.configs import config
from tests.unit.features.experience.made import experience


def test_a_buffer_is_where_its_keys_say(tmp_path: Path) -> None:
    for mode in ("explore", "train"):
        made = config({"mode": mode, "output_dir": str(tmp_path)})
        buffer = make_buffer(made)
        assert (tmp_path / "experience" / "groups").exists()
        if mode == "explore":
            buffer.write([experience(0)])
            buffer.finish(0, [0])
        else:
            reader = make_reader(made, buffer, lambda: True)
            assert [group.group_id for group in reader.take(0).groups.groups] == [0]
