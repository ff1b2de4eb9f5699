"""Attention in parts, and of packs, by the kernels of GPUs, which take rows of any length: slow stand-ins of theirs on
a CPU, in plain torch, with their arguments, layouts and demands as torch's sources have them."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from roll.models.sequences import packed_attention
from roll.models.sequences import tree_attention as subject
from roll.models.sequences.tree_attention import TreeParts
from roll.platforms.table import CUDA
from roll.types.forest import forest_of
from tests.unit.models.test_tree_attention import CPU, chain, errors
from tests.unit.types.test_forest import Rows, random_rows, rows_of

Span = tuple[slice, slice]
KERNELS = {"flash": subject._FLASH, "efficient": subject._EFFICIENT}


def spans(starts: tuple[torch.Tensor, torch.Tensor], longest: tuple[int, int], tokens: tuple[int, int]) -> list[Span]:
    """The slices of queries and keys, after what the kernels take for granted."""
    for each, most, number in zip(starts, longest, tokens, strict=True):
        assert each.dtype == torch.int32 and each.is_contiguous() and each[0] == 0 and each[-1] == number
        assert int(each.diff().min()) > 0 and int(each.diff().max()) <= most
    queries, keys = ([slice(*pair) for pair in pairwise(each.tolist())] for each in starts)
    return list(zip(queries, keys, strict=True))


def scores(
    query: torch.Tensor, key: torch.Tensor, span: Span, causal: bool, scale: float, window: int = 0
) -> torch.Tensor:
    """[heads, queries, keys]; causal from the lower right corner."""
    heads = query.shape[1]
    key = key[span[1]].repeat_interleave(heads // key.shape[1], 1)
    found = torch.einsum("qhd,khd->hqk", query[span[0]], key) * scale
    sees, corner = torch.ones_like(found, dtype=torch.bool), found.shape[2] - found.shape[1]
    if causal:
        sees = sees.tril(corner).triu(corner + 1 - (window or found.shape[2]))
    return found.masked_fill(~sees, -torch.inf)


def attend(
    query: Any, key: Any, value: Any, where: list[Span], causal: bool, scale: float, window: int = 0
) -> tuple[Any, Any]:
    """Output [n, heads, D] and log-sum-exp [heads, n]."""
    out, lse = torch.full_like(query, torch.nan), query.new_full(query.shape[1::-1], torch.nan)
    for span in where:
        each = scores(query, key, span, causal, scale, window)
        seen = value[span[1]].repeat_interleave(query.shape[1] // value.shape[1], 1)
        out[span[0]] = torch.einsum("hqk,khd->qhd", each.softmax(-1), seen)
        lse[:, span[0]] = each.logsumexp(-1)
    return out, lse


def pull_back(
    gradient: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    lse: Any,
    where: list[Span],
    causal: bool,
    scale: float,
    window: int = 0,
) -> list[torch.Tensor]:
    """Gradients by the chances exp(score - lse); output and log-sum-exp may be of more keys than these."""
    pulls = [torch.zeros_like(part) for part in (query, key, value)]
    groups = key.shape[1]
    for span in where:
        seen = value[span[1]].repeat_interleave(query.shape[1] // groups, 1)
        chances = (scores(query, key, span, causal, scale, window) - lse[:, span[0], None]).exp()
        pull, mine = gradient[span[0]], out[span[0]]
        bend = torch.einsum("qhd,khd->hqk", pull, seen) - (pull * mine).sum(-1).t()[..., None]
        bend = chances * bend * scale
        others = key[span[1]].repeat_interleave(query.shape[1] // groups, 1)
        pulls[0][span[0]] = torch.einsum("hqk,khd->qhd", bend, others)
        for found, each in zip(
            pulls[1:],
            (torch.einsum("hqk,qhd->khd", bend, query[span[0]]), torch.einsum("hqk,qhd->khd", chances, pull)),
            strict=True,
        ):
            found[span[1]] = each.unflatten(1, (groups, -1)).sum(2)
    return pulls


def check_widths(*parts: torch.Tensor) -> None:
    assert all(part.stride(-1) == 1 and part.shape[-1] % 8 == 0 for part in parts)


def flash_mask(is_causal: bool, window_size_left: int = -1, window_size_right: int = -1) -> tuple[bool, int]:
    """Whether it is causal, and how many keys a query sees; 0 is all."""
    if window_size_left < 0:
        return is_causal, 0
    assert not is_causal and window_size_right == 0
    return True, window_size_left + 1


def flash_forward(
    query: Any, key: Any, value: Any, starts: Any, key_starts: Any, longest: int, longest_key: int,
    dropout: float, *, is_causal: bool, return_debug_mask: bool, scale: float, **window: int,
) -> tuple[Any, ...]:  # fmt: skip
    assert dropout == 0 and not return_debug_mask and longest > 1, "rows of one query are for decoding"
    check_widths(query, key, value)
    where = spans((starts, key_starts), (longest, longest_key), (len(query), len(key)))
    causal, seen = flash_mask(is_causal, **window)
    return *attend(query, key, value, where, causal, scale, seen), None, None, None


def flash_backward(
    gradient: Any, query: Any, key: Any, value: Any, out: Any, lse: Any, starts: Any, key_starts: Any, longest: int,
    longest_key: int, dropout: float, *, is_causal: bool, rng_state: Any, unused: Any, scale: float, **window: int,
) -> list[torch.Tensor]:  # fmt: skip
    assert lse.is_contiguous(), "the kernel reads its memory"
    assert dropout == 0 and isinstance(rng_state, torch.Tensor) and isinstance(unused, torch.Tensor) and longest > 1
    check_widths(query, key, value)
    where = spans((starts, key_starts), (longest, longest_key), (len(query), len(key)))
    causal, seen = flash_mask(is_causal, **window)
    return pull_back(gradient, query, key, value, out, lse, where, causal, scale, seen)


def efficient_forward(
    query: Any, key: Any, value: Any, bias: None, starts: Any, key_starts: Any, longest: int, longest_key: int,
    dropout: float, mask: int, with_lse: bool, *, scale: float, window_size: int | None,
) -> tuple[Any, ...]:  # fmt: skip
    assert dropout == 0 and bias is None and with_lse and len(query) == len(key) == 1
    assert query.shape[2] == key.shape[2] == value.shape[2] and longest <= query.shape[1]
    check_widths(query, key, value)
    where = spans((starts, key_starts), (longest, longest_key), (query.shape[1], key.shape[1]))
    assert mask == 2 or (mask == 0 and window_size is None)
    out, lse = attend(query[0], key[0], value[0], where, mask == 2, scale, window_size or 0)
    padded = lse.new_full((len(where), query.shape[2], -(-longest // 32) * 32), torch.inf)
    for each, (rows, _) in zip(padded, where, strict=True):
        each[:, : rows.stop - rows.start] = lse[:, rows]
    return out[None], padded, None, None, longest, longest_key


def efficient_backward(
    gradient: Any, query: Any, key: Any, value: Any, bias: None, out: Any, starts: Any, key_starts: Any, longest: int,
    longest_key: int, padded: Any, dropout: float, seed: Any, offset: Any, mask: int, of_bias: bool, *, scale: float,
    window_size: int | None,
) -> tuple[Any, ...]:  # fmt: skip
    assert bias is None and not of_bias and isinstance(seed, torch.Tensor) and isinstance(offset, torch.Tensor)
    assert query.shape[2] == key.shape[2] == value.shape[2] and longest <= query.shape[1]
    where = spans((starts, key_starts), (longest, longest_key), (query.shape[1], key.shape[1]))
    assert padded.shape == (len(where), query.shape[2], -(-longest // 32) * 32) and padded.is_contiguous()
    lse = torch.cat([each[:, : rows.stop - rows.start] for each, (rows, _) in zip(padded, where, strict=True)], 1)
    for each, (rows, _) in zip(padded, where, strict=True):
        assert each[:, rows.stop - rows.start :].isposinf().all(), "what is not there sees nothing"
    if window_size:  # in the backward pass of windows the kernel counts queries and keys from the first one
        assert torch.equal(starts, key_starts)
    assert mask == 2 or (mask == 0 and window_size is None)
    pulls = pull_back(gradient[0], query[0], key[0], value[0], out[0], lse, where, mask == 2, scale, window_size or 0)
    return *(pull[None] for pull in pulls), None


STAND_INS: dict[str, Callable[..., Any]] = {
    "_FLASH_FORWARD": flash_forward,
    "_FLASH_BACKWARD": flash_backward,
    "_EFFICIENT_FORWARD": efficient_forward,
    "_EFFICIENT_BACKWARD": efficient_backward,
}


WAYS = {"paths": (1 << 17, 1 << 16), "paths in several calls": (1 << 17, 20), "levels": (0, 1 << 16)}
"""Copies of keys for which a level is merged instead, and keys of a call."""


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, number in zip(("_COPIES_PER_LEVEL", "_KEYS_OF_A_CALL"), WAYS[request.param], strict=True):
        monkeypatch.setattr(subject, name, number)
    return request.param


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, stand_in in STAND_INS.items():
        monkeypatch.setattr(subject, name, stand_in)
    monkeypatch.setattr(subject, "kernel_for", lambda query, width: KERNELS[request.param])
    yield request.param


@pytest.mark.parametrize("seed", range(20))
def test_random_forests_are_the_rows_alone(seed: int, kernel: str, way: str) -> None:
    rows = random_rows(seed)
    assert max(errors(rows, torch.float64)) < 1e-12
    assert max(errors(rows, torch.float32)) < 1e-5


@pytest.mark.parametrize("window", [1, 2, 5, 40])
@pytest.mark.parametrize("seed", range(6))
def test_windows_of_any_length(seed: int, window: int, kernel: str) -> None:
    """Keys of a node are its own and those of its ancestors that its first token sees."""
    for rows in (random_rows(seed), chain(6), rows_of("a" * 30 + "b" * 40, "a" * 30 + "c", "a" * 30 + "d" * 33)):
        found = errors(rows, torch.float64, window)
        assert (max(found) if window > 1 else found[0]) < 1e-12, "one token sees itself: no gradient but of its value"


@pytest.mark.parametrize(
    "sizes",
    [{"heads": 4, "groups": 4}, {"heads": 6, "groups": 1}, {"width": 8, "values": 5}, {"width": 6, "values": 19}],
    ids=["own heads", "one group", "narrow values", "wide values"],
)
def test_heads_and_widths_of_any_number(sizes: dict[str, int], kernel: str) -> None:
    """Widths are filled up to what the kernels take."""
    assert max(errors(random_rows(3), torch.float64, **sizes)) < 1e-12


@pytest.mark.parametrize(
    "rows",
    [
        rows_of("abcdef", "abcdef", "abc"),
        rows_of("abc", "abd", "e"),
        rows_of("ab", "ac"),
        rows_of("abc", "abd", "xyz", "xyw", "q"),
        rows_of("a" * 40 + "b" * 70, "a" * 40 + "c", "a" * 40 + "d" * 33),
        chain(16),
    ],
    ids=["one node", "a token alone", "one token each", "two trees and a row", "beyond a tile of 32", "16 levels"],
)
def test_forests_at_the_edges(rows: Rows, kernel: str, way: str) -> None:
    assert max(errors(rows, torch.float64)) < 1e-12


def parts_of(*texts: str) -> TreeParts:
    return TreeParts(forest_of(rows_of(*texts), least_saved=0), CPU)


def test_paths_are_one_call_unless_they_copy_more_than_levels_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of 2 tokens copied for 3 answers each, 12 keys: one call; two where a level costs less than that. An
    episode is one node: nothing is copied, nor anywhere where spans meet."""
    texts = ("abcde", "abfgh", "abijk", "xyabc", "xydef", "xyghi")
    (call,) = parts_of(*texts).calls(True)
    assert call.queries == slice(0, 22) and isinstance(call.keys, torch.Tensor) and len(call.keys) == 22 + 12
    assert call.starts[1].diff().tolist() == [2, 5, 5, 5] * 2
    assert len(parts_of("ab", "abcd", "abcdef").calls(True)) == 1
    monkeypatch.setattr(subject, "_COPIES_PER_LEVEL", 12)
    assert len(parts_of(*texts).calls(True)) == 1
    monkeypatch.setattr(subject, "_COPIES_PER_LEVEL", 11)
    own, below = parts_of("abcde", "abfgh", "abijk", "abxyz", "ab123", "ab456").calls(True)
    assert (own.queries, own.keys) == (slice(0, 20), slice(0, 20))
    assert (below.queries, below.keys) == (slice(2, 20), slice(0, 2))
    monkeypatch.setattr(subject, "_COPIES_PER_LEVEL", 100)
    monkeypatch.setattr(subject, "_KEYS_OF_A_CALL", 10)
    calls = parts_of(*texts).calls(True)
    assert [len(call.starts[0]) - 1 for call in calls] == [3, 3, 2]
    assert [call.queries for call in calls] == [slice(0, 8), slice(8, 16), slice(16, 22)]


