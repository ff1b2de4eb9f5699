"""Every type of model that was tried: trainer, packs and hf_infer compute what transformers does with nothing left out,
or say before the run that they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from roll.configs.sections.model import ModelArgs
from roll.configs.strategies.model_facts import CAPPED, TRIED
from roll.configs.tables.vision import VISION
from roll.distributed.strategy.hf.exact_decoder import ExactDecoder
from roll.distributed.strategy.hf.generate import ParameterImport
from roll.distributed.strategy.hf.sampler import BatchSampler
from roll.errors import StrategyError
from roll.features.prefix_sharing.forward import check_trees
from roll.models.exact.check import check_exact, make_exact
from roll.models.exact.rows import ExactRows
from roll.models.loading import load_policy
from roll.models.sequences.check import check_packs
from roll.models.sequences.pack import Pack
from roll.models.sequences.packed_attention import use_packed_attention
from roll.models.sequences.tree import Tree, tree_or_pack
from roll.types.rollout import GenerationRequest, SamplingParams
from tests.parity.families.models import VOCAB_SIZE, right_model, save_tiny, tiny_config
from tests.parity.families.page import exact_problems, problems, record

slow = pytest.mark.slow
LENGTHS = (23, 14)
TEMPERATURE = 0.7
ROUNDING = 6e-5  # fp32 in another order; any number that is left out is off by .05 at the least
OF_NORM = 2e-5
# Soft caps; sinks; factors; cap of the logits; a correction of routers; layers dropped; positions by column; a base
# model that is not where it is named.
FIRST = ("gemma2", "gpt_oss", "granite_swa", "nanochat", "deepseek_v3", "opt", "seed_oss", "falcon", "llama4_text")
# Most language models of families that see have no class of their own: tests/parity/strategies/test_pictures.py tries
# them.
ALONE = sorted((TRIED - {f"{family}_text" for family in VISION}) | {"gemma3_text", "qwen3_5_text", "qwen3_5_moe_text"})
EVERY = [kind if kind in FIRST else pytest.param(kind, marks=slow) for kind in ALONE]
SAMPLED = ("gemma2", "gpt_oss", "bloom")
SENT = ("nemotron_h", "olmo_hybrid", "qwen3_5_moe_text", "minimax_m2")
FAILURES = (StrategyError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""How models that the plan refuses fail on packs: most are refused, some break in code of their own."""
PACKED = ("gemma2", "gpt_oss", "ministral3")
SHARED = ("gemma3_text", "deepseek_v3", "falcon_h1")


def some(kinds: tuple[str, ...]) -> list[object]:
    return [kind if kind in kinds else pytest.param(kind, marks=slow) for kind in ALONE]


def rows() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, VOCAB_SIZE - 2, (length,), generator=generator) for length in LENGTHS]


def log_probs(model: PreTrainedModel, row: torch.Tensor) -> torch.Tensor:
    """Of all tokens but the first, of a row alone."""
    scores = torch.log_softmax(model(input_ids=row[None]).logits[0].float() / TEMPERATURE, -1)
    return scores[:-1].gather(1, row[1:, None])[:, 0]


def norm(model: PreTrainedModel) -> float:
    gradients = [parameter.grad.double() for parameter in model.parameters() if parameter.grad is not None]
    return float(torch.stack([gradient.norm() for gradient in gradients]).norm())


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.int64)
    for number, row in enumerate(rows()):
        ids[number, : len(row)] = row
    columns = torch.arange(max(LENGTHS))
    return ids, (columns > 0) & (columns < torch.tensor(LENGTHS)[:, None])


def args_of(directory: Path) -> ModelArgs:
    return ModelArgs(model_name_or_path=str(directory), dtype="fp32")


