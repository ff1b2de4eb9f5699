"""A process that owns a rollout engine of two workers, reports what it saw as one line of JSON, and is killed.

Run as `python -m tests.integration.rollout_engines.owner ENGINE MODEL_DIRECTORY SCRATCH_DIRECTORY`.
"""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

from tests.helpers.engines import EngineHarness, changed_model, engine_processes, forward_log_probs, prompt


def largest_difference(harness: EngineHarness) -> float:
    """Between the engine's log-probs and a plain forward pass with the weights it should have."""
    requests = [harness.request(prompt(length), 2) for length in (200, 17)]
    return max(
        float(np.abs(answer.log_probs - forward_log_probs(harness.model, request.prompt_ids, answer.token_ids)).max())
        for request, answers in zip(requests, harness.generate(*requests), strict=True)
        for answer in answers
    )


def main(engine: str, model_dir: Path, scratch: Path) -> None:
    harness = EngineHarness(engine, model_dir, num_gpus_per_worker=2)
    differences = {"start": largest_difference(harness)}
    for number, route in enumerate(("memory", "broadcast", "file")):
        harness.run(harness.update(changed_model(model_dir, number), route, scratch))
        differences[route] = largest_difference(harness)
    pids = [process.pid for process in engine_processes()]
    report = {"receivers": harness.engine.num_weight_receivers, "differences": differences, "pids": pids}
    print(json.dumps(report), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
