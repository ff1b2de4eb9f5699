"""Lessons of teachers where the vocabulary is divided among ranks."""

from __future__ import annotations

from dataclasses import replace

import torch

from roll.algorithms.distillation import Distillation
from roll.distributed.strategy.megatron.vocab_parallel import VocabShare, likeliest, token_scores
from roll.errors import StrategyError
from roll.models.head_scores import Product
from roll.models.head_tiles import PLAIN
from roll.models.teacher_targets import Lesson, divergence, told_likeliest


def told_by_shares(hidden: torch.Tensor, weight: torch.Tensor, told: Distillation, share: VocabShare) -> torch.Tensor:
    """The likeliest tokens [2 k, N], as `told_likeliest` has them; `share` is at the teacher's temperature."""
    share = replace(share, vocab_size=told.vocab_size)
    return told_likeliest(*likeliest(hidden, weight, told.top_k, share)).T


def divergence_of_shares(hidden: torch.Tensor, weight: torch.Tensor, lesson: Lesson, share: VocabShare) -> torch.Tensor:
    """How far a student is from its teacher [N], the same on every rank. The gradient of `hidden` is this rank's share,
    as that of `token_scores`."""
    told = lesson.study.told
    if told.top_k:
        log_q, ids = lesson.likeliest()
        share = replace(share, vocab_size=told.vocab_size, temperature=told.divergence.temperature)
        return told.divergence.of_likeliest(token_scores(hidden, weight, ids, share)[0], log_q)
    if share.group.size() > 1:
        raise StrategyError("the whole distribution of a teacher needs the student's head whole on a rank")
    products = [Product(hidden, weight[: share.vocab_size])]
    return divergence(products, None, PLAIN, lesson, share.logits_per_chunk, compiled=False)
