"""docs/tutorial.md as a newcomer follows it: its files and its commands, as they stand on the page, in a folder of
their own."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.runs import REPOSITORY, START_LIMIT_S
from tests.helpers.tutorial import check_outcome, follow


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Of a user at whose home lies this checkout, with the environment of the tests active."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "roll").symlink_to(REPOSITORY)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as temporary:  # short: Ray's sockets go below
        yield os.environ | {"HOME": str(home), "PATH": path, "TMPDIR": temporary, "PYTHONPATH": str(REPOSITORY)}


@pytest.mark.slow
@pytest.mark.timeout(4 * START_LIMIT_S)
def test_every_block_of_the_tutorial_does_what_the_page_says(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    check_outcome(folder, follow(folder, environment))
