"""Which Python make takes, told by `make help`."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.mark.parametrize(
    ("fit", "unfit", "taken"),
    [
        (("python3.11", "python3.12", "python3"), (), "python3.11"),
        (("python3.13", "python3"), ("python3.11", "python3.12"), "python3.13"),
        (("python3",), (), "python3"),
    ],
)
def test_make_takes_the_first_python_that_is_new_enough(
    tmp_path: Path, fit: tuple[str, ...], unfit: tuple[str, ...], taken: str
) -> None:
    for tool in ("bash", "sh", "cat", "cksum", "make"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    for name in (*fit, *unfit):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {int(name in unfit)}\n")
        (tmp_path / name).chmod(0o755)
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHON", "MAKEFLAGS", "MAKELEVEL")
    }
    shown = subprocess.run(
        ["make", "help"],
        cwd=REPOSITORY,
        env=environment | {"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"now: {taken})" in shown.stdout
