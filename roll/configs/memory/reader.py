"""Numbers of a config.json as the arithmetic reads them, and a layer's weights as they are listed."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from roll.configs.memory.layer_shape import Attention, Cut, LayerShape, Weight
from roll.configs.tables.families import Norm

MOST = 10**7  # of any size; what is above is damaged, and counting its layers would take for ever
MOST_LAYERS = 10_000
LOOKED_UP = "table"
"""Block of tables beside the embedding: of positions, or of each layer's own inputs (Gemma-3n, Gemma-4)."""
GRANITE_FILES = ("block_sparse_moe.input_linear", "block_sparse_moe.output_linear")
"""Names of a layer's experts in files of Granite."""


class UnreadableModel(Exception):
    """A config.json that lacks a key, or has a wrong value; the text says which."""


@dataclass(frozen=True)
class Reader:
    """A config.json. Where it has no value, a default of transformers holds, or it is unreadable."""

    model: Mapping[str, Any]

    def size(self, *names: str, default: int | None = None, least: int = 1, most: int = MOST) -> int:
        """The first of several keys that is there: a whole number."""
        for name in names:
            if (value := self.model.get(name)) is not None:
                if type(value) is not int or not least <= value <= most:
                    raise UnreadableModel(f"config.json: {name} is not a whole number from {least} to {most}")
                return value
        if default is None:
            raise UnreadableModel(f"config.json lacks {names[0]}")
        return default

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.model.get(name)
        if not isinstance(value, bool | None):
            raise UnreadableModel(f"config.json: {name} is neither true nor false")
        return default if value is None else value

    def texts(self, name: str, count: int) -> list[str] | None:
        """One text for each layer; None where the key is missing."""
        value = self.model.get(name)
        if value is None:
            return None
        if not (isinstance(value, list) and len(value) == count and all(isinstance(each, str) for each in value)):
            raise UnreadableModel(f"config.json: {name} is not a list with one text per layer")
        return value

    def numbers(self, name: str) -> list[int]:
        """A list of whole numbers; empty where the key is missing."""
        value = self.model.get(name)
        if value is None:
            return []
        if not (isinstance(value, list) and all(type(each) is int for each in value)):
            raise UnreadableModel(f"config.json: {name} is not a list of whole numbers")
        return value

    @property
    def num_layers(self) -> int:
        return self.size("num_hidden_layers", "n_layer", "num_layers", "n_layers", most=MOST_LAYERS)

    @property
    def hidden(self) -> int:
        return self.size("hidden_size", "n_embd", "d_model")


