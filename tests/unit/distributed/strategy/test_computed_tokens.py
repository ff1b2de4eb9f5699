"""How many tokens a micro batch of a Hugging Face model computes, before it is cut."""

import logging
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.model import ModelArgs
from roll.errors import StrategyError
from roll.features.exact.forward import ExactPlan
from roll.features.prefix_sharing import forward
from roll.features.prefix_sharing.forward import TreePlan
from roll.models.loading import load_policy
from roll.models.sequences.forward_plan import ForwardPlan, ModelRank
from roll.types.batch import MicroBatch
from tests.helpers.cases import cases
from tests.unit.distributed.executor.test_shards import groups_of

CPU = torch.device("cpu")


def rank(sharing: str, exact: bool = False, model: Any = None) -> ModelRank:
    model = model or SimpleNamespace(vision=None)
    role = WorkerConfig(use_prefix_sharing=sharing)  # type: ignore[arg-type]
    return ModelRank(
        role, "r", 0, CPU, model, nullcontext, False, shows_pictures=False, is_exact=exact, sequence_ranks=None
    )


def passes(sharing: str, exact: bool = False) -> ForwardPlan:
    made = rank(sharing, exact)
    inner = ForwardPlan(made) if sharing == "off" else TreePlan(ForwardPlan(made), made)
    return ExactPlan(inner) if exact else inner


@cases("sharing, prompt, want")
def test_tokens_are_those_of_the_layout(sharing: str, prompt: int, want: int) -> None:
    """Rows of two groups. The layout leaves out the last token of each row."""
    rows = groups_of(4, 4, prompt=prompt)
    assert passes(sharing).computed_tokens(rows) == want
    if sharing == "off":
        return
    ids = torch.tensor([row.tolist() for row in rows])
    lengths = torch.full((8,), ids.shape[1])
    batch = MicroBatch(ids, lengths, torch.ones_like(ids, dtype=torch.bool), torch.ones(8))
    layout = passes(sharing).scored(batch)
    assert layout.arguments["input_ids"].numel() == want - 8


@pytest.mark.parametrize("exact", [False, True])
def test_exact_passes_save_tokens_and_no_pairs(exact: bool) -> None:
    """Their attention takes every row as it is: 8 rows of 49 tokens, of which two groups have 40 in common."""
    rows = groups_of(4, 4, prompt=40)
    ids = torch.tensor([row.tolist() for row in rows])
    lengths = torch.full((8,), ids.shape[1])
    made = passes("on", exact)
    made.scored(MicroBatch(ids, lengths, torch.ones_like(ids, dtype=torch.bool), torch.ones(8)))
    saved = 0 if exact else 2 * 3 * (40 * 41 // 2)
    assert made.take_shared_work() == (8 * 49, 2 * 40 + 8 * 9, saved)


@pytest.mark.parametrize("error", [StrategyError("packs"), RuntimeError("of\nkernels")], ids=["refused", "failed"])
def test_auto_goes_on_without_shared_prefixes_and_says_why_in_a_line(
    error: Exception, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*given: object) -> None:
        raise error

    args = ModelArgs(model_name_or_path=str(tiny_model_dir), dtype="fp32")
    model = load_policy(args)
    made = rank("auto", model=model)
    inner = ForwardPlan(made)
    monkeypatch.setattr(forward, "check_trees", fail)
    with caplog.at_level(logging.INFO), torch.no_grad():
        assert forward.plan(made, inner) is inner
    assert model.pretrained.config._attn_implementation == "sdpa"
    (message,) = [text for text in caplog.messages if "use_prefix_sharing" in text]
    assert message == f"r: use_prefix_sharing: auto is off here: {str(error).splitlines()[0]}"
    with pytest.raises(type(error)), torch.no_grad():
        forward.plan(rank("on", model=model), inner)
