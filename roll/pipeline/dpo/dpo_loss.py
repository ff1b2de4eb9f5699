"""Log-probs of a model that does not change: computed once, and kept."""

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from roll.configs.sections.model import ModelArgs
from roll.errors import StrategyError
from roll.types.batch import Rows
from roll.types.columns import token_indices

logger = logging.getLogger(__name__)

FILE = "reference_log_probs.npz"


def name_of(args: ModelArgs) -> str:
    """A model, with what of its settings decides its log-probs."""
    changed = (f", {key}: {value}" for key, value in sorted(args.model_config_kwargs.items()))
    return f"{args.model_name_or_path} ({args.dtype}{''.join(changed)})"


class CachedLogProbs:
    """Log-probs of rows, cached by row number. `model`: the model that computed them."""

    def __init__(self, rows: Rows, model: str):
        self._rows, self._model = rows, model
        self._values = np.zeros(rows.num_tokens, np.float32)
        self._is_there = np.zeros(len(rows), bool)

    def missing(self, places: np.ndarray) -> np.ndarray:
        """Return the rows among these whose log-probs are still missing, each once."""
        return np.unique(places[~self._is_there[places]])

    def store(self, places: np.ndarray, log_probs: Mapping[int, np.ndarray]) -> None:
        """Store the log-probs of rows. `log_probs`: those of each row, by where it stands in `places`."""
        values = np.concatenate([log_probs[row] for row in range(len(places))])
        if not np.isfinite(values).all():
            raise StrategyError(f"the reference {self._model} returns log-probs that are not finite")
        self._values[token_indices(self._rows.lengths, places)] = values
        self._is_there[places] = True

    def of(self, places: np.ndarray) -> np.ndarray:
        """Flat, row after row."""
        return self._values[token_indices(self._rows.lengths, places)]

    def save(self, directory: Path) -> None:
        values = self._values[self._rows.response_mask]
        np.savez(directory / FILE, values=values, is_there=self._is_there, model=np.array(self._model))

    def load(self, directory: Path) -> None:
        """Load the saved log-probs of the same rows. That of another model is left; a run without reference saved
        nothing."""
        if not (directory / FILE).is_file():
            logger.warning("there is no %s: computing the log-probs of %s again", directory / FILE, self._model)
            return
        with np.load(directory / FILE, allow_pickle=False) as saved:
            if str(saved["model"]) != self._model:
                logger.warning(
                    "the log-probs in %s are from %s, but the reference is %s now: computing them again",
                    directory / FILE,
                    saved["model"],
                    self._model,
                )
                return
            self._values[self._rows.response_mask], self._is_there = saved["values"], saved["is_there"]
