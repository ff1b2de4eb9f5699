"""Checks at loading that the rows of a pack, or of a tree, see nothing of each other: asked of the model itself."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from transformers.modeling_layers import GenericForSequenceClassification

from roll.errors import StrategyError
from roll.models.hf import SequenceModel
from roll.models.loading import LoadedModel
from roll.models.sequences.attention import refusal
from roll.models.sequences.layout import RowLayout
from roll.models.sequences.pack import Pack
from roll.models.sequences.ranks import SequenceRanks

logger = logging.getLogger(__name__)

_BESIDE_ROUNDING = 3  # times what other roundings change: the most that another order of sums may
_SAME_SHAPES = 1e-4  # of a token's norm: equal shapes round alike, but for sums by atomic additions
# Where shapes differ it is the least bound: kernels take exp less exactly than fp32 is.
_LENGTH = 7  # of the rows that are tried
_DRAWS = 5  # of tokens: a fault is there with all, an expert that rounding chooses with some


def ordinary_tokens(model: LoadedModel, rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Token ids [rows, columns], the same in every process, from the part of the vocabulary that texts are made of.
    Special and unused tokens, on which bf16 can be off by 100 %, are at its ends."""
    size = model.pretrained.config.get_text_config().vocab_size
    return torch.randint(size // 20, size * 3 // 4, (rows, columns), generator=torch.Generator().manual_seed(seed))


def check_packs(model: LoadedModel, device: torch.device, ranks: SequenceRanks | None = None) -> None:
    """StrategyError if the hidden states of a row depend on the rows around it, or on which of the `ranks` computes a
    token: where a layer mixes tokens other than by its attention function, or positions do not count within rows."""
    off = _off_with_any_tokens(model, device, lambda tokens: _off_in_packs(model, tokens, ranks))
    if off is not None:
        raise refusal(f"a row is off by {off:.1%} beside other ones")


def _off_in_packs(model: LoadedModel, tokens: torch.Tensor, ranks: SequenceRanks | None) -> float | None:
    row, *others = tokens
    lengths = torch.tensor([_LENGTH, _LENGTH - 2, _LENGTH], device=tokens.device)
    alone, rounding = _alone(model, row[None], lengths[1:2])
    end = int(_counts(model, lengths[:2]).sum())
    between = [
        _hidden(model, torch.stack([before, row, behind]), lengths, ranks)[end - len(alone) : end]
        for before, behind in (others[:2], others[2:])
    ]
    return _off(between[0], alone, rounding) or _off(between[1], between[0], _unseen(model, rounding))


Lay = Callable[[torch.Tensor, torch.Tensor], RowLayout]
"""Lays out the first tokens of rows: (ids [B, T], how many of each)."""


def off_beside_alike(model: LoadedModel, device: torch.device, lay: Lay) -> float | None:
    """Return how far a row is off, relatively, among rows that share prefixes on two levels, laid out by `lay`, from
    what it is in a pack; None: it is the same there."""
    return _off_with_any_tokens(model, device, lambda tokens: _off_in_trees(model, tokens, lay))


def _off_in_trees(model: LoadedModel, tokens: torch.Tensor, lay: Lay) -> float | None:
    row, *others = tokens
    forks = [2, _LENGTH - 3]
    rows, changed = (torch.stack([row, row, *two]) for two in (others[:2], others[2:]))
    for ids in (rows, changed):
        for number, fork in enumerate(forks, 2):
            ids[number, :fork] = row[:fork]
    lengths = torch.tensor([_LENGTH, _LENGTH - 2, _LENGTH, _LENGTH], device=tokens.device)
    alone, rounding = _alone(model, rows, lengths)
    own = int(_counts(model, lengths[:2]).sum())  # tokens that are the same in both
    off: float | None = None
    for order in ([2, 0, 3, 1], [1, 3, 0, 2]):
        first, second = (_in_tree(model, ids, lengths, order, lay) for ids in (rows, changed))
        off = off or _off(first, alone, rounding) or _off(second[:own], first[:own], _unseen(model, rounding[:own]))
    return off


def _off_with_any_tokens(
    model: LoadedModel, device: torch.device, compare: Callable[[torch.Tensor], float | None]
) -> float | None:
    """Largest difference on any rank that `compare` finds for tokens [5, _LENGTH]; None: one draw of them shows none.
    All ranks make the same passes."""
    off = 0.0
    for seed in range(_DRAWS if _has_experts(model) else 1):
        step = partial(compare, ordinary_tokens(model, 5, _LENGTH, seed).to(device))
        off = float(torch.tensor([each or 0.0 for each in of_all_ranks(step)]).max())
        if off == 0:
            return None
    return off


def of_all_ranks(step: Callable[[], float | None]) -> list[Any]:
    """Results of a step, one of each rank. If it fails on one, the others raise StrategyError, and none waits but for
    collectives inside of the step."""
    failure: Exception | None = None
    try:
        found: Any = step()
    except Exception as error:  # of code that came with the model, too
        text = str(error).partition("\n")[0] or type(error).__name__
        failure, found = error, StrategyError(f"another rank: {text}")
        logger.error("%s", text)
    results = [found]
    if dist.is_initialized():
        results *= dist.get_world_size()
        dist.all_gather_object(results, found)
    for each in (failure, *results):
        if isinstance(each, Exception):
            raise each
    return results


def _has_experts(model: LoadedModel) -> bool:
    return any(name.endswith(".experts") for name, _ in model.pretrained.named_modules())


def _in_tree(model: LoadedModel, rows: torch.Tensor, lengths: torch.Tensor, order: list[int], lay: Lay) -> torch.Tensor:
    """Hidden states of the rows, row after row, computed as a tree that is built of them in this order."""
    counts = _counts(model, lengths)
    tree = lay(rows[order], counts[order])
    whole = _hidden(model, rows[order], lengths[order], layout=tree)
    columns = [torch.arange(int(count), device=rows.device) for count in counts]
    places = [tree.places(torch.full_like(at, order.index(row)), at) for row, at in enumerate(columns)]
    return whole[torch.cat(places)]


def _unseen(model: LoadedModel, rounding: torch.Tensor) -> torch.Tensor:
    """The most that a token may change with the tokens of other rows. Where these choose other experts, products have
    other heights, and round otherwise."""
    return rounding if _has_experts(model) else rounding.clamp(max=_SAME_SHAPES)


def _off(computed: torch.Tensor, wanted: torch.Tensor, most: torch.Tensor) -> float | None:
    """The largest relative difference of a token's hidden state (norm of the difference by norm) that is above `most`
    [N]; None: no token's is."""
    off = _difference(computed, wanted)
    return None if bool((off <= most).all()) else float(off[~(off <= most)].max())


def _difference(computed: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return (computed.float() - wanted.float()).norm(dim=-1) / wanted.float().norm(dim=-1)


def _alone(model: LoadedModel, rows: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states [N, H] of the rows as a pack, and how far rounding may move each token in another shape, [N]."""
    alone, differences = _hidden(model, rows, lengths), []
    for seed in range(2):
        with _rounded_otherwise(model.pretrained, seed):
            differences.append(_difference(_hidden(model, rows, lengths), alone))
    return alone, (_BESIDE_ROUNDING * torch.stack(differences).amax(0)).clamp(min=_SAME_SHAPES)


@contextmanager
def _rounded_otherwise(model: nn.Module, seed: int) -> Iterator[None]:
    """Monte Carlo arithmetic: each module's output is off by up to half a unit in the last place of its dtype."""
    draws: dict[torch.device, torch.Generator] = {}

    def rounded(module: nn.Module, inputs: Any, output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) else output
        if not isinstance(first, torch.Tensor) or not first.is_floating_point():
            return None
        draw = draws.setdefault(first.device, torch.Generator(first.device).manual_seed(seed))
        noise = torch.rand(first.shape, generator=draw, device=first.device) * 2 - 1
        first = (first.float() * (1 + noise * (torch.finfo(first.dtype).eps / 2))).to(first.dtype)
        return (first, *output[1:]) if isinstance(output, tuple) else first

    hooks = [module.register_forward_hook(rounded) for module in model.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _counts(model: LoadedModel, lengths: torch.Tensor) -> torch.Tensor:
    """Tokens of the rows that are computed."""
    return lengths if isinstance(model.module, SequenceModel) else lengths - 1


def _hidden(
    model: LoadedModel,
    input_ids: torch.Tensor,
    lengths: torch.Tensor,
    ranks: SequenceRanks | None = None,
    layout: RowLayout | None = None,
) -> torch.Tensor:
    """Hidden states [N, H] of these rows, as a pack or by the `layout`, by the module's own pass, which gathers its
    weights."""
    module, hidden = model.module, []
    if isinstance(module, SequenceModel):
        if not isinstance(module.pretrained, GenericForSequenceClassification):
            raise refusal(f"{type(module.pretrained).__name__} reads rows in a way of its own")
        backbone: torch.nn.Module = module.pretrained.base_model
    else:
        backbone = module.backbone
    hook = backbone.register_forward_hook(lambda *call: hidden.append(call[-1].last_hidden_state[0]))
    try:
        if isinstance(module, SequenceModel):
            pack = Pack.of(input_ids, lengths)
            module(input_ids, lengths, layout or (pack if ranks is None else pack.shared(ranks)))
        else:
            columns = torch.arange(input_ids.shape[1], device=input_ids.device)
            pack = Pack.scored(input_ids, lengths, ranks)
            module(input_ids, columns < lengths[:, None], layout=layout or pack)
    except TypeError as error:
        raise refusal(f"its forward pass takes no packs: {error}") from error
    finally:
        hook.remove()
    if ranks is None:
        return hidden[0].detach()
    return ranks.joined(hidden[0])[: int(_counts(model, lengths).sum())].detach()
