"""What a worker reports when it fails, and how several failures become one error with the root cause first."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from roll.errors import WorkerError, describe

# What the other ranks say when one of them is gone: consequences, not causes.
_CONSEQUENCES = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "timed out waiting",
    "distbackenderror",
    "distnetworkerror",
    "socket timeout",
    "nccl communicator was aborted",
)


@dataclass(frozen=True)
class Failure:
    """One failed call, as plain text: an exception may hold what does not travel between processes."""

    rank: int
    message: str
    details: str = ""
    died: bool = False
    elsewhere: bool = False  # what failed is another worker, which the message names

    @staticmethod
    def of(error: BaseException, rank: int) -> Failure:
        details = "".join(traceback.format_exception(error))  # bears exceptions that have no text
        if isinstance(error, WorkerError):
            return Failure(rank, str(error), details, elsewhere=True)
        return Failure(rank, describe(error), details)

    @property
    def is_consequence(self) -> bool:
        text = self.message.lower()
        return not self.died and any(sign in text for sign in _CONSEQUENCES)


def worker_error(role: str, method: str, failures: Sequence[Failure]) -> WorkerError:
    """One error for the failures of one call, root cause first: a dead worker, then what is no mere consequence, then
    rank."""
    ordered = sorted(failures, key=lambda f: (not f.died, f.is_consequence, not f.elsewhere, f.rank))
    first = ordered[0]
    what = "died" if first.died else "failed"
    text = first.message if first.elsewhere else f"{role} rank {first.rank} {what} in {method}: {first.message}"
    if len(ordered) > 1:
        text += "; then " + "; ".join(f"rank {f.rank}: {f.message.splitlines()[0][:200]}" for f in ordered[1:4])
    error = WorkerError(text)
    if first.details:
        error.add_note(f"In {role} rank {first.rank}:\n{first.details}")
    return error
