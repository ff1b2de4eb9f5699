"""Exact log-probs: the same bits for a token beside any other rows, in any order, and beside cached keys; and the
values and gradients of the plain model."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPTJConfig,
    Lfm2Config,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from roll.distributed.strategy.hf.exact_decoder import ExactDecoder
from roll.errors import StrategyError
from roll.models.exact import sizes
from roll.models.exact.attention import exact_attention, use_exact_attention
from roll.models.exact.check import check_exact, make_exact
from roll.models.exact.experts import use_exact_experts
from roll.models.exact.products import EXACT_HEAD, exact_log_probs, exact_logits
from roll.models.exact.rows import ExactCache, ExactPart, ExactPass, ExactRows, filled
from roll.models.hf import LogProbHead, TokenLogProbModel
from roll.models.loading import LoadedModel
from roll.models.sequences.layout import Padded
from roll.models.sequences.pack import Pack
from roll.models.sequences.tree import Tree, tree_or_pack

_VOCABULARY, _TEMPERATURE = 298, 0.7  # no multiple of 4: the head has tiles with remainders
_LENGTHS = torch.tensor([260, 7, 2, 130, 129, 128, 17, 64])
_SHAPE: dict[str, object] = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 180,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.1,
}
_WINDOW: dict[str, object] = {"sliding_window": 40, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS: dict[str, object] = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 44,
    "head_dim": 16,
}
FAMILIES: dict[str, PretrainedConfig] = {
    "qwen2": Qwen2Config(**_SHAPE),  # type: ignore[arg-type]
    "llama": LlamaConfig(**_SHAPE),  # type: ignore[arg-type]
    "qwen3": Qwen3Config(head_dim=16, **_SHAPE),  # type: ignore[arg-type]
    "gemma3": Gemma3TextConfig(head_dim=32, **_WINDOW, **_SHAPE),  # type: ignore[arg-type]
    "qwen3_moe": Qwen3MoeConfig(**_EXPERTS, **_SHAPE),  # type: ignore[arg-type]
}


class _Tried:
    """A model and rows of tokens, with what it says of them all together."""

    def __init__(self, family: str, dtype: torch.dtype = torch.float32, exact: bool = True):
        torch.manual_seed(0)
        self.model: PreTrainedModel = AutoModelForCausalLM.from_config(deepcopy(FAMILIES[family])).to(dtype)
        self.module = TokenLogProbModel(self.model.base_model, LogProbHead(self.model.get_output_embeddings()))  # type: ignore[arg-type]
        self.ids = torch.randint(0, _VOCABULARY, (len(_LENGTHS), int(_LENGTHS.max())))
        self.mask = torch.arange(self.ids.shape[1]) < _LENGTHS[:, None]
        if exact:
            use_exact_attention(self.model)
            assert use_exact_experts(self.model) is None
            self.module.head.form = EXACT_HEAD

    def scores(self, chosen: Sequence[int], temperature: float = _TEMPERATURE, entropy: bool = False) -> torch.Tensor:
        lengths = _LENGTHS[list(chosen)]
        width = int(lengths.max())
        ids, mask = self.ids[list(chosen), :width], self.mask[list(chosen), :width]
        return self.module(ids, mask, temperature, entropy, ExactRows.of(Pack.scored(ids, lengths)))[0]

    def differing(self, chosen: Sequence[int], whole: torch.Tensor, **options: bool) -> int:
        """Tokens of these rows whose log-prob is another number than in `whole`, of all rows."""
        scores = self.scores(chosen, **options)
        lengths = _LENGTHS.tolist()
        return sum(
            int((scores[at, : lengths[row]] != whole[row, : lengths[row]]).sum()) for at, row in enumerate(chosen)
        )

    def differing_cached(self, chosen: Sequence[int], counts: Sequence[int], whole: torch.Tensor) -> int:
        """The same where `counts` tokens of each row are computed at once, and the others one by one."""
        lengths, cache = np.array(counts), ExactCache(len(chosen))
        flat = torch.cat([self.ids[row, :count] for row, count in zip(chosen, counts, strict=True)])
        full = sizes.filled_length(len(flat), flat.device)
        hidden = self._hidden(flat, ExactPass.whole(lengths, full, torch.device("cpu"), cache))
        hidden, number = hidden[torch.from_numpy(lengths.cumsum() - 1)], 0
        while bool((lengths < _LENGTHS[list(chosen)].numpy()).any()):
            at = np.minimum(lengths, _LENGTHS[list(chosen)].numpy() - 1)
            tokens, head = self.ids[list(chosen), at], self.module.head
            scores = exact_log_probs(head, exact_logits(head, hidden), tokens, _TEMPERATURE)
            is_new = torch.from_numpy(lengths == at)
            number += int(((scores != whole[list(chosen), at]) & is_new).sum())
            step = ExactPass(torch.from_numpy(lengths.copy()), torch.arange(len(chosen)), (), cache)
            hidden = self._hidden(tokens, step)[: len(chosen)]
            lengths = lengths + 1
        return number

    def _hidden(self, ids: torch.Tensor, exact: ExactPass) -> torch.Tensor:
        full = sizes.filled_length(len(ids), ids.device)
        return self.module.backbone(**filled(ids, exact.columns, full, exact)).last_hidden_state[0]


_ALL = range(len(_LENGTHS))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_have_the_same_bits_alone_beside_others_and_beside_a_cache(family: str, dtype: torch.dtype) -> None:
    """Whole rows against each alone, seeded random batches of them (with a row twice), with entropy, and rows that
    grow token by token from prefills of 1 to 128 tokens, alone and side by side."""
    tried, draw = _Tried(family, dtype), np.random.default_rng(0)
    with torch.no_grad():
        whole = tried.scores(_ALL)
        batches = [[row] for row in _ALL] + [draw.integers(0, len(_LENGTHS), size).tolist() for size in (2, 3, 5, 9)]
        assert [tried.differing(batch, whole) for batch in batches] == [0] * len(batches)
        assert tried.differing([3, 1], whole, entropy=True) == 0
        assert tried.differing_cached([3, 4, 1, 7], [37, 128, 3, 1], whole) == 0
        assert tried.differing_cached([7], [1], whole) == 0


def forked() -> tuple[torch.Tensor, torch.Tensor]:
    """Rows [7, T] and lengths: a prompt with two answers, one of them twice, one cut at once and one longer than a
    block of keys; its beginning; a row that shares nothing."""
    draw = torch.Generator().manual_seed(3)
    lengths = torch.tensor([170, 150, 170, 60, 90, 30, 41])
    ids = torch.randint(0, _VOCABULARY, (7, 170), generator=draw)
    ids[1:6, :60] = ids[0, :60]
    ids[2], ids[4, :90], ids[5] = ids[0], ids[0, :90], ids[0]
    ids[4, 85:] = ids[6, 85:]
    return ids, lengths


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_a_tree_have_the_bits_and_the_gradients_of_rows_alone(family: str, dtype: torch.dtype) -> None:
    """Tokens that rows have in common are computed once, and windows need not hold a row. Gradients differ by the order
    of sums: of the largest 1e-5 in fp32 (eps is 1.2e-7) and 5e-2 in bf16 (.008)."""
    (ids, lengths), gradients = forked(), []
    mask = torch.arange(170) < lengths[:, None]
    weights = torch.randn(mask.shape, generator=torch.Generator().manual_seed(1)) * mask
    tree, tried = tree_or_pack(ids, lengths - 1, least_saved=0), _Tried(family, dtype)
    assert isinstance(tree, Tree) and tree.input_ids.shape[1] < 0.6 * int((lengths - 1).sum())
    scores = tried.module(ids, mask, _TEMPERATURE, True, ExactRows.of(tree))
    for row, length in enumerate(lengths.tolist()):
        pack = Pack.scored(ids[row : row + 1, :length], lengths[row : row + 1])
        alone = tried.module(
            ids[row : row + 1, :length], mask[row : row + 1, :length], _TEMPERATURE, True, ExactRows.of(pack)
        )
        assert torch.equal(alone[0][0], scores[0][row, :length]), row
        torch.testing.assert_close(alone[1][0], scores[1][row, :length])
        (alone[0][0] * weights[row, :length]).sum().backward()
    for case in range(2):
        gradients.append({name: p.grad.float() for name, p in tried.model.named_parameters() if p.grad is not None})
        tried.model.zero_grad()
        if not case:
            (scores[0] * weights).sum().backward()
    largest = max(float(gradient.abs().max()) for gradient in gradients[0].values())
    for name, gradient in gradients[0].items():
        off = float((gradients[1][name] - gradient).abs().max())
        assert off < (1e-5 if dtype == torch.float32 else 5e-2) * largest, name


@pytest.mark.parametrize("family", FAMILIES)
def test_values_and_gradients_are_those_of_the_plain_model(family: str) -> None:
    """fp32, against sdpa on padded rows: within 2e-5 of log-probs of about 6, and 5e-6 of a weight's largest
    gradient, which is the rounding of sums in another order."""
    weights = torch.randn(_LENGTHS.shape[0], int(_LENGTHS.max()), generator=torch.Generator().manual_seed(1))
    sides = []
    for exact in (True, False):
        tried = _Tried(family, exact=exact)
        layout = Padded(tried.ids, _LENGTHS)
        scores = tried.scores(_ALL, 1.0) if exact else tried.module(tried.ids, tried.mask, layout=layout)[0]
        (scores * weights * tried.mask).sum().backward()
        gradients = {name: p.grad for name, p in tried.model.named_parameters() if p.grad is not None}
        sides.append((scores.detach(), gradients))
    (ours, our_gradients), (theirs, their_gradients) = sides
    assert torch.allclose(ours, theirs, rtol=0, atol=2e-5)
    assert our_gradients.keys() == their_gradients.keys()
    for name, gradient in their_gradients.items():
        assert (our_gradients[name] - gradient).abs().max() < 5e-6 * gradient.abs().max(), name


@pytest.mark.parametrize("family", ["qwen2", "gemma3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_one_thread_and_two_give_the_same_bits(family: str, dtype: torch.dtype) -> None:
    """Trainer and engine may have another OMP_NUM_THREADS each; more than two are refused. Whole rows, a row alone, and
    one that grows token by token under another number of threads than its whole row was computed with."""
    threads = torch.get_num_threads()
    try:
        with torch.no_grad():
            torch.set_num_threads(1)
            tried = _Tried(family, dtype)
            whole, alone = tried.scores(_ALL), tried.scores([3], entropy=True)
            torch.set_num_threads(2)
            assert torch.equal(tried.scores(_ALL), whole) and torch.equal(tried.scores([3], entropy=True), alone)
            assert tried.differing_cached([6, 7], [1, 9], whole) == 0
    finally:
        torch.set_num_threads(threads)


def test_gradients_of_attention_are_those_of_finite_differences() -> None:
    lengths = np.array([5, 3])
    exact = ExactPass.whole(lengths, 16, torch.device("cpu"))
    draw = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, heads, 16, 4, dtype=torch.float64, generator=draw, requires_grad=True) for heads in (4, 2, 2)
    )
    for window in (0, 2):
        assert torch.autograd.gradcheck(
            lambda q, k, v, window=window: exact_attention(torch.nn.Identity(), q, k, v, window, exact=exact)[0][:, :8],
            (query, key, value),
        )


def test_joined_caches_hold_each_row_at_its_positions() -> None:
    one, other = ExactCache(2), ExactCache(1)
    device = torch.device("cpu")
    for cache, lengths, first in ((one, [3, 200], 0.0), (other, [5], 500.0)):
        exact = ExactPass.whole(np.array(lengths), sum(lengths), device, cache)
        states = first + torch.arange(sum(lengths), dtype=torch.float32)[:, None, None]
        cache.write(0, exact, states, -states)
    both = ExactCache.joined([ExactPart(one, torch.tensor([1, 1])), ExactPart(other, torch.tensor([0]))])
    keys, values = both.read(0, torch.tensor([199, 199, 4]))
    assert keys.shape == (2, 3, 1, 128, 1) and torch.equal(values, -keys)
    assert keys[1, 1, 0, 199 - 128, 0] == 3 + 199 and keys[0, 2, 0, 4, 0] == 504 and keys[1, 2].abs().sum() == 0


_DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (Qwen3MoeConfig(**_SHAPE | _EXPERTS | {"num_experts": 6}), "mlp.experts has 6 experts, which is not a mul"),  # type: ignore[arg-type]
        (
            Qwen3MoeConfig(**_SHAPE | _EXPERTS | {"moe_intermediate_size": 42}),  # type: ignore[arg-type]
            "mlp.experts has 42 numbers in an expert, which is not a multiple of 4",
        ),
        (Lfm2Config(full_attn_idxs=[1], **_SHAPE), "it has layers with states"),  # type: ignore[arg-type]
        (LlamaConfig(rope_parameters=_DYNAMIC, **_SHAPE), "rope_type dynamic"),  # type: ignore[arg-type]
        (Qwen2Config(**_SHAPE | {"intermediate_size": 182}), "gate_proj is 182 wide, which is not a multiple of 4"),  # type: ignore[arg-type]
        (GPTJConfig(vocab_size=_VOCABULARY, n_embd=64, n_layer=1, n_head=4, rotary_dim=8), "has attention of its own"),
    ],
    ids=["experts", "narrow experts", "states", "rope", "width", "own attention"],
)
def test_models_that_are_not_exact_are_refused_when_they_are_loaded(config: PretrainedConfig, why: str) -> None:
    model = AutoModelForCausalLM.from_config(config)
    module = TokenLogProbModel(model.base_model, LogProbHead(model.get_output_embeddings()))
    with pytest.raises(StrategyError, match=f"exact_log_probs does not work with this model: .*{why}"):
        make_exact(LoadedModel(module, model, {}))


def test_more_than_two_threads_are_refused() -> None:
    tried, threads = _Tried("qwen2", exact=False), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with pytest.raises(
            StrategyError, match="this process has 3 threads.*Set system_envs.OMP_NUM_THREADS to 1 or 2"
        ):
            make_exact(LoadedModel(tried.module, tried.model, {}))
        make_exact(LoadedModel(tried.module, tried.model, {}), torch.device("cuda"))  # its weights wait in host memory
    finally:
        torch.set_num_threads(threads)


def test_check_finds_a_model_whose_rows_depend_on_others(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = _Tried("qwen2", exact=False)
    model = LoadedModel(tried.module, tried.model, {})
    make_exact(model)
    with torch.no_grad():
        check_exact(model, torch.device("cpu"))
        norm: Any = tried.model.base_model.norm
        plain = norm.forward
        monkeypatch.setattr(norm, "forward", lambda hidden: plain(hidden) * (1 + 1e-6 * hidden.shape[1]))
        with pytest.raises(StrategyError, match="exact_log_probs.*has other log-probs when"):
            check_exact(model, torch.device("cpu"))


def test_check_of_a_sampler_finds_few_rows_that_are_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = _Tried("qwen2", exact=False)
    decoder = ExactDecoder(LoadedModel(tried.module, tried.model, {}))
    norm: Any = tried.model.base_model.norm
    plain = norm.forward
    monkeypatch.setattr(norm, "forward", lambda hidden: plain(hidden) * (1 + 1e-6 * hidden.numel()))
    with pytest.raises(StrategyError, match="exact_log_probs.*a token beside cached ones has other logits"):
        decoder.check()
