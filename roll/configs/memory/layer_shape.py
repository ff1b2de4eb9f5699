"""A model as the arithmetic of memory and FLOPs sees it: every weight, and what a token costs in each layer."""

import math
from dataclasses import dataclass
from typing import Literal

Cut = Literal["whole", "tensor", "vocabulary", "expert"]
SHARED_GATE = "gate of the shared expert"  # a block


@dataclass(frozen=True)
class Weight:
    """A tensor of the model under the name that transformers has for it, or `count` equal ones (a layer's experts).

    `cut`: what divides it: nothing, tensor parallel, tensor parallel with padding (a row per token), or expert
    parallel. `layer`: -1 before the first, number of layers after the last. Weights of a layer with the same
    `block` are one tensor in engines that fuse them. `stored`: name in the model's files, where adapters of experts go
    by it.
    """

    name: str
    shape: tuple[int, ...]
    cut: Cut
    layer: int
    block: str
    count: int = 1
    stored: str = ""

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape) * self.count


@dataclass(frozen=True)
class SavedElements:
    """Elements per token between the forward and the backward pass. `low`: of the model's dtype."""

    low: float = 0.0
    fp32: float = 0.0

    def num_bytes(self, dtype_bytes: int) -> float:
        return self.low * dtype_bytes + self.fp32 * 4


@dataclass(frozen=True)
class LayerShape:
    """Layer as a token meets it: attention, a recurrence, or both side by side, and an MLP.

    - `inside`, `between`: what a backward pass needs, inside attention and MLP, and of norms and inputs beside them.
      Ranks of tensor parallelism share the first, those of sequence parallelism both.
    - `products`: elements of its input, and of the results of its matrix products and its attention.
    - `widest`: what attention, recurrence or MLP have at most in a pass without gradient.
    - `heads`: scores of a pair of tokens. `pair_products`: multiplications for them and for the sum over values.
    - `cached`: elements per token that an engine keeps, which at most `cache_cuts` devices can share.
    - `state`, `convolved`: elements that an engine keeps of each sequence: of a recurrence, and last inputs of its
      convolutions.
    - `experts_per_token`: 0 without a mixture.
    - `trained_passes`: how often a token goes through the layer with a gradient; saved numbers are those of one pass.
    """

    inside: SavedElements
    products: float
    widest: SavedElements
    between: SavedElements = SavedElements()
    heads: int = 0
    pair_products: int = 0
    cached: int = 0
    cache_cuts: int = 1
    state: int = 0
    convolved: int = 0
    experts_per_token: int = 0
    trained_passes: int = 1


Eager = Literal["no", "plain", "capped", "sinks"]


@dataclass(frozen=True)
class ModelShape:
    """All weights and layers of a model.

    - `products`: multiplications of a token before the head, without those of pairs of tokens; `trained_products`: in
      passes with a gradient.
    - `eager`: why transformers' attention keeps the scores of all pairs of tokens, where no other is asked for.
    - `ties_head`: the head is the embedding. A critic has a value head instead, a reward model one of some labels;
      neither is ever tied, and `is_critic` says so of both.
    - `mtp`: weights of the MTP head that files of the model have behind its layers, which only those hold who train it.
    - `states_in_fp32`: a key of config.json asks engines for it.
    - `lacking`: packages whose kernels recurrences would use, and which are not installed.
    """

    weights: tuple[Weight, ...]
    layers: tuple[LayerShape, ...]
    products: float
    trained_products: float
    ties_head: bool
    hidden_size: int
    vocab_size: int
    is_critic: bool = False
    eager: Eager = "no"
    mtp: tuple[Weight, ...] = ()
    states_in_fp32: bool = False
    lacking: tuple[str, ...] = ()

    @property
    def num_elements(self) -> int:
        return sum(weight.num_elements for weight in self.weights)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def head_products(self) -> int:
        """Multiplications of a token with the head."""
        if not self.is_critic:
            return self.vocab_size * self.hidden_size
        return sum(weight.num_elements for weight in self.weights if weight.name == "score.weight")

    @property
    def experts_per_token(self) -> int:
        """Largest number of any layer; 0: a dense model."""
        return max(layer.experts_per_token for layer in self.layers)

    @property
    def has_states(self) -> bool:
        """Whether engines keep states of sequences."""
        return any(layer.state or layer.convolved for layer in self.layers)

    @property
    def cache_cuts(self) -> int:
        """Devices that can share the keys and values of a token."""
        return max(layer.cache_cuts for layer in self.layers)
