"""Checks at loading on weights that round as pretrained ones do: they take every right model, and find every fault."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, DynamicCache, FalconH1Config, Gemma3TextConfig, PretrainedConfig

from roll.errors import StrategyError
from roll.features.prefix_sharing import forward
from roll.features.prefix_sharing.forward import check_trees
from roll.models.exact.check import check_exact, make_exact
from roll.models.loading import DTYPES
from roll.models.sequences import check, packed_attention, tree_attention
from roll.models.sequences.check import check_packs
from roll.models.sequences.pack import Pack
from roll.models.sequences.packed_attention import use_packed_attention
from roll.models.sequences.ranks import SequenceRanks
from roll.rl.settings import log_prob_diff_threshold
from tests.helpers.configs import config
from tests.helpers.deep_model import DEEP, save_deep
from tests.helpers.processes import RankPool
from tests.helpers.real_models import real_model
from tests.parity.families.models import save_tiny
from tests.unit.models.test_packs import CPU, SHAPE, WINDOW, loaded

WIDER: dict[str, Any] = SHAPE | {"vocab_size": 512, "num_hidden_layers": 20, "hidden_size": 64}
WINDOWS = Gemma3TextConfig(**WIDER, head_dim=16, sliding_window=WINDOW)
DEEP_ONES: dict[str, PretrainedConfig] = {"deep": DEEP, "deep-windows": WINDOWS}
STATES = FalconH1Config(**WIDER, mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_n_groups=1)
DEEP_STATES = {"deep-states": STATES}
REAL = [pytest.param(name, marks=pytest.mark.slow) for name in ("smollm2", "gemma3")]


@pytest.fixture(scope="module")
def directory_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def directory(name: str) -> Path:
        if name not in DEEP_ONES | DEEP_STATES:
            return real_model(name)
        if name not in made:
            made[name] = save_deep(tmp_path_factory.mktemp(name), (DEEP_ONES | DEEP_STATES)[name])
        return made[name]

    return directory


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", [*DEEP_ONES, *REAL])
def test_right_models_are_taken(name: str, dtype: str, directory_of: Callable[[str], Path]) -> None:
    model = loaded(directory_of(name), dtype=dtype)
    use_packed_attention(model.pretrained, is_shared=True)
    with torch.no_grad():
        check_packs(model, CPU)
        check_trees(model, CPU)
        assert not any(module._forward_hooks for module in model.pretrained.modules())


@pytest.mark.parametrize("name", ["deep", *REAL[:1]])
def test_exact_passes_have_equal_bits(name: str, directory_of: Callable[[str], Path]) -> None:
    model = loaded(directory_of(name), dtype="bf16")
    make_exact(model)
    with torch.no_grad():
        check_exact(model, CPU)


def test_rounding_may_choose_another_expert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault is there whatever the tokens are, such a choice is not."""
    model = loaded(save_tiny("glm4_moe", tmp_path), dtype="bf16")
    use_packed_attention(model.pretrained, is_shared=True)
    with torch.no_grad():
        check_trees(model, CPU)
    tried = list[torch.Tensor]()

    def off(model: Any, tokens: torch.Tensor, lay: object) -> float | None:
        tried.append(tokens)
        return None if len(tried) == 3 else 0.44

    monkeypatch.setattr(check, "_off_in_trees", off)
    check_trees(model, CPU)
    assert len(tried) == 3 and not torch.equal(tried[0], tried[1])
    with pytest.raises(StrategyError, match=r"off by 44\.0%"):
        check_trees(model, CPU)


def plus_one(ends: np.ndarray, node: int) -> np.ndarray:
    return ends + (np.arange(len(ends)) == node)


