"""Models with layers that carry a state from token to token, beside attention: sampled, and packed, as rows alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from roll.configs.strategies.model_facts import STATES, UNPACKED
from roll.distributed.strategy.hf.sampler import Answer, BatchSampler
from roll.errors import StrategyError
from roll.models.execution import compile_model
from roll.models.loading import LoadedModel, load_policy
from roll.models.sequences.check import check_packs
from roll.models.sequences.pack import Pack
from roll.models.sequences.packed_attention import use_packed_attention
from roll.types.rollout import GenerationRequest, SamplingParams
from tests.parity.families.models import VOCAB_SIZE, right_model, save_tiny
from tests.parity.families.test_numbers import TEMPERATURE, args_of, log_probs, norm

ROUNDING = 1e-5
OF_GRADIENT = 1e-4
SPREAD = 0.12
# A bias of the projection before a convolution fills in what the layer emptied of padding.
WITH_BIAS: dict[str, dict[str, Any]] = {
    "lfm2": {"conv_bias": True},
    "lfm2_moe": {"conv_bias": True},
    "nemotron_h": {"use_bias": True},
} | {key: {"mamba_proj_bias": True} for key in ("bamba", "falcon_h1", "granitemoehybrid", "jamba")}


def cases(*gate: str) -> list[Any]:
    """Every type, as it is and with biases; those that are not named are slow."""
    every = {kind: (kind, {}) for kind in sorted(STATES)}
    every |= {f"{kind}-bias": (kind, changes) for kind, changes in WITH_BIAS.items()}
    return [
        pytest.param(*case, id=name, marks=() if name in gate else pytest.mark.slow) for name, case in every.items()
    ]


def request(name: str, length: int, num_samples: int, max_new_tokens: int) -> GenerationRequest:
    prompt = np.random.default_rng(length).integers(3, VOCAB_SIZE - 2, length).astype(np.int32)
    params = SamplingParams(max_new_tokens=max_new_tokens, temperature=TEMPERATURE, seed=5, ignore_eos=True)
    return GenerationRequest(name, prompt, params, num_samples)


def perturb(model: PreTrainedModel) -> None:
    """Other weights: those of the update amid the answers."""
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)


def expected(models: Sequence[PreTrainedModel], prompt: np.ndarray, answer: Answer) -> np.ndarray:
    """Log-probs of an answer, of each token by the weights that sampled it, of the row alone without a cache."""
    told = answer.generation
    row = torch.from_numpy(np.concatenate([prompt, told.token_ids]).astype(np.int64))
    with torch.no_grad():
        by_version = np.stack([log_probs(model, row)[len(prompt) - 1 :].numpy() for model in models])
    return by_version[told.policy_versions, np.arange(len(told.token_ids))]


@pytest.mark.parametrize(("kind", "changes"), cases("qwen3_next", "falcon_h1-bias"))
def test_rows_that_come_and_go_are_sampled_as_rows_alone(kind: str, changes: Mapping[str, Any], tmp_path: Path) -> None:
    """Prompts of other lengths in one batch, one that joins late, one of a single token, one that is aborted, rows that
    end early; the cache computed anew under the same weights, and amid the answers under new ones."""
    directory = save_tiny(kind, tmp_path, SPREAD, **changes)
    model = load_policy(args_of(directory).model_copy(update={"disable_gradient_checkpointing": True})).pretrained
    model.eval().requires_grad_(False)
    right = [right_model(kind, directory) for _ in range(2)]
    perturb(right[1])
    sampler = BatchSampler(model, [1], None, 100, 16)
    requests = [request("a", 9, 2, 14), request("b", 3, 1, 4), request("c", 14, 2, 9), request("d", 5, 1, 20)]
    late = [request("late", 11, 2, 9), request("one", 1, 1, 12)]
    answers: list[Answer] = []
    for number in range(12):
        if number == 0:
            for each in requests:
                sampler.submit(each)
        if number == 3:
            for each in late:
                sampler.submit(each)
        if number == 5:
            sampler.recompute_cache()
        if number == 6:
            sampler.abort(["d"])
        if number == 8:
            perturb(model)
            sampler.policy_version = 1
            sampler.recompute_cache()
        answers += sampler.step()
    while sampler.has_work:
        answers += sampler.step()
    prompts = {each.request_id: each.prompt_ids for each in requests + late}
    assert len(answers) == 9
    assert {len(a.generation.token_ids) for a in answers if a.request_id == "d"} == {6}
    assert any({0, 1} == {*answer.generation.policy_versions.tolist()} for answer in answers)
    for answer in answers:
        wanted = expected(right, prompts[answer.request_id], answer)
        np.testing.assert_allclose(answer.generation.log_probs, wanted, rtol=0, atol=ROUNDING, err_msg=str(answer))


ROWS = (70, 23, 2, 14)  # gated delta rules are computed in blocks of 64


@pytest.mark.parametrize(("kind", "changes"), cases("qwen3_5_moe_text", "lfm2-bias"))
def test_rows_of_a_pack_score_and_learn_as_rows_alone(kind: str, changes: Mapping[str, Any], tmp_path: Path) -> None:
    """In training mode, with activations that are computed again: log-probs, and the gradient of every parameter."""
    directory = save_tiny(kind, tmp_path, SPREAD, **changes)
    loaded, right = load_policy(args_of(directory)), right_model(kind, directory)
    if kind in UNPACKED:
        with pytest.raises(StrategyError, match="does not learn where the rows of a pack begin"):
            pack_checked(loaded)
        return
    pack_checked(loaded)
    ids, mask = padded(ROWS)
    wanted = torch.cat([log_probs(right, row[:length]) for row, length in zip(ids, ROWS, strict=True)])
    (found, *_) = loaded.module(ids, mask, TEMPERATURE, layout=Pack.scored(ids, torch.tensor(ROWS)))
    assert found is not None
    torch.testing.assert_close(found[mask], wanted, rtol=0, atol=ROUNDING)
    found[mask].mean().backward()
    wanted.mean().backward()
    whole = norm(right)
    for (name, one), other in zip(loaded.pretrained.named_parameters(), right.parameters(), strict=True):
        if other.grad is None:
            assert one.grad is None or not one.grad.any(), name
            continue
        assert one.grad is not None, name
        off = (one.grad - other.grad).norm() / max(
            float(other.grad.norm()), 1e-3 * whole
        )  # some are 0 but for rounding
        assert off < OF_GRADIENT, f"{name}: {off:.1e}"


def padded(lengths: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of these lengths, and a mask over all but the first tokens of each."""
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(3, VOCAB_SIZE - 2, (length,), generator=generator) for length in lengths]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    columns = torch.arange(ids.shape[1])
    return ids, (columns > 0) & (columns < torch.tensor(lengths)[:, None])


def pack_checked(loaded: LoadedModel) -> None:
    use_packed_attention(loaded.pretrained)
    with torch.no_grad():
        check_packs(loaded, torch.device("cpu"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_compiled_blocks_leave_layers_with_states_as_they_are(tmp_path: Path) -> None:
    """Packs of other lengths, log-probs and gradients, with and without use_torch_compile."""
    directory = save_tiny("lfm2", tmp_path, SPREAD)
    plain, compiled = load_policy(args_of(directory)), load_policy(args_of(directory))
    for loaded in (plain, compiled):
        pack_checked(loaded)
    compile_model(compiled)
    for lengths in ((23, 14, 2), (9, 30)):
        ids, mask = padded(lengths)
        layout = Pack.scored(ids, torch.tensor(lengths))
        (wanted, *_), (found, *_) = (each.module(ids, mask, TEMPERATURE, layout=layout) for each in (plain, compiled))
        assert wanted is not None and found is not None
        torch.testing.assert_close(found, wanted, rtol=0, atol=ROUNDING)
        wanted.sum().backward()
        found.sum().backward()
    assert norm(compiled.pretrained) == pytest.approx(norm(plain.pretrained), rel=1e-5)