@dataclass
class LayerWeights:
    """The weights of one layer, in the order in which they are added. `at`: the name of the layer."""

    at: str
    layer: int
    weights: list[Weight] = field(default_factory=list)

    def linear(
        self, name: str, rows: int, columns: int, bias: bool = False, cut: Cut = "tensor", block: str = ""
    ) -> None:
        """A matrix [rows, columns], and a bias of its rows."""
        self.tensor(f"{name}.weight", rows, columns, cut=cut, block=block or name)
        if bias:
            self.tensor(f"{name}.bias", rows, cut=cut, block=f"bias of {block or name}")

    def norm(self, name: str, size: int, bias: bool = False) -> None:
        self.tensor(f"{name}.weight", size)
        if bias:
            self.tensor(f"{name}.bias", size)

    def tensor(self, name: str, *shape: int, cut: Cut = "whole", block: str = "") -> None:
        self.weights.append(Weight(f"{self.at}.{name}", shape, cut, self.layer, block or name))

    def gated(self, at: str, hidden: int, width: int, bias: bool = False) -> None:
        """An MLP of three matrices."""
        for name in ("gate_proj", "up_proj"):
            self.linear(f"{at}.{name}", width, hidden, bias, block=f"gate and up of {at}")
        self.linear(f"{at}.down_proj", hidden, width, bias)

    def experts(self, at: str, count: int, hidden: int, width: int, is_gated: bool = True) -> None:
        """The experts of a mixture, each of whose matrices files have by itself."""
        matrices = {"gate_proj": (width, hidden)} if is_gated else {}
        matrices |= {"up_proj": (width, hidden), "down_proj": (hidden, width)}
        for name, shape in matrices.items():
            block = "down of the experts" if name == "down_proj" else "gate and up of the experts"
            full = f"{self.at}.{at}.{{expert}}.{name}.weight"
            self.weights.append(Weight(full, shape, "expert", self.layer, block, count))

    def stacked_experts(self, at: str, count: int, hidden: int, width: int, stored: tuple[str, str] | None) -> None:
        """The experts of a mixture that files hold in two tensors, by these names; None: they can have no adapters."""
        names = {"gate_up_proj": (2 * width, hidden), "down_proj": (hidden, width)}
        for place, (name, shape) in enumerate(names.items()):
            block = "down of the experts" if name == "down_proj" else "gate and up of the experts"
            full, held = f"{self.at}.{at}.{{expert}}.{name}", (1, *shape) if stored is None else shape
            in_files = "" if stored is None else f"{self.at}.{stored[place]}"
            self.weights.append(Weight(full, held, "expert", self.layer, block, count, in_files))

    def attention(
        self,
        hidden: int,
        sizes: "HeadSizes",
        bias: bool = False,
        output_bias: bool = False,
        at: str = "self_attn",
        output: str = "o_proj",
    ) -> Attention:
        """Projections of queries, keys, values and their mixture. Gates of queries are rows of their projection."""
        heads, kv_heads, size = sizes.heads, sizes.kv_heads, sizes.size
        queries = heads * size * (2 if sizes.has_gates else 1)
        for name, rows in (("q_proj", queries), ("k_proj", kv_heads * size), ("v_proj", kv_heads * size)):
            self.linear(f"{at}.{name}", rows, hidden, bias, block=f"qkv of {at}")
        self.linear(f"{at}.{output}", hidden, heads * size, output_bias)
        return sizes.attention


@dataclass(frozen=True)
class HeadSizes:
    """Attention of `heads` queries and `kv_heads` keys and values of `size` numbers. `is_fused`: one projection puts
    all of them out, of which values are a view. `is_clipped`: what the projections put out."""

    heads: int
    kv_heads: int
    size: int
    has_gates: bool = False
    has_norms: bool = False
    is_fused: bool = False
    is_clipped: bool = False

    @property
    def attention(self) -> Attention:
        width, keys = self.heads * self.size, self.kv_heads * self.size
        gates = width if self.has_gates else 0
        again = width + keys if self.is_fused else width + 2 * keys if self.is_clipped else 0
        return Attention(
            projected=width + gates + 2 * keys,
            mixed=width,
            cached=2 * keys,
            cache_cuts=self.kv_heads,
            products=2 * width,
            heads=self.heads,
            saved=2 * width + 2 * keys + 2 * gates + again,  # of a gate its sigmoid, and what it lets through
            normed=width + keys if self.has_norms else 0,
        )