def test_parts_by_level_are_the_pairs_of_parts_by_node() -> None:
    """Every pair of a query and a key that it sees, once."""

    def pairs(parts: Any) -> list[tuple[int, int]]:
        found = []
        for part in parts:
            for (first, last), (start, stop) in zip(part.queries.tolist(), part.keys.tolist(), strict=True):
                seen = np.ones((last - first, stop - start), bool)
                found += [(first + q, start + k) for q, k in np.argwhere(np.tril(seen) if part.is_causal else seen)]
        return sorted(found)

    for seed in range(30):
        forest = forest_of(random_rows(seed), least_saved=0)
        assert pairs(forest.levels) == pairs(forest.parts) and len(set(pairs(forest.levels))) == len(
            pairs(forest.parts)
        )


@pytest.mark.parametrize(("dtype", "width", "name"), [("float32", 64, "efficient"), ("bfloat16", 64, "flash")])
def test_torchs_kernels_take_what_they_are_given(dtype: str, width: int, name: str) -> None:
    """By their shapes alone, on no device: names and order of the arguments, and the shape of the log-sum-exps."""
    forest = forest_of(random_rows(3), least_saved=0)
    parts = TreeParts(forest, torch.device("meta"))
    query, key, value = (
        torch.empty(forest.num_tokens, heads, width, dtype=getattr(torch, dtype), device="meta") for heads in (4, 2, 2)
    )
    assert subject.kernel_for(query, width) is KERNELS[name]
    call = parts.calls(True)[0]
    out, lse = KERNELS[name].forward(query, key, value, call, 0.5)
    assert out.shape == query.shape and lse.shape == (4, forest.num_tokens) and lse.dtype == torch.float32
    if name == "flash":  # torch's stand-in for the other one lacks an argument
        pulls = KERNELS[name].backward(out, query, key, value, out, lse, call, 0.5)
        assert [pull.shape for pull in pulls] == [query.shape, key.shape, value.shape]