@pytest.mark.parametrize("kind", EVERY)
def test_a_trainer_scores_and_learns_as_the_model_does(kind: str, tmp_path: Path) -> None:
    """Two rows of different lengths in one padded batch, in training mode, by the head that never makes all logits;
    each row alone by transformers' own forward pass, in evaluation mode."""
    directory = save_tiny(kind, tmp_path)
    assert problems(directory, "actor_train") == []
    right, (ids, mask) = right_model(kind, directory), batch()
    wanted = torch.cat([log_probs(right, row) for row in rows()])
    wanted.sum().backward()
    loaded = load_policy(args_of(directory).model_copy(update={"disable_gradient_checkpointing": True}))
    (found, *_) = loaded.module(ids, mask, TEMPERATURE)
    assert found is not None
    torch.testing.assert_close(found[mask], wanted.detach(), rtol=0, atol=ROUNDING)
    record(kind, "padded", float((found[mask] - wanted).detach().abs().max()))
    found.sum().backward()
    assert norm(loaded.pretrained) == pytest.approx(norm(right), rel=OF_NORM)


@pytest.mark.parametrize("kind", some(PACKED))
def test_rows_in_a_pack_score_as_the_model_does_or_are_refused_in_the_plan(kind: str, tmp_path: Path) -> None:
    directory = save_tiny(kind, tmp_path)
    refused = problems(directory, "actor_train", packs=True)
    loaded, (ids, mask) = load_policy(args_of(directory)), batch()
    if refused:
        with pytest.raises(FAILURES):
            use_packed_attention(loaded.pretrained)
            check_packs(loaded, torch.device("cpu"))
        return
    use_packed_attention(loaded.pretrained)
    check_packs(loaded, torch.device("cpu"))
    with torch.no_grad():
        (found, *_) = loaded.module(ids, mask, TEMPERATURE, layout=Pack.scored(ids, torch.tensor(LENGTHS)))
        wanted = torch.cat([log_probs(right_model(kind, directory), row) for row in rows()])
    assert found is not None
    torch.testing.assert_close(found[mask], wanted, rtol=0, atol=ROUNDING)
    record(kind, "packed", float((found[mask] - wanted).abs().max()))


@pytest.mark.parametrize("kind", ["afmoe", "deepseek_v32", "ernie4_5_moe"])
def test_weights_that_no_gradient_reaches_are_not_trained(kind: str, tmp_path: Path) -> None:
    """DeepSpeed would take zeros for their gradients, and let them decay."""
    directory = save_tiny(kind, tmp_path)
    right = right_model(kind, directory)
    log_probs(right, rows()[0]).sum().backward()
    loaded = load_policy(args_of(directory)).pretrained
    frozen = {name for name, parameter in loaded.named_parameters() if not parameter.requires_grad}
    assert frozen == {name for name, parameter in right.named_parameters() if parameter.grad is None} != set()


@pytest.mark.parametrize("tied", [False, True])
def test_youtu_keeps_the_row_of_its_padding_token(tied: bool, tmp_path: Path) -> None:
    directory = save_tiny("youtu", tmp_path, tie_word_embeddings=tied)
    model: Any = load_policy(args_of(directory)).pretrained
    stored = load_file(directory / "model.safetensors")
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert torch.equal(embedding.weight, stored["model.embed_tokens.weight"])
    assert (head.weight is embedding.weight) == tied


def forked() -> tuple[torch.Tensor, torch.Tensor]:
    """Lengths [4] and rows [4, T]: a row, one that leaves it in the middle, the same once more, and its beginning."""
    (row, other), lengths = rows(), torch.tensor([23, 20, 23, 15])
    ids = torch.stack([row, torch.cat([row[:12], other[:8], row[:3]]), row, row])
    return lengths, torch.where(torch.arange(23) < lengths[:, None], ids, 0)


