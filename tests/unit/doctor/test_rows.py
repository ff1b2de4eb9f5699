"""What `roll doctor` says of rewards on the first rows."""

import numpy as np
import pytest

from roll.doctor.rows import reward_findings
from roll.types.rollout import Task
from tests.helpers.configs import config

OPENINGS = ["", "<think>\n", "<think>\nOkay,", "[THINK]", "<|channel|>analysis<|message|>"]
FORM = r".*</think>.*$"


@pytest.mark.parametrize(
    ("opening", "form"), [*((opening, None) for opening in OPENINGS), *((opening, FORM) for opening in OPENINGS[1:3])]
)
def test_a_reference_answer_is_behind_the_thinking_that_the_prompt_opens(opening: str, form: str | None) -> None:
    run = config({"rewards.math": {"reward": "math_rule", "format_pattern": form}})
    task = Task("t", "math", np.zeros(1, np.int32), f"<|assistant|>\n{opening}", {"ground_truth": "42"})
    texts = [finding.what for finding in reward_findings(run, task)]
    assert [text.split(" to the first row ")[1] for text in texts] == ["gets 0", "gets 1"]
