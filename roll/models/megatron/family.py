"""How one Megatron parameter and its Hugging Face tensors become each other, under any tensor-parallel size.

A rule names the Hugging Face tensors (with `{layer}` and `{expert}` where they occur) and knows two directions:
`split` takes the full tensors and gives the part of one tensor-parallel rank, `merge` takes the parts of all ranks and
gives the full tensors back. What both directions need of the model are `Shapes`.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig

from roll.configs.sections.model import Head
from roll.configs.tables.families import FAMILIES as FACTS


@dataclass(frozen=True)
class Shapes:
    """Sizes of the model that its weights' layout depends on."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int


class Rule(ABC):
    """One Megatron parameter. `names` are its Hugging Face tensors, in the order of `split` and `merge`."""

    is_split = True  # False: every tensor-parallel rank holds the whole

    def __init__(self, *names: str):
        self.names = names

    @abstractmethod
    def split(self, full: Sequence[torch.Tensor], rank: int, size: int, shapes: Shapes) -> torch.Tensor:
        """The part of tensor-parallel rank `rank` of `size`."""

    @abstractmethod
    def merge(self, parts: Sequence[torch.Tensor], shapes: Shapes) -> list[torch.Tensor]:
        """The full tensors, from the parts of all tensor-parallel ranks in order."""


class Whole(Rule):
    """The same on every tensor-parallel rank: norms, routers, value heads."""

    is_split = False

    def split(self, full: Sequence[torch.Tensor], rank: int, size: int, shapes: Shapes) -> torch.Tensor:
        return full[0]

    def merge(self, parts: Sequence[torch.Tensor], shapes: Shapes) -> list[torch.Tensor]:
        return [parts[0]]


class Columns(Rule):
    """A matrix whose input is divided: [out, in / size]."""

    def split(self, full: Sequence[torch.Tensor], rank: int, size: int, shapes: Shapes) -> torch.Tensor:
        return full[0].chunk(size, dim=1)[rank]

    def merge(self, parts: Sequence[torch.Tensor], shapes: Shapes) -> list[torch.Tensor]:
        return [torch.cat(list(parts), dim=1)]


class InputRows(Rule):
    """Columns of a matrix that Hugging Face has the other way round, [in, out]."""

    def split(self, full: Sequence[torch.Tensor], rank: int, size: int, shapes: Shapes) -> torch.Tensor:
        return full[0].chunk(size)[rank].T

    def merge(self, parts: Sequence[torch.Tensor], shapes: Shapes) -> list[torch.Tensor]:
        return [torch.cat(list(parts), dim=1).T]


class Rows(Rule):
    """A matrix whose output is divided, [out / size, in], or one number per output."""

    def split(self, full: Sequence[torch.Tensor], rank: int, size: int, shapes: Shapes) -> torch.Tensor:
        return full[0].chunk(size)[rank]

    def merge(self, parts: Sequence[torch.Tensor], shapes: Shapes) -> list[torch.Tensor]:
        return [torch.cat(list(parts))]


class Vocabulary(Rule):
    """A row per token: [padded vocabulary / size, hidden]. Rows beyond the vocabulary are zeros and leave again on the
    way back."""

    def split(self, full: Sequence[torch.Tensor], rank: int, size: int, shapes: Shapes) -> torch.Tensor:
        rows = padded_vocab_size(shapes.vocab_size, size) // size
        mine = full[0][rank * rows : (rank + 1) * rows]
        return torch.nn.functional.pad(mine, (0, 0, 0, rows - len(mine)))

    def merge(self, parts: Sequence[torch.Tensor], shapes: Shapes) -> list[torch.Tensor]:
        return [torch.cat(list(parts))[: shapes.vocab_size]]


