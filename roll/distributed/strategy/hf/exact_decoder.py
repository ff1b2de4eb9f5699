"""The forward passes of a batch in exact mode: one behind the other, without padding, as the trainer's are."""

from collections.abc import Sequence

import numpy as np
import torch

from roll.distributed.strategy.hf.decoder import BatchCache, Decoder, Part
from roll.models.exact.attention import exact_refusal
from roll.models.exact.check import make_exact
from roll.models.exact.products import exact_log_probs, exact_logits
from roll.models.exact.rows import ExactCache, ExactPart, ExactPass, filled
from roll.models.exact.sizes import filled_length
from roll.models.hf import TokenLogProbModel
from roll.models.loading import LoadedModel
from roll.types.media import Media


class ExactDecoder(Decoder):
    """Computes hidden states, and from them logits and log-probs, by the trainer's modules."""

    def __init__(self, loaded: LoadedModel):
        assert isinstance(loaded.module, TokenLogProbModel)
        super().__init__(loaded.pretrained)
        make_exact(loaded)
        self._module = loaded.module

    @torch.no_grad()
    def check(self) -> None:
        """Compare tokens that are computed beside cached ones with the same tokens of whole rows. StrategyError if one
        has other logits: on this machine products of few rows are other numbers than those of many."""
        rows = [(np.arange(length) * 7 + length) % self.vocab_size for length in (129, 40, 8)]
        cache, _ = self.prefill([row[:-2] for row in rows])
        for last in (-2, -1):
            ids = self.tensor(np.array([row[last] for row in rows]))
            at = self.tensor(np.array([len(row) + last for row in rows]))
            step = self.decode(ids[:, None], at[:, None], cache, np.zeros(len(rows), np.int64), None)
            _, whole = self.prefill([row[: len(row) + last + 1] for row in rows])
            if not torch.equal(step, whole):
                raise exact_refusal(
                    f"on this {self.device.type} a token beside cached ones has other logits than in its row"
                )

    def prefill(self, sequences: Sequence[np.ndarray], media: Sequence[Media] = ()) -> tuple[ExactCache, torch.Tensor]:
        lengths = np.array([len(sequence) for sequence in sequences])
        ids = self.tensor(np.concatenate(sequences).astype(np.int64))
        num_tokens = filled_length(len(ids), self.device)
        cache = ExactCache(len(sequences))
        exact = ExactPass.whole(lengths, num_tokens, self.device, cache)
        last = self.tensor(lengths.cumsum() - 1)
        logits = self._logits(ids, exact, last)
        cache.length = int(lengths.max())
        return cache, logits

    def decode(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        cache: BatchCache | ExactCache,
        starts: np.ndarray,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        assert isinstance(cache, ExactCache)
        rows = torch.arange(len(ids), device=self.device)
        logits = self._logits(ids[:, 0], ExactPass(positions[:, 0].clone(), rows, (), cache), rows)
        cache.length += 1
        return logits

    def decode_mask(self, starts: np.ndarray, num_columns: int) -> None:
        return None

    def assemble(self, parts: Sequence[Part], capacity: int) -> ExactCache:
        cache = ExactCache.joined([ExactPart(part.cache, part.rows) for part in parts])
        cache.length = max(part.length for part in parts)
        return cache

    def log_probs(self, logits: torch.Tensor, tokens: torch.Tensor, temperatures: np.ndarray) -> torch.Tensor:
        """The trainer's numbers for these tokens, at one temperature after the other (0, greedy, is 1)."""
        log_probs = torch.zeros(len(tokens), device=self.device)
        for temperature in np.unique(temperatures):
            rows = self.tensor(np.flatnonzero(temperatures == temperature))
            at = float(temperature) or 1.0
            log_probs[rows] = exact_log_probs(self._module.head, logits[rows], tokens[rows], at)
        return log_probs

    def shown(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits that tokens are drawn from."""
        return self._module.head.transform.logits(logits)

    def _logits(self, ids: torch.Tensor, exact: ExactPass, places: torch.Tensor) -> torch.Tensor:
        num_tokens = filled_length(len(ids), self.device)
        hidden = self._module.backbone(**filled(ids, exact.columns, num_tokens, exact)).last_hidden_state[0]
        return exact_logits(self._module.head, hidden[places])
