"""Rows as packs against the same rows padded: numbers, gradients, and who is refused."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BloomConfig,
    FalconH1Config,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    JambaConfig,
    Lfm2Config,
    Llama4TextConfig,
    MiniMaxConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

from roll.configs.sections.model import Head, ModelArgs
from roll.errors import StrategyError
from roll.models.hf import SequenceModel
from roll.models.loading import LoadedModel, load_model
from roll.models.sequences.check import check_packs
from roll.models.sequences.pack import Pack
from roll.models.sequences.packed_attention import (
    PACKED_ATTENTION,
    _some_heads,
    packed_attention,
    reach,
    use_packed_attention,
)
from roll.models.sequences.ranks import SequenceRanks

SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
HALVES: dict[str, Any] = {"layer_types": ["sliding_attention", "full_attention"]}
EXPERTS: dict[str, Any] = {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
DELTA: dict[str, Any] = dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8) | {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "shared_expert_intermediate_size": 16,
}
WINDOW = 4
TAKEN: dict[str, PretrainedConfig] = {
    "full": Qwen2Config(**SHAPE),
    "window": MistralConfig(**SHAPE, sliding_window=WINDOW),
    "window-in-some-layers": Gemma3TextConfig(**SHAPE, head_dim=8, sliding_window=WINDOW, **HALVES),
    "mixture": Qwen3MoeConfig(**SHAPE, **EXPERTS),
    "convolution": Lfm2Config(**SHAPE, full_attn_idxs=[1]),
    "delta-rule": Qwen3NextConfig(**SHAPE, **EXPERTS, **DELTA, layer_types=["linear_attention", "full_attention"]),
    "attention-and-state-space": FalconH1Config(
        **SHAPE, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8, mamba_n_groups=1
    ),
}
LENGTHS = torch.tensor([9, 14, 1, 2, 6])
CPU = torch.device("cpu")


def saved(config: PretrainedConfig, directory: Path, kind: Any = AutoModelForCausalLM) -> Path:
    """With weights so large that what a token sees shows in its numbers."""
    torch.manual_seed(0)
    model = kind.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(directory)
    return directory


def loaded(directory: Path, head: Head = "lm", **options: object) -> LoadedModel:
    args = {"model_name_or_path": str(directory), "dtype": "fp32", "disable_gradient_checkpointing": True}
    return load_model(ModelArgs.model_validate(args | options), head)


def taking_packs(model: LoadedModel) -> LoadedModel:
    use_packed_attention(model.pretrained)
    with torch.no_grad():
        check_packs(model, CPU)
    return model


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Padded ids, and a mask over all but the first tokens of each row."""
    torch.manual_seed(1)
    inside = torch.arange(int(LENGTHS.max())) < LENGTHS[:, None]
    mask = inside.clone()
    mask[:, :1] = False
    return torch.where(inside, torch.randint(3, 64, inside.shape), 0), mask


def gradients(model: LoadedModel, loss: torch.Tensor) -> list[torch.Tensor]:
    model.module.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.module.parameters() if p.grad is not None]


def test_a_pack_holds_the_tokens_of_rows_and_says_where_they_begin(packing_model: LoadedModel) -> None:
    pack = Pack.of(torch.tensor([[5, 9, 0, 0], [8, 3, 11, 2]]), torch.tensor([2, 3]))
    assert pack.input_ids.tolist() == [[5, 9, 8, 3, 11]] and pack.position_ids.tolist() == [[0, 1, 0, 1, 2]]
    assert pack.starts.tolist() == [0, 2, 5] and pack.longest == 3
    assert pack.places(torch.tensor([1, 0, 1]), torch.tensor([2, 1, 0])).tolist() == [4, 1, 2]
    query, key = torch.randn(1, 6, 3, 2), torch.randn(1, 2, 3, 2)
    with pytest.raises(StrategyError, match=r"4 ranks \(ulysses_size\) do not divide its 6 attention heads"):
        _some_heads(query, key, key, ranks(4)[0])
    with pytest.raises(StrategyError, match="Qwen2Attention does not learn where the rows of a pack begin"):
        packing_model.pretrained(input_ids=rows()[0])


