"""What is known of processes that may end between two looks."""

from __future__ import annotations

import psutil


def name_of(process: psutil.Process) -> str:
    """Empty if it is gone."""
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def command_of(process: psutil.Process) -> list[str]:
    """Empty if it is gone."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
