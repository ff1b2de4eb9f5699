"""What fsdp2_train saves of pretrained weights: it resumes to the bit, and transformers and `roll chat` read it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.helpers.processes import RankPool
from tests.helpers.real_models import real_model
from tests.parity.strategies.reference import TEMPERATURE, naive_log_probs
from tests.parity.strategies.runs import Run
from tests.real import ranks
from tests.real.texts import rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
LIMIT_S = 600.0


def test_a_checkpoint_resumes_to_the_bit_and_its_model_answers(
    rank_pool: Callable[[int], RankPool], tmp_path: Path
) -> None:
    """Small updates, as a run makes them, so that the model still answers."""
    given = rows(real_model("smollm2"))
    run = Run(real_model("smollm2"), fsdp2={}, given=given, training={"learning_rate": 1e-5})
    scores, whole = rank_pool(1).run(ranks.save_and_go_on, run, tmp_path, timeout_s=LIMIT_S)[0]
    assert whole == rank_pool(1).run(ranks.load_and_go_on, run, tmp_path, timeout_s=LIMIT_S)[0]

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        gaps = [
            np.abs(naive_log_probs(model, row, TEMPERATURE)[0][0].numpy() - scores[i]) for i, row in enumerate(given)
        ]
    assert max(gap.max() for gap in gaps) < 1e-4

    options = ["--temperature", "0", "--max_new_tokens", "24"]
    command = [sys.executable, "-m", "roll", "chat", str(tmp_path / "model"), *options]
    done = subprocess.run(
        command, input="What is 3 + 4?\n", capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    assert "3 + 4 = 7" in done.stdout
