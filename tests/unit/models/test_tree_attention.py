"""Attention in parts against a dense mask in fp64: outputs and gradients."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from roll.models.sequences import tree_attention as subject
from roll.models.sequences.tree_attention import TreeParts, tree_attention
from roll.types.forest import Forest, forest_of
from tests.unit.types.test_forest import Rows, random_rows

CPU = torch.device("cpu")
Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def inputs(
    forest: Forest, dtype: torch.dtype, heads: int = 4, groups: int = 2, width: int = 8, values: int = 8
) -> Parts:
    """As a model's layers have them: heads are strided views of [1, N, heads, D]."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((heads, width), (groups, width), (groups, values))
    drawn = (torch.randn(1, forest.num_tokens, *s, generator=generator, dtype=torch.float64) for s in shapes)
    query, key, value = (part.to(dtype).transpose(1, 2).requires_grad_() for part in drawn)
    return query, key, value


def dense(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: Rows, forest: Forest, window: int = 0
) -> torch.Tensor:
    """A token sees those of its rows that do not come after it, in a `window` so many."""
    sees = np.zeros((forest.num_tokens, forest.num_tokens), bool)
    for first, row in zip(forest.first, rows, strict=True):
        places = forest.places[first : first + len(row)]
        sees[np.ix_(places, places)] |= np.triu(np.tril(np.ones((len(row), len(row)), bool)), 1 - (window or len(row)))
    each = query.shape[1] // key.shape[1]
    key, value = (part.double().repeat_interleave(each, 1) for part in (key, value))
    scores = query.double() @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    return (scores.masked_fill(~torch.from_numpy(sees), -np.inf).softmax(-1) @ value).transpose(1, 2)


def results(attend: Callable[[Parts], torch.Tensor], parts: Parts) -> list[torch.Tensor]:
    """The output, and the gradients of query, key and value."""
    output = attend(parts)
    weights = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view(output.shape)
    gradients = torch.autograd.grad((output.double() * weights).sum(), parts)
    return [part.detach().double() for part in (output, *gradients)]


def errors(rows: Rows, dtype: torch.dtype, window: int = 0, **sizes: int) -> list[float]:
    """Largest difference of each result, in parts of its largest entry."""
    forest = forest_of(rows, least_saved=0)
    parts = inputs(forest, dtype, **sizes)
    got = results(lambda given: tree_attention(*given, TreeParts(forest, CPU), window=window), parts)
    want = results(lambda given: dense(*given, rows, forest, window), parts)
    return [float((a - b).abs().max() / b.abs().max()) for a, b in zip(got, want, strict=True)]


def chain(levels: int) -> Rows:
    """Turns whose thoughts are not in the next one: a branch on every level."""
    row = np.arange(4 * levels)
    return [np.append(row[: 4 * n], [900 + n] * 3) for n in range(1, levels + 1)]


@pytest.mark.parametrize("seed", range(20))
def test_outputs_and_gradients_of_random_forests(seed: int) -> None:
    rows = random_rows(seed)
    assert max(errors(rows, torch.float64)) < 1e-12
    assert max(errors(rows, torch.float32)) < 1e-5


@pytest.mark.parametrize("window", [1, 2, 5, 9])
@pytest.mark.parametrize("seed", range(8))
def test_windows_of_any_length(seed: int, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one token: its own value. Longer than a row: all of it. Nodes are cut into pieces of a window."""
    monkeypatch.setattr(subject, "_SHORTEST", 2)
    rows = random_rows(seed)
    if window > 1:
        assert max(errors(rows, torch.float64, window)) < 1e-12
    assert errors(rows, torch.float64, window)[0] < 1e-12
    assert max(errors(chain(6), torch.float32, 5)) < 1e-5


@pytest.mark.parametrize(
    "sizes",
    [{"heads": 4, "groups": 4}, {"heads": 4, "groups": 1}, {"width": 8, "values": 5}, {"width": 6, "values": 9}],
    ids=["own heads", "one group", "narrow values", "wide values"],
)
def test_heads_and_widths_of_any_number(sizes: dict[str, int]) -> None:
    assert max(errors(random_rows(3), torch.float32, **sizes)) < 1e-5


def test_sixteen_levels_in_bf16_stay_within_its_rounding() -> None:
    """Each level rounds once more: eps is .008, of the largest entry."""
    assert max(errors(chain(16), torch.bfloat16)) < 0.03
    assert max(errors(chain(16), torch.float32)) < 1e-5


def test_its_gradient_is_that_of_its_output() -> None:
    forest = forest_of(random_rows(5)[:6], least_saved=0)
    parts = inputs(forest, torch.float64, heads=2, groups=1, width=4, values=4)
    assert torch.autograd.gradcheck(
        lambda q, k, v: tree_attention(q, k, v, TreeParts(forest, CPU)), parts, nondet_tol=1e-9
    )


def test_torchs_kernel_is_as_it_is_used() -> None:
    """Private to torch, and pinned here: an update that changes it fails this test first."""
    query, key = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 3, 8)
    out, lse = subject._CPU_FORWARD(query, key, key, 0.0, False, scale=0.5)
    scores = query @ key.repeat_interleave(2, 1).transpose(-1, -2) * 0.5
    assert lse.shape == (1, 4, 5) and lse.dtype == torch.float32
    torch.testing.assert_close(lse, scores.logsumexp(-1))
    pulls = subject._CPU_BACKWARD(out, query, key, key, out, lse, 0.0, False, scale=0.5)
    assert [pull.shape for pull in pulls] == [query.shape, key.shape, key.shape]
