"""What a model family is to Megatron: its weights and its settings. Each is a file in `families`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from transformers import PretrainedConfig

from roll.configs.memory.families import FAMILIES as FACTS
from roll.configs.roles import Head
from roll.errors import StrategyError
from roll.models.megatron.family_table import FAMILIES, family_problem
from roll.models.megatron.rules import Rows, Rule, Vocabulary, Whole

EMBEDDING, HEAD = "embedding.word_embeddings.weight", "output_layer.weight"
# Of the head that predicts further tokens. Beside the weights of an ordinary layer it has these.
PREDICTION_HEAD = re.compile(r"^prediction_head\.(?:layer\.)?")
_OF_PREDICTION_HEAD: Mapping[str, Rule] = {
    "enorm.weight": Whole("enorm.weight"),
    "hnorm.weight": Whole("hnorm.weight"),
    "eh_proj.weight": Rows("eh_proj.weight"),
    "norm.weight": Whole("shared_head.norm.weight"),
}
_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.")
_EXPERT = re.compile(r"\.local_experts\.(\d+)\.")


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


def family_of(config: PretrainedConfig) -> Family:
    """The family of a model. StrategyError for one that is not known, or not in this variant."""
    problem = family_problem(config.to_dict())
    if problem is not None:
        raise StrategyError(problem)
    family: Family = import_module(f"roll.models.megatron.families.{FAMILIES[config.model_type].file}").FAMILY
    return family


def expert_settings(config: PretrainedConfig) -> dict[str, Any]:
    """TransformerConfig's keys for the experts of a mixture: their number, choice and widths, and which layers have
    them. By the family's row (roll.configs.memory.families)."""
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
        match = _LAYER.match(name)
        if match is None:
            rule, place = self._others[name], list(self._others).index(name)
            return Entry(rule, rule.names, (0,) if place == 0 else (2, place))
        inner = name[match.end() :]
        expert = _EXPERT.search(inner)
        number = expert.group(1) if expert else "0"
        template = _EXPERT.sub(".local_experts.{expert}.", inner)
        rule, (group, place) = self._layers[template], self._places[template]
        names = tuple(f"model.layers.{match.group(1)}." + n.format(expert=number) for n in rule.names)
        layer = int(match.group(1))
        if expert is not None and not any("{expert}" in n for n in rule.names):
            return Entry(rule, names, (1, layer, group, place, int(number)), int(number))
        return Entry(rule, names, (1, layer, group, int(number), place))