class Alone(SequenceRanks):
    """One of several ranks, which takes its heads of the tokens that are there."""

    def split_heads(self, part: torch.Tensor) -> torch.Tensor:
        return part.chunk(self.size, 1)[self.rank]


def ranks(size: int) -> list[Alone]:
    return [Alone(None, rank, size) for rank in range(size)]  # type: ignore[arg-type]


def test_ranks_that_share_a_pack_have_equal_parts_of_it() -> None:
    """5 tokens for 2 ranks: a sixth stands alone at the end."""
    pack = Pack.of(torch.tensor([[5, 9, 4], [8, 3, 0]]), torch.tensor([3, 2]))
    first, second = (pack.shared(each) for each in ranks(2))
    assert first.input_ids.tolist() == [[5, 9, 4]] and first.position_ids.tolist() == [[0, 1, 2]]
    assert second.input_ids.tolist() == [[8, 3, 0]] and second.position_ids.tolist() == [[0, 1, 0]]
    assert first.starts.tolist() == second.starts.tolist() == [0, 3, 5, 6]
    places = second.places(torch.tensor([0, 1]), torch.tensor([2, 1]))
    assert places.tolist() == [-1, 1] and second.has(places).tolist() == [False, True]
    assert pack.shared(ranks(5)[4]).starts.tolist() == [0, 3, 5]


