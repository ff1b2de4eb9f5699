"""Folders that nobody may enter, also for tests that run as root."""

import os
from pathlib import Path
from typing import Any

import pytest


def hide(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes looking below a directory fail as it does for a user without permission to enter it."""
    stat = os.stat

    def without_permission(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if isinstance(path, str | Path) and directory in Path(path).parents:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", without_permission)