class GateUp(Rule):
    """Two matrices in one, each rank's gate rows above its up rows."""

    def split(self, full: Sequence[torch.Tensor], rank: int, size: int, shapes: Shapes) -> torch.Tensor:
        return torch.cat([tensor.chunk(size)[rank] for tensor in full])

    def merge(self, parts: Sequence[torch.Tensor], shapes: Shapes) -> list[torch.Tensor]:
        gates, ups = zip(*(part.chunk(2) for part in parts), strict=True)
        return [torch.cat(gates), torch.cat(ups)]


class FusedGateUp(Rule):
    """Gate and up rows of one matrix in Hugging Face, too: all gate rows above all up rows."""

    def split(self, full: Sequence[torch.Tensor], rank: int, size: int, shapes: Shapes) -> torch.Tensor:
        return _APART.split(full[0].chunk(2), rank, size, shapes)

    def merge(self, parts: Sequence[torch.Tensor], shapes: Shapes) -> list[torch.Tensor]:
        return [torch.cat(_APART.merge(parts, shapes))]


class InterleavedGateUp(Rule):
    """The same where Hugging Face has a gate channel beside its up channel, in the last dimension: [in, 2 * out], or
    [2 * out] of biases."""

    def split(self, full: Sequence[torch.Tensor], rank: int, size: int, shapes: Shapes) -> torch.Tensor:
        rows = full[0].movedim(-1, 0)
        return _APART.split([rows[::2], rows[1::2]], rank, size, shapes)

    def merge(self, parts: Sequence[torch.Tensor], shapes: Shapes) -> list[torch.Tensor]:
        return [torch.stack(_APART.merge(parts, shapes), dim=1).flatten(0, 1).movedim(0, -1)]


_APART = GateUp()


class QueryKeyValue(Rule):
    """Three matrices (or biases) in one, by key-value head: its query heads, its key head, its value head, then the
    next.

    Example: 4 heads, 2 key-value heads: q0 q1 k0 v0 | q2 q3 k1 v1. Tensor parallel 2 cuts at the bar.
    """

    def split(self, full: Sequence[torch.Tensor], rank: int, size: int, shapes: Shapes) -> torch.Tensor:
        groups, rest = shapes.num_kv_heads, full[0].shape[1:]
        by_group = [tensor.reshape(groups, -1, *rest).chunk(size)[rank] for tensor in full]
        return torch.cat(by_group, dim=1).reshape(-1, *rest)

    def merge(self, parts: Sequence[torch.Tensor], shapes: Shapes) -> list[torch.Tensor]:
        whole = torch.cat(list(parts))
        rest = whole.shape[1:]
        queries = shapes.num_heads // shapes.num_kv_heads * shapes.head_dim
        by_group = whole.reshape(shapes.num_kv_heads, -1, *rest).split(
            [queries, shapes.head_dim, shapes.head_dim], dim=1
        )
        return [tensor.reshape(-1, *rest) for tensor in by_group]


