"""Weight updates of SGLang's models, without an engine."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from roll.distributed.strategy.sglang.scheduler import WeightUpdate
from roll.errors import StrategyError


class Runner:
    """SGLang's runner of one model, as far as an update asks it."""

    def __init__(self, layer: nn.Module):
        self.model = nn.ModuleDict({"layer": layer})
        self.model.config = SimpleNamespace(tie_word_embeddings=False)  # type: ignore[assignment]
        self.weight_updater = self
        self.begun = 0

    def begin_weight_update(self) -> None:
        self.begun += 1


def update_of(runner: Runner, folder: Path) -> WeightUpdate:
    def runners() -> Iterator[Runner]:
        yield runner

    return WeightUpdate(runners, 0, str(folder), torch.device("cpu"))


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("_derived_weight_cache_error", "It keeps one-time copies.", "It keeps one-time copies."),
        ("_hc_attn_bf16_parts", (1, 2), "SGLANG_OPT_DEEPGEMM_HC_PRENORM=0"),
    ],
)
def test_a_model_that_computes_with_copies_of_its_weights_gets_no_update(
    field: str, value: object, reason: str, tmp_path: Path
) -> None:
    """SGLang refuses the same in its own calls: the fused indexer on gfx950, DeepSeek-V4's split projections."""
    layer = nn.Linear(1, 1)
    runner = Runner(layer)
    update = update_of(runner, tmp_path)
    update.begin(True)
    assert runner.begun == 1
    setattr(layer, field, value)
    with pytest.raises(StrategyError, match=f"sglang cannot update this model: .*{reason}"):
        update_of(runner, tmp_path).begin(True)
    assert runner.begun == 1, "nothing was written"
