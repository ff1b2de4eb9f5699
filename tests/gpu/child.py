"""One check in its process: `python -m tests.gpu.child FUNCTION ARGUMENTS DEVICE DEVICES DIRECTORY`, as the runner
starts it. The answer is in DIRECTORY/answer.json: figures, or what was raised."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from roll.utils.imports import resolve
from tests.gpu.place import CannotRun, Place

# As tests/conftest.py has them: before torch, Ray or transformers are imported.
ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
}


_NOT_A_CAUSE = "no answer after the first failure"  # what a rank says that waited for one that failed


def main(function: str, arguments: str, device: str, devices: str, directory: str) -> None:
    os.environ.update(ENVIRONMENT)
    os.environ["OMP_NUM_THREADS"] = "1" if device == "cpu" else "4"
    faulthandler.register(signal.SIGUSR1)  # how the runner asks a check that takes too long where it is
    try:
        check = resolve(function)
        place = Place(device, tuple(devices.split(",")), Path(directory))  # type: ignore[arg-type]
        figures = check(place, **json.loads(arguments))  # type: ignore[operator]
        answer: dict[str, Any] = {"figures": {name: float(value) for name, value in figures.items()}}
    except CannotRun as reason:
        answer = {"skipped": str(reason)}
    except BaseException as error:  # a failure of pytest's is no Exception
        traceback.print_exc()
        text = str(error).strip() or type(error).__name__
        lines = [line for line in text.splitlines() if line.strip() and _NOT_A_CAUSE not in line]
        answer = {"error": f"{type(error).__name__}: {(lines or [text])[-1]}"}
    partial = Path(directory) / "answer.partial"
    partial.write_text(json.dumps(answer))
    partial.rename(Path(directory) / "answer.json")
    sys.stdout.flush()
    os._exit(0)  # what is left of an engine is the runner's to end


if __name__ == "__main__":
    main(*sys.argv[1:])