def padded_vocab_size(vocab_size: int, tensor_parallel: int) -> int:
    """Rows of the embedding: the vocabulary, rounded up so that tensor-parallel ranks have equally many, in eights.

    Example: 100 tokens on 2 ranks: 112, 56 each.
    """
    step = 8 * tensor_parallel
    return -(-vocab_size // step) * step


# What a model family is to Megatron: its weights and its settings. All are in families.py.

EMBEDDING, HEAD = "embedding.word_embeddings.weight", "output_layer.weight"
# Of the MTP head. Beside the weights of an ordinary layer it has these.
PREDICTION_HEAD = re.compile(r"^prediction_head\.(?:layer\.)?")
_OF_PREDICTION_HEAD: Mapping[str, Rule] = {
    "enorm.weight": Whole("enorm.weight"),
    "hnorm.weight": Whole("hnorm.weight"),
    "eh_proj.weight": Rows("eh_proj.weight"),
    "norm.weight": Whole("shared_head.norm.weight"),
}
LAYER = re.compile(r"^decoder\.layers\.(\d+)\.")
EXPERT = re.compile(r"\.local_experts\.(\d+)\.")


@dataclass(frozen=True)
class Family:
    """`layer_weights` maps a parameter of a decoder layer (without `decoder.layers.N.`) to its rule, in the order in
    which Hugging Face lists them; its names stand without `model.layers.N.`, `{expert}` is the expert's number. Names
    of an expert's rule without it are tensors of all experts of the layer, of which the rule sees one expert's.
    `settings` gives TransformerConfig's keys that a config.json decides, beyond those that all families share.
    `norms_outputs`: what attention and MLP give is normed before it is added to the residual."""

    layer_weights: Mapping[str, Rule]
    settings: Any  # (PretrainedConfig) -> dict[str, Any]
    norms_outputs: bool = False


def expert_settings(config: PretrainedConfig) -> dict[str, Any]:
    """TransformerConfig's keys for the experts of a mixture: their number, choice and widths, and which layers have
    them. By the family's row (roll.configs.tables.families)."""
    experts = FACTS[config.model_type].experts
    assert experts is not None, "a family of mixtures"
    model = {key: getattr(config, key) for key in experts.needed}
    settings: dict[str, Any] = {
        "num_moe_experts": model[experts.number],
        "moe_router_topk": model["num_experts_per_tok"],
        "moe_ffn_hidden_size": model[experts.width],
    }
    if experts.shared:
        settings["moe_shared_expert_intermediate_size"] = experts.shared_width(model)
    if experts.is_sparse is not None:
        whole = config.to_dict()
        settings["moe_layer_freq"] = [int(experts.is_sparse(whole, n)) for n in range(config.num_hidden_layers)]
    return settings


@dataclass(frozen=True)
class Entry:
    """One Megatron parameter with the Hugging Face tensors it stands for. `expert`: the number of the one whose slices
    of tensors of all experts these are."""

    rule: Rule
    hf_names: tuple[str, ...]
    order: tuple[int, ...]  # where it stands among the model's weights
    expert: int | None = None


class WeightMap:
    """Every parameter of one model by its global name (layers and experts counted over all ranks)."""

    def __init__(self, family: Family, head: Head):
        self._layers = {**family.layer_weights, **_OF_PREDICTION_HEAD}
        places = {name: place for place, name in enumerate(self._layers)}
        experts = [place for name, place in places.items() if "{expert}" in name]
        # All of one expert's weights, then the next one's; and a bias behind the weight it belongs to.
        self._places = {
            name: (min(experts) if place in experts else places.get(name.replace(".bias", ".weight"), place), place)
            for name, place in places.items()
        }
        self._others: dict[str, Rule] = {
            EMBEDDING: Vocabulary("model.embed_tokens.weight"),
            "decoder.final_layernorm.weight": Whole("model.norm.weight"),
        }
        if head == "lm":
            self._others[HEAD] = Vocabulary("lm_head.weight")
        else:
            self._others[HEAD] = Whole("score.weight")
        if head == "value":
            self._others["output_layer.bias"] = Whole("score.bias")

    def entry(self, name: str) -> Entry:
        """KeyError for a parameter the family's map does not have."""
        match = LAYER.match(name)
        if match is None:
            rule, place = self._others[name], list(self._others).index(name)
            return Entry(rule, rule.names, (0,) if place == 0 else (2, place))
        inner = name[match.end() :]
        expert = EXPERT.search(inner)
        number = expert.group(1) if expert else "0"
        template = EXPERT.sub(".local_experts.{expert}.", inner)
        rule, (group, place) = self._layers[template], self._places[template]
        names = tuple(f"model.layers.{match.group(1)}." + n.format(expert=number) for n in rule.names)
        layer = int(match.group(1))
        if expert is not None and not any("{expert}" in n for n in rule.names):
            return Entry(rule, names, (1, layer, group, place, int(number)), int(number))
        return Entry(rule, names, (1, layer, group, int(number), place))