@pytest.mark.parametrize("kind", some(SHARED))
def test_rows_that_begin_alike_score_and_learn_as_the_model_does_or_are_refused_in_the_plan(
    kind: str, tmp_path: Path
) -> None:
    """As one tree; each row alone by transformers' own forward pass."""
    directory, (lengths, ids) = save_tiny(kind, tmp_path), forked()
    loaded = load_policy(args_of(directory).model_copy(update={"disable_gradient_checkpointing": True}))
    if problems(directory, "actor_train", shares=True):
        with pytest.raises(FAILURES):
            use_packed_attention(loaded.pretrained, is_shared=True)
            check_trees(loaded, torch.device("cpu"))
        return
    use_packed_attention(loaded.pretrained, is_shared=True)
    with torch.no_grad():
        check_trees(loaded, torch.device("cpu"))
    mask, right = (torch.arange(23) > 0) & (torch.arange(23) < lengths[:, None]), right_model(kind, directory)
    layout = tree_or_pack(ids, lengths - 1, least_saved=0)
    assert isinstance(layout, Tree) and layout.arguments["input_ids"].numel() == 22 + 7
    wanted = torch.cat([log_probs(right, row[:length]) for row, length in zip(ids, lengths.tolist(), strict=True)])
    (found, *_) = loaded.module(ids, mask, TEMPERATURE, layout=layout)
    assert found is not None
    torch.testing.assert_close(found[mask].detach(), wanted.detach(), rtol=0, atol=ROUNDING)
    record(kind, "trees", float((found[mask] - wanted).detach().abs().max()))
    wanted.sum().backward()
    found.sum().backward()
    assert norm(loaded.pretrained) == pytest.approx(norm(right), rel=OF_NORM)


@pytest.mark.parametrize("kind", some(SHARED))
def test_log_probs_are_the_same_bits_in_every_pass_or_refused_in_the_plan(kind: str, tmp_path: Path) -> None:
    """Rows of 23 and 14 tokens alone and beside each other, and the last token of each beside cached ones; within
    rounding of transformers' own forward pass."""
    known = tiny_config(kind)  # the sampler's check has rows of 129 tokens
    longer = {key: 256 for key in ("max_position_embeddings", "n_positions") if hasattr(known, key)}
    directory = save_tiny(kind, tmp_path, **longer)
    loaded = load_policy(args_of(directory).model_copy(update={"disable_gradient_checkpointing": True}))
    loaded.pretrained.eval().requires_grad_(False)
    if exact_problems(directory):
        with pytest.raises(FAILURES), torch.no_grad():
            make_exact(loaded)
            check_exact(loaded, torch.device("cpu"))
            ExactDecoder(loaded).check()
        return
    decoder, (ids, mask) = ExactDecoder(loaded), batch()
    decoder.check()

    def scores(chosen: list[int]) -> torch.Tensor:
        lengths = torch.tensor(LENGTHS)[chosen]
        (found, *_) = loaded.module(
            ids[chosen], mask[chosen], TEMPERATURE, layout=ExactRows.of(Pack.scored(ids[chosen], lengths))
        )
        assert found is not None
        return found

    with torch.no_grad():
        check_exact(loaded, torch.device("cpu"))
        together, right = scores([0, 1]), right_model(kind, directory)
        assert torch.equal(scores([0])[0], together[0]) and torch.equal(scores([1])[0], together[1])
        wanted = torch.cat([log_probs(right, row) for row in rows()])
        taken = [row.numpy() for row in rows()]
        cache, _ = decoder.prefill([row[:-1] for row in taken])
        at = torch.tensor(LENGTHS) - 1
        last = torch.tensor([row[-1] for row in taken])
        step = decoder.decode(last[:, None], at[:, None], cache, np.zeros(2, np.int64), None)
        assert torch.equal(step, decoder.prefill(taken)[1])
    torch.testing.assert_close(together[mask], wanted, rtol=0, atol=ROUNDING)
    record(kind, "exact", float((together[mask] - wanted).abs().max()))