def one_key_more(starts: torch.Tensor) -> torch.Tensor:
    """A row sees the last token of the row before it."""
    return torch.cat([starts[:1], starts[1:-1] - 1, starts[-1:]])


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("fault", ["one key more", "rows joined"])
@pytest.mark.parametrize("name", [*DEEP_ONES, *REAL])
def test_a_pack_whose_rows_see_each_other_is_refused(
    name: str, fault: str, dtype: str, directory_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(directory_of(name), dtype=dtype)
    use_packed_attention(model.pretrained, is_shared=True)
    attend = packed_attention._row_by_row
    wrong = {"one key more": one_key_more, "rows joined": lambda starts: starts[[0, -1]]}[fault]
    monkeypatch.setattr(
        packed_attention, "_row_by_row", lambda q, k, v, starts, *rest: attend(q, k, v, wrong(starts), *rest)
    )
    with torch.no_grad(), pytest.raises(StrategyError, match="use_sequence_packing .* a row is off by"):
        check_packs(model, CPU)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("fault", ["keys of a sibling", "no branches", "positions by place", "window"])
@pytest.mark.parametrize("name", [*DEEP_ONES, *REAL])
def test_a_tree_that_computes_other_rows_is_refused(
    name: str, fault: str, dtype: str, directory_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "window" and name != "deep-windows":
        pytest.skip("rows of a check are shorter than the windows of this model, if it has any")
    model = loaded(directory_of(name), dtype=dtype)
    use_packed_attention(model.pretrained, is_shared=True)
    attend, build = tree_attention.tree_attention, forward.tree_or_pack

    def wrong(query: Any, key: Any, value: Any, parts: Any, scaling: Any, window: int) -> torch.Tensor:
        forest = parts.forest
        node = int((forest.level == forest.level.max()).argmax())
        if fault == "window":
            return attend(query, key, value, parts, scaling, window and window + 1)
        ends = {"keys of a sibling": plus_one(forest.end, node), "no branches": forest.start[1:]}[fault]
        return attend(query, key, value, replace(parts, forest=replace(forest, end=ends)), scaling, window)

    def by_place(*given: Any, **more: Any) -> Any:
        tree = build(*given, **more)
        return replace(tree, position_ids=torch.arange(tree.position_ids.numel())[None])

    if fault == "positions by place":
        monkeypatch.setattr(forward, "tree_or_pack", by_place)
    else:
        monkeypatch.setattr(tree_attention, "tree_attention", wrong)
    with torch.no_grad(), pytest.raises(StrategyError, match="use_prefix_sharing .* a row is off by"):
        check_trees(model, CPU)


@pytest.mark.gate("bf16")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_state_that_goes_on_into_the_next_row_is_refused(
    dtype: str, directory_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_right in (True, False):
        if not is_right:
            monkeypatch.setattr(packed_attention, "reset_states", lambda model: None)
        model = loaded(directory_of("deep-states"), dtype=dtype)
        use_packed_attention(model.pretrained)
        with torch.no_grad(), nullcontext() if is_right else pytest.raises(StrategyError, match="a row is off by"):
            check_packs(model, CPU)


def checked_on_ranks(directory: Path, dtype: str, is_right: bool) -> str:
    """What `check_packs` says of rows that all ranks share; without a fault, nothing."""
    model = loaded(directory, dtype=dtype)
    use_packed_attention(model.pretrained, is_shared=True)
    attend, order = packed_attention._row_by_row, dist.get_rank()
    if not is_right and order:
        packed_attention._row_by_row = lambda q, k, v, starts, *rest: attend(q, k, v, one_key_more(starts), *rest)
    try:
        with torch.no_grad():
            assert dist.group.WORLD is not None
            check_packs(model, CPU, SequenceRanks(dist.group.WORLD, order, dist.get_world_size()))
    except StrategyError as error:
        return str(error)
    finally:
        packed_attention._row_by_row = attend
    return ""


@pytest.mark.gate("deep-bf16")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", DEEP_ONES)
def test_rows_that_ranks_share_are_taken_and_a_fault_on_one_is_refused_by_all(
    name: str, dtype: str, directory_of: Callable[[str], Path], rank_pool: Callable[[int], RankPool]
) -> None:
    assert rank_pool(2).run(checked_on_ranks, directory_of(name), dtype, True) == ["", ""]
    for said in rank_pool(2).run(checked_on_ranks, directory_of(name), dtype, False):
        assert "a row is off by" in said


@pytest.mark.gate("deep-bf16")
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", ["deep", *REAL[:1]])
def test_rounding_alone_rings_no_alarm(name: str, dtype: str, directory_of: Callable[[str], Path]) -> None:
    """Sampled token by token and scored at once, in the same dtype, log-probs differ on average by 1.2e-5, .025 and
    .080 of this deep model (fp32, fp16, bf16), by 8.8e-6, .0055 and .048 of SmolLM2."""
    directory, num_prompt, num_sampled = directory_of(name), 8, 32
    sampler = AutoModelForCausalLM.from_pretrained(directory, dtype=DTYPES[dtype])
    trainer = loaded(directory, dtype=dtype)
    use_packed_attention(trainer.pretrained)
    ids = check.ordinary_tokens(trainer, 8, num_prompt)
    mask = torch.zeros(8, num_prompt + num_sampled, dtype=torch.bool)
    mask[:, num_prompt:] = True
    torch.manual_seed(0)
    cache, sampled, told = DynamicCache(config=sampler.config), [ids], list[torch.Tensor]()
    with torch.no_grad():
        for _ in range(num_sampled):
            logits = sampler(sampled[-1], past_key_values=cache, logits_to_keep=1).logits[:, -1]
            log_probs = logits.float().log_softmax(-1)
            sampled.append(torch.multinomial(log_probs.exp(), 1))
            told.append(log_probs.gather(-1, sampled[-1]))
        rows = torch.cat(sampled, 1)
        layout = Pack.scored(rows, torch.full((8,), rows.shape[1]))
        scored = trainer.module(rows, mask, layout=layout)[0][:, num_prompt:]
    dtypes = {f"{role}.model_args.dtype": dtype for role in ("actor_train", "actor_infer")}
    assert 0 < float((scored - torch.cat(told, 1)).abs().mean()) < log_prob_diff_threshold(config(dtypes), False)
