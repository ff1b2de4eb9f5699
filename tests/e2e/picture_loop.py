"""Reinforcement learning on rows with pictures as a plain loop: transformers' model and processor, torch's AdamW, one
row at a time; nothing of roll computes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageTextToText

from roll.types.group_codec import RecordedGroup, read_groups


class PlainLoop:
    """GRPO's advantages, the clipped loss, every token of an update alike, some epochs over the rows of a step."""

    def __init__(self, model_dir: Path, rate: float, epochs: int, clip: float = 0.2, max_norm: float = 1.0):
        options: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager"}
        self.model: Any = AutoModelForImageTextToText.from_pretrained(model_dir, **options)
        self.model.eval()
        self._processor = AutoImageProcessor.from_pretrained(model_dir)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate, betas=(0.9, 0.99), weight_decay=0.0)
        self._epochs, self._clip, self._max_norm = epochs, clip, max_norm
        self.norms: list[float] = []  # of every update's gradient

    def learn(self, groups: Sequence[RecordedGroup]) -> None:
        """One step, on the groups that a run has sampled for it."""
        rows = [row for group in groups for row in group.trajectories]
        advantages = np.concatenate([_advantages([row.reward for row in group.trajectories]) for group in groups])
        num_tokens = sum(int(row.response_mask.sum()) for row in rows)
        with torch.no_grad():
            old = [self._log_probs(row) for row in rows]
        for _ in range(self._epochs):
            self._optimizer.zero_grad()
            for row, advantage, before in zip(rows, advantages.tolist(), old, strict=True):
                ratio = (self._log_probs(row) - before).exp()
                clipped = ratio.clamp(1 - self._clip, 1 + self._clip)
                (-torch.minimum(ratio * advantage, clipped * advantage).sum() / num_tokens).backward()
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._max_norm)
            self.norms.append(float(norm))
            self._optimizer.step()

    def _log_probs(self, row: Any) -> torch.Tensor:
        """Of the tokens that were sampled. A picture is opened where its row says, and stands where the row has its
        tokens."""
        ids = torch.from_numpy(row.input_ids.astype(np.int64))[None]
        given: dict[str, Any] = {}
        if row.media:
            images = [Image.open(shown.picture.source.place).convert("RGB") for shown in row.media]
            given = dict(self._processor(images=images, return_tensors="pt"))
            types = torch.zeros_like(ids)
            for shown in row.media:
                types[0, shown.start : shown.start + shown.length] = 1
            given["mm_token_type_ids"] = types
        self.model.model.rope_deltas = None  # of another row
        scores = self.model(input_ids=ids, **given).logits[0, :-1].log_softmax(-1)
        return scores.gather(1, ids[0, 1:, None])[:, 0][torch.from_numpy(row.response_mask[1:].astype(bool))]


def _advantages(rewards: Sequence[float]) -> np.ndarray:
    """By the group's mean and sample deviation."""
    values = np.array(rewards, np.float64)
    deviation = values.std(ddof=1)
    return (values - values.mean()) / (deviation + 1e-6 if deviation else 1.0)


def recorded(folder: Path) -> list[list[RecordedGroup]]:
    """The groups of each step, in order."""
    return [list(read_groups(path)) for path in sorted(folder.glob("step_*.npz"))]