@pytest.mark.parametrize("heads, groups, size", [(4, 4, 2), (4, 2, 2), (4, 1, 4), (6, 3, 2), (12, 2, 4), (12, 4, 6)])
def test_heads_of_a_rank_see_their_own_key_value_heads(heads: int, groups: int, size: int) -> None:
    """Also where key-value heads are fewer than the ranks, or do not divide by them."""
    torch.manual_seed(0)
    query, key, value = torch.randn(1, heads, 3, 2), torch.randn(1, groups, 3, 2), torch.randn(1, groups, 3, 2)
    each = heads // groups
    want = [(key[0, head // each], value[0, head // each]) for head in range(heads)]
    for rank in ranks(size):
        q, k, v = _some_heads(query, key, value, rank)
        first, times = rank.rank * heads // size, q.shape[1] // k.shape[1]
        assert q.shape[1] == heads // size and k.shape[1] * times == q.shape[1]
        for head in range(heads // size):
            assert torch.equal(q[0, head], query[0, first + head])
            assert torch.equal(k[0, head // times], want[first + head][0])
            assert torch.equal(v[0, head // times], want[first + head][1])


@pytest.mark.parametrize("recomputes", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("kind", TAKEN)
def test_log_probs_entropy_and_gradients_of_a_pack_are_those_of_padded_rows(
    kind: str, recomputes: bool, tmp_path: Path
) -> None:
    """fp32, other orders of sums: 1e-5. Rows are up to three windows long, one of one token, one of two. Were a row to
    see the one before it, or past its window, log-probs would be off by more than 1."""
    model = loaded(saved(TAKEN[kind], tmp_path), disable_gradient_checkpointing=not recomputes)
    ids, mask = rows()
    weights = torch.linspace(-1, 1, mask.numel()).view(mask.shape)

    def scored(layout: Pack | None) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        log_probs, entropy = model.module(ids, mask, 0.7, True, layout)
        found = gradients(model, (log_probs * weights + entropy * weights.flip(0)).sum())
        return log_probs.detach(), entropy.detach(), found

    *want, wanted_gradients = scored(None)
    taking_packs(model)
    *got, got_gradients = scored(Pack.scored(ids, LENGTHS))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
    assert len(got_gradients) == len(wanted_gradients)
    for a, b in zip(got_gradients, wanted_gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5 * max(1.0, float(b.abs().max())))


def test_numbers_of_rows_in_a_pack_are_those_of_hugging_faces_own_model(tmp_path: Path) -> None:
    """Also of a row that ends in the padding token, and of one that is nothing else: there a head is read before."""
    config = Qwen2Config(**SHAPE)
    config.num_labels = 3
    model = loaded(saved(config, tmp_path, AutoModelForSequenceClassification), "sequence")
    assert isinstance(model.module, SequenceModel)
    ids, _ = rows()
    ids[0, 7:], ids[3] = 0, 0
    with torch.no_grad():
        want = model.module(ids, LENGTHS)
        alone = [model.pretrained(input_ids=row[None, :n]).logits[0] for row, n in zip(ids, LENGTHS, strict=True)]
        torch.testing.assert_close(want, torch.stack(alone), rtol=0, atol=1e-5)
        torch.testing.assert_close(
            taking_packs(model).module(ids, LENGTHS, Pack.of(ids, LENGTHS)), want, rtol=0, atol=1e-5
        )


@pytest.mark.parametrize(
    "config, why",
    [
        (MiniMaxConfig(**SHAPE, num_local_experts=2), "it has layers of type linear_attention"),
        (JambaConfig(**SHAPE, mamba_d_state=4), "JambaMambaMixer does not learn where the rows of a pack begin"),
        (Llama4TextConfig(**SHAPE, attention_chunk_size=4, num_local_experts=2), "layers of type chunked_attention"),
        (Gemma2Config(**SHAPE, head_dim=8), "Gemma2Attention computes with softcap"),
        (GptOssConfig(**SHAPE, head_dim=8, num_local_experts=4), "GptOssAttention computes with s_aux"),
        (
            BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4),
            r"a row is off by [\d.]+% beside other ones",
        ),
    ],
    ids=["linear", "state-space", "chunks", "softcap", "sinks", "alibi"],
)
def test_a_model_whose_rows_would_see_each_other_is_refused(config: PretrainedConfig, why: str, tmp_path: Path) -> None:
    """By its layers, by what its attention asks for, or, where neither tells, by its numbers."""
    model = loaded(saved(config, tmp_path))
    with pytest.raises(StrategyError, match=f"use_sequence_packing does not work with this model: .*{why}"):
        taking_packs(model)


def test_a_classifier_that_looks_both_ways_is_refused(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    config = BertConfig(**sizes, num_attention_heads=2, pad_token_id=0)
    model = loaded(saved(config, tmp_path, AutoModelForSequenceClassification), "sequence")
    with pytest.raises(StrategyError, match="BertForSequenceClassification reads rows in a way of its own"):
        taking_packs(model)


@pytest.fixture
def packing_model(tmp_path: Path) -> LoadedModel:
    return taking_packs(loaded(saved(TAKEN["full"], tmp_path)))


def test_an_attention_mask_is_refused_and_not_taken_for_one_sequence(packing_model: LoadedModel) -> None:
    """With a mask of ones transformers does not look for packs either."""
    pack, backbone = Pack.of(rows()[0], LENGTHS), packing_model.pretrained.base_model.eval()
    ones = {"attention_mask": torch.ones_like(pack.input_ids)}
    with pytest.raises(StrategyError, match="an attention mask is given, and a pack has no padding"):
        backbone(**pack.arguments | ones)
    with torch.no_grad():
        want = backbone(**pack.arguments).last_hidden_state
        packing_model.pretrained.set_attn_implementation("sdpa")
        theirs = backbone(**pack.arguments | ones).last_hidden_state
    assert float((theirs - want).abs().max()) > 0.1


def test_attention_refuses_what_it_would_compute_otherwise() -> None:
    module, x = torch.nn.Identity(), torch.zeros(1, 2, 3, 4)
    given: dict[str, Any] = {"attention_mask": 0, "cu_seq_lens_q": torch.tensor([0, 3], dtype=torch.int32)}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"sliding_window": 2}, "has a window of 2, its mask one of 0"),
        ({"is_causal": False}, "looks both ways"),
        ({"position_bias": x}, "computes with position_bias"),
        ({"attention_mask": None}, "does not learn where"),
        ({"attention_mask": torch.ones(1)}, "does not learn where"),
    ]
    for changed, why in cases:
        with pytest.raises(StrategyError, match=re.escape(why)):
            packed_attention(module, x, x, x, **given | changed)
    with pytest.raises(StrategyError, match="has 3 keys for 2 tokens"):
        packed_attention(module, x[:, :, :2], x, x, **given)
    with pytest.raises(StrategyError, match="its masks have a form of their own"):
        reach(use_vmap=True)


def test_a_saved_model_does_not_name_the_attention_for_packs(packing_model: LoadedModel, tmp_path: Path) -> None:
    packing_model.pretrained.save_pretrained(tmp_path / "again")
    assert PACKED_ATTENTION not in (tmp_path / "again" / "config.json").read_text()
