"""The program and the tasks of agent-135m."""

import runpy
from pathlib import Path

_program = runpy.run_path(str(Path(__file__).resolve().parents[1] / "agent-135m" / "adding.py"))
play, Sums = _program["play"], _program["Sums"]
