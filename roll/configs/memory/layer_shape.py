"""A model as the arithmetic of memory and FLOPs sees it: every weight, and what a token costs in each layer."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from roll.configs.tables.families import Norm

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
class Attention:
    """Elements per token of one layer.

    - `projected`: of all that the projections before the scores put out.
    - `mixed`: of what goes into the projection behind them.
    - `saved`: of what a backward pass needs in the model's dtype: queries, keys and values as their product takes them,
      its result, inputs of matrices beside the layer's own, and whatever else a type has.
    - `normed`: of queries, keys and whatever else has norms of its own.
    - `cached`: of what an engine keeps, which at most `cache_cuts` devices can share.
    - `products`: multiplications for the scores of a pair of tokens and the sum over values.
    - `heads`: scores of a pair of tokens.
    """

    projected: int
    mixed: int
    cached: int
    cache_cuts: int
    products: int
    heads: int
    saved: int
    normed: int = 0


@dataclass(frozen=True)
class SavedElements:
    """Elements per token between the forward and the backward pass. `low`: of the model's dtype."""

    low: float
    fp32: float

    def num_bytes(self, dtype_bytes: int) -> float:
        return self.low * dtype_bytes + self.fp32 * 4


@dataclass(frozen=True)
class Recurrence:
    """Part of a layer that carries a state from token to token, without the input of its first matrix.

    - `in_torch`, `in_kernels`: what a pass keeps, in the torch form of transformers and with the kernels of `package`
      ("": there are none, both are equal). `in_parts`: where one kernel for all of it cannot be used.
    - `channels`: of its convolution, over `kernel` tokens; engines keep the last inputs of each, in the model's dtype.
    - `state`: elements of the state of a sequence. `in_fp32`: vLLM keeps it in fp32 where no key says otherwise.
    - `projected`: elements per token that its matrices put out, but the last one.
    - `products`: multiplications per token to change the state and to read it.
    - `chunk`: tokens that the torch form computes together; a row's last chunk is filled up.
    """

    in_torch: SavedElements
    in_kernels: SavedElements
    in_parts: SavedElements
    package: str
    channels: int
    kernel: int
    state: int
    projected: int
    products: int
    in_fp32: bool = False
    chunk: int = 1


@dataclass(frozen=True)
class LayerShape:
    """Layer as a token meets it: attention, a recurrence, or both side by side, and an MLP.

    - `ffn_width`: of the MLP, in a mixture of the experts that a token goes to together; 0: there is none.
    - `experts_per_token`: 0 without a mixture. `has_shared`: beside them there is what every token meets.
    - `num_norms`: as wide as the hidden states.
    - `num_inputs`: of attention, recurrence, MLP and gate of a shared expert; 1 where all have the same.
    - `is_gated`: the MLP has a matrix for gates as well.
    - `routes_in_fp32`: the router, from a copy of its input.
    - `passes`: how often a token goes through the layer, of which a backward pass knows `trained_passes`.
    """

    attention: Attention | None = None
    recurrence: Recurrence | None = None
    ffn_width: int = 0
    experts_per_token: int = 0
    num_norms: int = 2
    num_inputs: int = 2
    is_gated: bool = True
    routes_in_fp32: bool = False
    has_shared: bool = False
    passes: int = 1
    trained_passes: int = 1


Eager = Literal["no", "plain", "capped", "sinks"]


@dataclass(frozen=True)
class ModelShape:
    """`eager`: why transformers' attention keeps the scores of all pairs of tokens, where no other is asked for.
    `ties_head`: the head is the embedding. A critic has a value head instead, a reward model one of some labels;
    neither is ever tied, and `is_critic` says so of both. `mtp`: weights of the MTP head that files of the model have
    behind its layers, which only those hold who train it. `norm`, `activation`: those of all layers."""

    weights: tuple[Weight, ...]
    mtp: tuple[Weight, ...]
    layers: tuple[LayerShape, ...]
    hidden_size: int
    vocab_size: int
    ties_head: bool
    is_critic: bool
    eager: Eager = "no"
    norm: Norm = "rms"
    activation: str = ""

    @property
    def num_elements(self) -> int:
        return sum(weight.num_elements for weight in self.weights)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def experts_per_token(self) -> int:
        """Largest number of any layer; 0: a dense model."""
        return max(layer.experts_per_token for layer in self.layers)

    @property
    def attentions(self) -> Iterator[Attention]:
        """Attention of the layers that have one."""
        return (layer.attention for layer in self.layers if layer.attention is not None)

    @property
    def recurrences(self) -> Iterator[Recurrence]:
        """Recurrences of the layers that have one."""
        return (layer.recurrence for layer in self.layers if layer.recurrence is not None)

    @property
    def cache_cuts(self) -> int:
        """Devices that can share the keys and values of a token."""
        return max((attention.cache_cuts for attention in self.attentions), default=1)
