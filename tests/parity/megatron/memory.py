"""How much a rank's memory grows while it saves and loads. Module-level, because it travels to the ranks by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.helpers.memory import growth
from tests.parity.megatron.ranks import Run, one_update, tensors_of_optimizer, trainer


@dataclass(frozen=True)
class Peaks:
    """Bytes that a rank's memory grew by, at most, while it saved and while it loaded; and what its share of the
    optimizer's state takes."""

    save: int
    load: int
    share: int


def memory_of_a_checkpoint(run: Run, directory: Path) -> Peaks:
    with trainer(run) as strategy:
        one_update(strategy, run)
        share = sum(tensor.numel() * tensor.element_size() for tensor in tensors_of_optimizer(strategy))
        saved = growth(lambda: strategy.save_checkpoint(directory))
        loaded = growth(lambda: strategy.load_checkpoint(directory))
        return Peaks(saved, loaded, share)