@pytest.mark.parametrize("kind", some(SAMPLED))
def test_hf_infer_samples_from_the_model_or_refuses_in_the_plan(kind: str, tmp_path: Path) -> None:
    """Two prompts of different lengths, so that one is padded; log-probs of ten tokens each."""
    directory = save_tiny(kind, tmp_path)
    model = load_policy(args_of(directory).model_copy(update={"disable_gradient_checkpointing": True})).pretrained
    model.eval().requires_grad_(False)
    if problems(directory, "actor_infer"):
        with pytest.raises(StrategyError, match="cannot sample from"):
            BatchSampler(model, [1], None, 100, 8)
        return
    sampler = BatchSampler(model, [1], None, 100, 8)
    prompts = {
        str(number): row[:length].numpy() for number, (row, length) in enumerate(zip(rows(), (9, 3), strict=True))
    }
    for name, prompt in prompts.items():
        params = SamplingParams(max_new_tokens=10, temperature=TEMPERATURE, seed=5, ignore_eos=True)
        sampler.submit(GenerationRequest(name, prompt.astype(np.int32), params))
    answers = []
    while sampler.has_work:
        answers += sampler.step()
    assert len(answers) == len(prompts)
    right, seen = right_model(kind, directory), 0.0
    for answer in answers:
        prompt, answered = prompts[answer.request_id], answer.generation
        with torch.no_grad():
            whole = torch.from_numpy(np.concatenate([prompt, answered.token_ids]).astype(np.int64))
            wanted = log_probs(right, whole)[len(prompt) - 1 :]
        np.testing.assert_allclose(answered.log_probs, wanted.numpy(), rtol=0, atol=ROUNDING)
        seen = max(seen, float(np.abs(answered.log_probs - wanted.numpy()).max()))
    record(kind, "hf_infer", seen)


@pytest.mark.parametrize("kind", some(SENT))
def test_hf_infer_takes_the_weights_by_the_names_that_trainers_send(kind: str, tmp_path: Path) -> None:
    """Those of the model's files: other ones than in memory, expert by expert, or parts of what is one matrix here."""
    directory = save_tiny(kind, tmp_path)
    if problems(directory, "actor_infer"):
        return
    trained, sampling = load_policy(args_of(directory)), load_policy(args_of(directory)).pretrained
    with torch.no_grad():
        for parameter in sampling.parameters():
            parameter.zero_()
    weights, update = dict(trained.module.named_parameters()), ParameterImport(sampling)
    update.begin()
    named = [(name, weights[own].detach()) for own, name in trained.hf_names.items()]
    for name, tensor in trained.in_checkpoint_form(named):
        update.add(name, tensor)
    update.finish()
    pairs = zip(trained.pretrained.named_parameters(), sampling.parameters(), strict=True)
    assert [name for (name, sent), taken in pairs if not torch.equal(sent, taken)] == []


@pytest.mark.parametrize("beginning", ["model.", "model.language_model."])
def test_a_text_model_is_sent_by_the_names_of_its_own_files(beginning: str, tmp_path: Path) -> None:
    """Those of a Qwen3.5 that sees have more in their names than those of its text model alone. Both are loaded; ranks
    that build the model's form only know it by the files as well."""
    directory = save_tiny("qwen3_5_text", tmp_path)
    file = directory / "model.safetensors"
    stored = {name.replace("model.language_model.", beginning): tensor for name, tensor in load_file(file).items()}
    save_file(stored, file)
    for empty in (False, True):
        loaded = load_policy(args_of(directory), empty=empty)
        weights = dict(loaded.module.named_parameters())
        named = [(name, weights[own].detach()) for own, name in loaded.hf_names.items()]
        assert {name for name, _ in loaded.in_checkpoint_form(named)} == stored.keys()


@pytest.mark.parametrize("kind", sorted(CAPPED))
def test_a_soft_cap_of_attention_is_never_left_to_sdpa(kind: str, tmp_path: Path) -> None:
    directory = save_tiny(kind, tmp_path)
    args = args_of(directory)
    assert load_policy(args).pretrained.config._attn_implementation == "eager"
    with pytest.raises(StrategyError, match=f"sdpa has no soft cap, and {kind} has attn_logit_softcapping: 2.0"):
        load_policy(args.model_copy(update={"attn_implementation": "sdpa"}))
