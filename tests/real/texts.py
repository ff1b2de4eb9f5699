"""Real text for pretrained models: the license of this repository, and two questions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoTokenizer

from roll.types.batch import MicroBatch

REPOSITORY = Path(__file__).resolve().parents[2]

LONGER_THAN_A_WINDOW = 600  # tokens; Gemma-3's windows are 512 wide
QUESTIONS = ("What is 3 + 4?", "Name the capital of France, and say in one sentence why it is famous.")


def has_windows(directory: Path) -> bool:
    return getattr(AutoConfig.from_pretrained(directory), "sliding_window", None) is not None


def text_ids(directory: Path) -> np.ndarray:
    """The license's tokens by the model's tokenizer."""
    text = (REPOSITORY / "LICENSE").read_text()
    return np.array(AutoTokenizer.from_pretrained(directory)(text).input_ids, np.int32)


def prompts(directory: Path) -> list[np.ndarray]:
    """Two questions, by the model's template if it has one, and a text, longer than the windows if there are any."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    asked = []
    for question in QUESTIONS:
        text = f"Question: {question}\nAnswer:"
        if tokenizer.chat_template:
            messages = [{"role": "user", "content": question}]
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        asked.append(np.array(tokenizer(text, add_special_tokens=not tokenizer.chat_template).input_ids, np.int32))
    return [*asked, text_ids(directory)[: LONGER_THAN_A_WINDOW if has_windows(directory) else 100]]


def rows(directory: Path) -> list[MicroBatch]:
    """Eight single rows of 16 to 72 tokens of the text, the second half of each a response, at most 32 tokens. The last
    one is longer than the windows, if there are any."""
    generator, ids = np.random.default_rng(0), text_ids(directory)
    made = []
    for row in range(8):
        length = LONGER_THAN_A_WINDOW if has_windows(directory) and row == 7 else 16 + 8 * row
        num_response = min(length // 2, 32)
        mask = np.arange(length) >= length - num_response

        def per_token(low: float, high: float, mask: np.ndarray = mask) -> torch.Tensor:
            return torch.from_numpy((generator.uniform(low, high, len(mask)) * mask).astype(np.float32))[None]

        made.append(
            MicroBatch(
                input_ids=torch.from_numpy(ids[100 * row :][:length].astype(np.int64))[None],
                lengths=torch.tensor([length]),
                response_mask=torch.from_numpy(mask)[None],
                loss_weights=torch.ones(1),
                rollout_log_probs=per_token(-3, -2),
                advantages=per_token(-2, 2),
            )
        )
    return made