def head_sizes(model: Reader, default: int | None = None, has_gates: bool = False) -> HeadSizes:
    """The heads of a config.json. `default`: the size of one where the file names none; None: hidden size / heads."""
    heads = model.size("num_attention_heads", "n_head", "num_heads", "n_heads")
    size = model.size("head_dim", default=default or max(1, model.hidden // heads))
    return HeadSizes(heads, model.size("num_key_value_heads", default=heads), size, has_gates)


def latent_attention(layer: LayerWeights, model: Reader, at: str = "self_attn") -> Attention:
    """Adds attention whose queries, keys and values come through narrow layers (DeepSeek-V2, arXiv 2405.04434)."""
    hidden, heads, bias = model.hidden, model.size("num_attention_heads"), model.flag("attention_bias")
    plain, turned, value = (model.size(key) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    latent, queries = model.size("kv_lora_rank"), heads * (plain + turned)
    query = model.size("q_lora_rank", default=0)
    if query:
        layer.linear(f"{at}.q_a_proj", query, hidden, bias)
        layer.norm(f"{at}.q_a_layernorm", query)
        layer.linear(f"{at}.q_b_proj", queries, query)
    else:
        layer.linear(f"{at}.q_proj", queries, hidden)
    layer.linear(f"{at}.kv_a_proj_with_mqa", latent + turned, hidden, bias)
    layer.norm(f"{at}.kv_a_layernorm", latent)
    layer.linear(f"{at}.kv_b_proj", heads * (plain + value), latent)
    layer.linear(f"{at}.o_proj", hidden, heads * value, bias)
    return latent_sizes(heads, query, latent, plain, turned, value)


def latent_sizes(heads: int, query: int, latent: int, plain: int, turned: int, value: int) -> Attention:
    """Attention through narrow layers of `query` (0: none) and `latent` numbers. A head's key is put together from one
    part of its own and one that all share. Where values are narrower, they are padded, and so is their mixture; else
    they stay beside the head's own part."""
    key = plain + turned
    of_head = 2 * key + (2 * key + value if key > value else plain + 2 * value)
    return Attention(
        projected=query + latent + turned + heads * (key + plain + value),
        mixed=heads * value,
        cached=latent + turned,
        cache_cuts=1,
        products=heads * (key + value),
        heads=heads,
        saved=query + latent + heads * of_head,
        normed=query + latent,
    )


def kinds_of(model: Reader, default: Callable[[int], str], *names: str) -> list[str]:
    """Kind of each layer, in today's words: as one of the keys says, or by its number."""
    for name in (*names, "layer_types"):
        if (kinds := model.texts(name, model.num_layers)) is not None:
            return [TODAY.get(kind, kind) for kind in kinds]
    return [default(layer) for layer in range(model.num_layers)]


TODAY = {"attention": "full_attention", "mamba": "linear_attention", "recurrent": "linear_attention"}


def is_attention(kind: str, *others: str) -> bool:
    if kind == "full_attention":
        return True
    if kind not in others:
        raise UnreadableModel(f"config.json: the memory formulas know no layers of kind {kind}")
    return False


def add_decays(add: LayerWeights, at: str, *shape: int) -> None:
    add.tensor(f"{at}.dt_bias", *shape, cut="tensor")
    add.tensor(f"{at}.A_log", *shape, cut="tensor")


@dataclass(frozen=True)
class Form:
    """A type of model. `layer` adds the weights of a layer and says what a token meets there. `ends`: vectors behind
    the last layer. `ties_head`: the head is the embedding where config.json does not say; None: it never is, whatever
    config.json says. `head_bias`: whether the head has one. `others`: further weights, before the first layer."""

    layer: Callable[[Reader, int, LayerWeights], LayerShape]
    embedding: str = "model.embed_tokens"
    layers: str = "model.layers"
    ends: tuple[str, ...] = ("model.norm.weight",)
    ties_head: bool | None = False
    head: str = "lm_head"
    head_bias: Callable[[Reader], bool] = lambda _: False
    count: Callable[[Reader], int] = lambda model: model.num_layers
    others: Callable[[Reader], Iterable[tuple[str, tuple[int, ...]]]] = lambda _: ()
    norm: Norm = "rms"


def own_weights(model: Reader, form: Form) -> tuple[list[Weight], list[LayerShape]]:
    """Every weight but those of the head, and the layers."""
    table = (model.size("vocab_size"), model.hidden)
    weights = [Weight(f"{form.embedding}.weight", table, "vocabulary", -1, "embedding")]
    for name, shape in form.others(model):
        is_multiplied = "_projection" in name and len(shape) == 2
        is_looked_up = not is_multiplied and len(shape) == 2 and ("embed_" in name or ".wpe." in name)
        block = LOOKED_UP if is_looked_up else name
        weights.append(Weight(name, shape, "tensor" if is_multiplied else "whole", -1, block))
    shapes: list[LayerShape] = []
    count = form.count(model)
    for layer in range(count):
        add = LayerWeights(f"{form.layers}.{layer}", layer)
        shapes.append(form.layer(model, layer, add))
        weights += add.weights
    weights += (Weight(name, (model.hidden,), "whole", count, "norm") for name in form.ends)
    return weights, shapes