def test_wide_heads_are_not_for_flash() -> None:
    query = torch.empty(1, dtype=torch.bfloat16, device="meta")
    assert subject.kernel_for(query, 256) is subject._FLASH and subject.kernel_for(query, 257) is subject._EFFICIENT


@pytest.mark.parametrize(("width", "values", "by_kernel"), [(24, 16, True), (12, 20, True), (264, 8, False)])
def test_packs_of_heads_of_any_width(width: int, values: int, by_kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values may be narrower than keys, as latent attention has them; heads that flash does not take go row by row."""
    calls: list[int] = []

    def varlen(
        query: Any, key: Any, value: Any, starts: Any, key_starts: Any, longest: int, longest_key: int,
        *, scale: float, window_size: tuple[int, int], **more: Any,
    ) -> torch.Tensor:  # fmt: skip
        assert query.shape[-1] == key.shape[-1] == value.shape[-1] and window_size == (-1, 0)
        check_widths(query, key, value)
        calls.append(query.shape[-1])
        where = spans((starts, key_starts), (longest, longest_key), (len(query), len(key)))
        return attend(query, key, value, where, True, scale)[0]

    monkeypatch.setattr(packed_attention, "varlen_attn", varlen)
    monkeypatch.setattr(packed_attention, "platform_of", lambda device: CUDA)
    generator = torch.Generator().manual_seed(0)
    sizes = ((4, width), (2, width), (2, values))
    query, key, value = (
        torch.randn(1, heads, 12, each, generator=generator, dtype=torch.float64) for heads, each in sizes
    )
    starts = torch.tensor([0, 7, 12], dtype=torch.int32)
    output, _ = packed_attention.packed_attention(
        torch.nn.Identity(), query, key, value, 0, cu_seq_lens_q=starts, max_length_q=7
    )
    assert bool(calls) is by_kernel
    torch.testing.assert_close(output, packed_attention._row_by_row(query, key, value, starts, None, 0))
