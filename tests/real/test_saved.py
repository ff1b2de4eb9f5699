"""What is saved of pretrained weights: trainer and run resume to the bit, and transformers and `roll chat` read it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.helpers.processes import RankPool
from tests.helpers.real_models import gguf_file, real_model
from tests.helpers.runs import REPOSITORY, comparable, run_starter
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


def test_a_run_resumes_to_the_bit(tmp_path: Path) -> None:
    """In bf16, with shared prefixes: the recipe's settings, on fewer questions."""
    pytest.importorskip("reasoning_gym", reason="the rows are made by reasoning-gym")
    size = ("rollout_batch_size=2", "actor_train.training_args.per_device_train_batch_size=16", "eval_steps=-1")
    recipe = REPOSITORY / "examples/reproduce/sums-135m"
    options = (*size, f"pretrain={gguf_file('smollm2')}", "max_steps=3", "save_steps=1")
    with run_starter(tmp_path) as start:
        whole = start(tmp_path, "recipe", *options, name="whole", example=recipe)
        assert whole.wait(LIMIT_S) == 0, whole.text
        saved = whole.output_dir / "checkpoints/step_000001"
        again = start(tmp_path, "recipe", *options, f"resume_from_checkpoint={saved}", name="again", example=recipe)
        assert again.wait(LIMIT_S) == 0, again.text
        for step in (2, 3):
            assert comparable(again.metrics[step]) == comparable(whole.metrics[step])
        assert any(row["actor/grad_norm"] > 0 for row in whole.metrics.values())
