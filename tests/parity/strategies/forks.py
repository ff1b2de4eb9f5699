"""Rows that begin alike, as answers to a prompt and the turns of an episode do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional

from roll.types.batch import MicroBatch
from tests.parity.strategies.reference import rows

PROMPT, THOUGHT = 40, 36


def forks(vocab_size: int = 296) -> list[MicroBatch]:
    """The rows of `reference.rows` behind one prompt, and from row 4 on behind a thought as well, which the policy
    sampled: its tokens are trained in each of these rows, with advantages of its own, and so is the token behind it,
    which differs. Rows 6 and 7 have the tokens of rows 4 and 5, as far as both go: a row is the beginning of another
    one."""
    generator = np.random.default_rng(5)
    prompt, thought = (torch.from_numpy(generator.integers(3, vocab_size, n)) for n in (PROMPT, THOUGHT))
    made = rows(vocab_size=vocab_size)
    found = []
    for at, row in enumerate(made):
        thinks = at >= 4
        before = torch.cat([prompt, thought]) if thinks else prompt
        own = row.input_ids[0]
        if at >= 6:  # the same tokens as two rows before, as far as both go
            other = made[at - 2].input_ids[0]
            common = min(len(own), len(other))
            own = torch.cat([other[:common], own[common:]])
        end = len(before) + thinks  # of what is trained beside the row's own
        mask = torch.cat([torch.zeros(len(before), dtype=torch.bool), row.response_mask[0]])
        mask[PROMPT:end] = True

        def longer(
            values: torch.Tensor | None, of_thought: float, extra: int = len(before), end: int = end
        ) -> torch.Tensor:
            assert values is not None
            padded = functional.pad(values, (extra, 0))
            padded[0, PROMPT:end] = of_thought
            return padded

        found.append(
            replace(
                row,
                input_ids=torch.cat([before, own])[None],
                lengths=row.lengths + len(before),
                response_mask=mask[None],
                rollout_log_probs=longer(row.rollout_log_probs, -5.5),
                advantages=longer(row.advantages, 0.25 * at - 1),
                returns=longer(row.returns, 0.1 * at),
            )
        )
    return found
