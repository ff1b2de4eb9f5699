"""What the supervisor of `roll run --max_restarts` notes of the ends of a run."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

RESTARTS_FILE = "restarts.jsonl"


class Restart(BaseModel):
    """A line of the file: an end that was not the last word, or that a restart would not have changed. `time` in ISO
    8601, UTC; `start` counts the starts under this supervisor; `checkpoints` are the newest ones; `restarts_in_s` is
    None where the run is not started again."""

    model_config = ConfigDict(frozen=True)

    time: str
    start: int
    exit_code: int
    signal: str | None
    ran_s: float
    checkpoints: tuple[str, ...]
    restarts_without_progress: int
    restarts_in_s: float | None
    last_lines: tuple[str, ...]
