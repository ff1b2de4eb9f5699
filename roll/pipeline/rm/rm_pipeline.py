"""Reward-model training: the reward of the better answer is to be the larger one (Bradley-Terry)."""

import numpy as np
import torch

from roll.algorithms.preference import BradleyTerryLoss
from roll.distributed.executor.step_rows import rows_of_scores
from roll.models.hub import local_model
from roll.models.loading import model_config, padding_token
from roll.pipeline.rm.rm_config import RMConfig
from roll.pipeline.rows.row_pipeline import PairPipeline
from roll.types.batch import PairRows, Rows
from roll.types.metrics import MetricSums


class RMPipeline(PairPipeline):
    """The reward is the value behind the last token of a row that is not the padding token, up to the end of the
    answer: where Hugging Face's sequence classification reads it."""

    config: RMConfig
    loss: BradleyTerryLoss = BradleyTerryLoss()

    def as_rows(self, pairs: PairRows) -> PairRows:
        return read_at_the_end(pairs, self._padding_token())

    def _padding_token(self) -> int:
        args = local_model(self.config.reward_train.model_args)
        return padding_token(args, model_config(args))

    def judged(self, pairs: PairRows) -> MetricSums:
        with self.running.placement.hold(self.trainer.weights):
            scores = rows_of_scores(self.trainer.values(self.to_score(pairs, self.trainer)))
        rewards = np.array([scores[row][-1] for row in range(len(pairs))], np.float64)
        return self.loss.of_rows(torch.from_numpy(rewards), torch.from_numpy(pairs.margins))[1]


def read_at_the_end(pairs: PairRows, padding: int) -> PairRows:
    """The same rows up to the last token that counts, and one token more, at which alone the loss looks: its value is
    that of the state before it. No model sees it."""
    ids, masks = [], []
    for tokens, learnt in zip(*(np.split(v, np.cumsum(pairs.lengths)[:-1]) for v in _of_tokens(pairs)), strict=True):
        counted = np.flatnonzero(tokens[: int(np.flatnonzero(learnt)[-1]) + 1] != padding)
        row = [*tokens[: int(counted[-1]) + 1].tolist(), padding]
        ids.append(row)
        masks.append([False] * (len(row) - 1) + [True])
    return PairRows(**vars(Rows.of(ids, masks, pairs.media)), margins=pairs.margins)


def _of_tokens(pairs: PairRows) -> tuple[np.ndarray, np.ndarray]:
    return pairs.input_ids, pairs.response_mask
