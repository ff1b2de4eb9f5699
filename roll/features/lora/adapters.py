"""LoRA: adapters that are trained instead of the weights. The one module that knows peft.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (arXiv 2106.09685): W becomes W + s B A, with B of r
columns and A of r rows. W is frozen; B starts at 0, so that a new adapter changes nothing.
"""

import json
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from roll.configs.sections.model import ALL_LINEAR, Head, ModelArgs
from roll.configs.tables.sight import SEES, names_part
from roll.configs.tables.vision import VISION
from roll.errors import StrategyError
from roll.features.lora.checks import FUSED_EXPERTS, PEFT, REFUSED_WORDS, other_form
from roll.features.lora.experts import ExpertAdapters, ExpertMatrix, expert_matrices, matrices_of, put_on
from roll.features.lora.model_checks import EXPERTS_AND_RSLORA, EXPERTS_WITHOUT_DOWN
from roll.models.experts.ranks import whole_shape
from roll.models.exports import ADAPTER, Exported, LowRank, plain_name

_PREFIX = "base_model.model."  # of names in peft's files
_SCORE = "score"  # the head of a critic or a reward model
_EXPERTS = ".experts."  # in names of what a mixture has many of
_OF_EXPERTS = ("gate_proj", "up_proj", "down_proj")
_ONE_WEIGHT = "embedding and head are one weight in this model (tie_word_embeddings)"
_TASKS: Mapping[Head, str] = {"lm": "CAUSAL_LM", "value": "TOKEN_CLS", "reward": "SEQ_CLS"}


class Adapters:
    """Adapters of one model, and modules that are trained in full beside them. `head`: weights of the `score` of a
    model that has one, where the adapter that was loaded holds them. `experts`: adapters beside peft's, of
    `matrices`."""

    def __init__(
        self,
        peft_model: Any,
        head: Mapping[str, torch.Tensor],
        experts: Sequence[ExpertAdapters] = (),
        matrices: Sequence[ExpertMatrix] = (),
    ):
        self._peft, self.head, self._experts, self._matrices = peft_model, head, experts, matrices
        self._dropouts = [module for name, module in peft_model.named_modules() if f".lora_dropout.{ADAPTER}" in name]

    @contextmanager
    def off(self) -> Iterator[None]:
        """Inside, the model is the one that the adapters were put on, to the bit. peft would also take their
        requires_grad away, by which FSDP2 tells in its first pass what is trained."""
        trained = [parameter for parameter in self._peft.parameters() if parameter.requires_grad]
        self._peft.base_model.disable_adapter_layers()
        for parameter in trained:
            parameter.requires_grad_(True)
        for experts in self._experts:
            experts.is_on = False
        try:
            yield
        finally:
            self._peft.base_model.enable_adapter_layers()
            for experts in self._experts:
                experts.is_on = True

    @contextmanager
    def without_dropout(self) -> Iterator[None]:
        for dropout in self._dropouts:
            dropout.eval()
        try:
            yield
        finally:
            for dropout in self._dropouts:
                dropout.train()

    def low_rank_part(self, layer: Any, states: torch.Tensor) -> tuple[Any, LowRank | None]:
        """A linear layer without its adapter, and the factors of what that adds to its output: s A x and B. None: it
        has none, or it is off."""
        if not hasattr(layer, "lora_A"):
            return layer, None
        base = layer.get_base_layer()
        if layer.disable_adapters:
            return base, None
        down, up = layer.lora_A[ADAPTER], layer.lora_B[ADAPTER]
        states = layer.lora_dropout[ADAPTER](states.to(down.weight.dtype))
        return base, ((down(states) * layer.scaling[ADAPTER]).to(up.weight.dtype), up.weight)

    def exports(self, pretrained_names: Mapping[str, str]) -> tuple[Exported, ...]:
        """The weights of the model without adapters, by the names of its parameters: own name -> name in
        `pretrained`."""
        names = {name: own_name for own_name, name in pretrained_names.items()}
        of_experts = {matrix.name: matrix for matrix in self._matrices}
        factors = {name for matrix in self._matrices for name in matrix.factors}
        exported = []
        for name, own_name in names.items():
            if ".lora_" in name or ".original_module." in name or name in factors:
                continue
            adapter, is_transposed = None, False
            if name in of_experts:
                a, b = (names[factor] for factor in of_experts[name].factors)
                adapter, is_transposed = (a, b, self._experts[0].scale), of_experts[name].is_transposed
            if name.endswith(".base_layer.weight"):
                layer = name.removesuffix(".base_layer.weight")
                a, b = (names[f"{layer}.lora_{part}.{ADAPTER}.weight"] for part in "AB")
                adapter = (a, b, float(self._peft.get_submodule(f"base_model.model.{layer}").scaling[ADAPTER]))
            exported.append(Exported(plain_name(name), own_name, adapter, is_transposed))
        return tuple(exported)

    def save(self, directory: Path, base: str, trained: Mapping[str, torch.Tensor]) -> None:
        """Write the adapters as peft loads them. `trained`: whole tensors by the names in `pretrained`."""
        from peft import get_peft_model_state_dict

        state = {f"{_PREFIX}{name}": tensor for name, tensor in trained.items()}
        named = get_peft_model_state_dict(self._peft, state_dict=state, save_embedding_layers=False)
        config = replace(self._peft.peft_config[ADAPTER], base_model_name_or_path=base)
        if any(_EXPERTS in name for name, _ in self._peft.named_parameters()):
            of_experts = self._expert_names()
            # peft shortens a long list of names to their last words, which are those of experts too
            beside = [name for name in sorted(config.target_modules) if name.rpartition(".")[2] not in _OF_EXPERTS]
            beside += [name for name in _adapted_layers(self._peft) if name.rpartition(".")[2] in _OF_EXPERTS]
            if self._matrices:  # peft allows its parameters no dropout
                config = replace(config, target_modules=[*beside, *of_experts], lora_dropout=0.0)
            config = _beside_experts(config, [*beside, *of_experts], beside)
            if stacked := [matrix.name for matrix in self._matrices if matrix.is_stacked]:
                config = replace(config, target_parameters=[*(config.target_parameters or ()), *stacked])
            if of_experts and not _peft_knows(self._peft.config.model_type):
                config = _fused_experts(
                    config, of_experts, {m.name: m.parts for m in self._matrices if not m.is_stacked}
                )
        for matrix in self._matrices:
            named |= {f"{_PREFIX}{name}": factor for name, factor in matrix.apart(trained).items()}
        places = [f"{_PREFIX}{_SCORE}.{part}" for part in ("weight", "bias")]
        if heads := {name: state[name] for name in places if name in state}:
            named |= heads
            config = replace(config, modules_to_save=sorted({*(config.modules_to_save or ()), _SCORE}))
        _write(directory, config, named)

    def _expert_names(self) -> list[str]:
        """Layers of experts as a PEFT directory names them: by a few words where those say the same."""
        layers = [layer for matrix in self._matrices if not matrix.is_stacked for layer in matrix.layers]
        words = sorted({layer.rpartition(".")[2] for layer in layers})
        every = expert_matrices(self._peft.get_base_model()).values()
        others = {layer for matrix in every for layer in matrix.layers} - {*layers}
        return layers if any(layer.rpartition(".")[2] in words for layer in others) else words


@dataclass(frozen=True)
class SavedAdapter:
    """Content of a PEFT directory: settings of a role, names of layers, full names of modules that are trained in full,
    and whole tensors, by the names that peft gives them without its own prefix. `beside_experts`: full names of layers
    of a mixture that are no experts, with adapters; other `targets` may be last parts of names."""

    args: ModelArgs
    head: Head
    targets: Sequence[str]
    trained_in_full: Sequence[str]
    weights: Mapping[str, torch.Tensor]
    beside_experts: Sequence[str] = ()
    model_type: str = ""

    def write(self, directory: Path) -> None:
        config = _config(self.args, list(self.targets), list(self.trained_in_full))
        if self.beside_experts:
            config = _beside_experts(config, self.targets, self.beside_experts)
        expert_names = {name for name in config.target_modules if name in _OF_EXPERTS or _EXPERTS in name}
        if any(_EXPERTS in name for name in self.weights) and not _peft_knows(self.model_type):
            endings = {name.rpartition(".")[2] for name in expert_names}
            fused = {f"mlp.experts.{name}": len(ps) for name, ps in FUSED_EXPERTS.items() if endings.issuperset(ps)}
            config = _fused_experts(config, expert_names, fused)
        config.task_type = _TASKS[self.head]
        config.base_model_name_or_path = str(self.args.model_name_or_path)
        _write(directory, config, {f"{_PREFIX}{name}": tensor for name, tensor in self.weights.items()})


def _beside_experts(config: Any, targets: Sequence[str], beside: Sequence[str] | None = None) -> Any:
    """`config` for a mixture, in words that peft (0.21) reads as they are meant: of transformers 5 it takes whatever is
    called as the matrices of experts once were for all experts, full names of other layers included. Those layers are
    named as parameters here, which it leaves alone, and to which it allows no dropout. `beside`: their full names,
    where `targets` does not say them."""
    named = [name for name in (targets if beside is None else beside) if name.rpartition(".")[2] in _OF_EXPERTS]
    if not named:
        return config
    return replace(
        config,
        target_modules=[target for target in targets if target not in named],
        target_parameters=[f"{name}.weight" for name in named],
        lora_dropout=0.0,
    )


def _peft_knows(model_type: str) -> bool:
    """Tell whether peft takes the names that single experts once had for the tensors of all experts of this type."""
    from peft.utils import transformers_weight_conversion as conversion

    patterns: Mapping[str, str] = vars(conversion)["_MODEL_TO_CONVERSION_PATTERN"]
    return patterns.get(model_type) in conversion._MOE_TARGET_MODULE_MAPPING


def _fused_experts(config: Any, expert_names: Collection[str], fused: Mapping[str, int]) -> Any:
    """`config` with adapters on tensors of all experts, as peft itself would write it for the types that it knows; of
    others it would find no layers of these names. `fused`: names of the tensors, and how many matrices of an expert are
    in each."""
    doubled = {f".*\\.{name.rpartition('.')[2]}": parts for name, parts in fused.items() if parts > 1}
    return replace(
        config,
        target_modules=[name for name in config.target_modules if name not in expert_names],
        target_parameters=[*(config.target_parameters or ()), *fused],
        rank_pattern={pattern: number * config.r for pattern, number in doubled.items()},
        alpha_pattern={pattern: number * config.lora_alpha for pattern, number in doubled.items()},
        lora_dropout=0.0,
    )


def _write(directory: Path, config: Any, weights: Mapping[str, torch.Tensor]) -> None:
    from safetensors.torch import save_file

    directory.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, directory / "adapter_model.safetensors")
    replace(config, inference_mode=True).save_pretrained(str(directory))


def add_adapters(pretrained: PreTrainedModel, args: ModelArgs, head: Head, empty: bool) -> Adapters:
    """Puts the adapters of a role on its model, whose weights are frozen from then on. A critic's value head is trained
    in full. `empty`: their form alone."""
    matrices = expert_matrices(pretrained)
    targets, of_experts, in_full = *_targets(pretrained, args, matrices), _trained_in_full(pretrained, args)
    below = [name for name in targets if any(f"{name}.".startswith(f"{module}.") for module in in_full)]
    if len(below) == len(targets):
        raise StrategyError("model_args.additional_target trains every layer in full that lora_target names")
    config = _config(args, targets, in_full)
    from peft import get_peft_model

    with warnings.catch_warnings(), _names_as_given():
        warnings.simplefilter("ignore")  # of what is checked here
        peft_model = get_peft_model(pretrained, config)
    _check_places(peft_model, set(targets) - set(below))
    peft_model.peft_config[ADAPTER].task_type = _TASKS[head]  # earlier, it would have peft copy a critic's head
    if head != "lm":
        pretrained.get_submodule(_SCORE).requires_grad_(True)
    scale = args.adapter_alpha / (args.lora_rank**0.5 if args.use_rslora else args.lora_rank)
    experts = put_on(pretrained, of_experts, args.lora_rank, scale, args.lora_dropout)
    loads = args.adapter_name_or_path is not None and not empty
    return Adapters(peft_model, _load(peft_model, args, head, of_experts) if loads else {}, experts, of_experts)


@contextmanager
def _names_as_given() -> Iterator[None]:
    """Inside, peft puts adapters on the layers whose full names it is given, and weights where their names say. Of a
    mixture it would take layers that are called as the matrices of experts once were for the experts, and change names
    of weights as transformers does those of a model's files: Laguna's shared experts would get none, without a word."""
    from peft.utils import transformers_weight_conversion as conversion

    of_config = conversion.convert_peft_config_for_transformers
    of_weights = conversion.convert_peft_adapter_state_dict_for_transformers
    conversion.convert_peft_config_for_transformers = lambda *args, **kwargs: None
    conversion.convert_peft_adapter_state_dict_for_transformers = lambda adapter_state_dict, **_: adapter_state_dict
    try:
        yield
    finally:
        conversion.convert_peft_config_for_transformers = of_config
        conversion.convert_peft_adapter_state_dict_for_transformers = of_weights


def _adapted_layers(peft_model: Any) -> list[str]:
    """Full names of the layers that peft has put adapters on."""
    adapted = (name for name, module in peft_model.named_modules() if hasattr(module, "lora_A"))
    return [name.removeprefix(_PREFIX) for name in adapted]


def _check_places(peft_model: Any, wanted: set[str]) -> None:
    """StrategyError if adapters are elsewhere than on these layers."""
    layers = _adapted_layers(peft_model)
    if odd := sorted({*layers} ^ wanted):
        raise StrategyError(
            f"model_args.lora_target: peft put adapters on {len(layers)} layers where {len(wanted)} are named; they "
            f"differ in {', '.join(odd[:3])}. Name other layers."
        )


def _config(args: ModelArgs, targets: list[str], trained_in_full: list[str]) -> Any:
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise StrategyError(f"model_args.lora_target needs the package peft. Install it: {PEFT.install}") from error
    return LoraConfig(
        r=args.lora_rank,
        lora_alpha=args.adapter_alpha,
        use_rslora=args.use_rslora,
        lora_dropout=args.lora_dropout,
        target_modules=targets,
        modules_to_save=trained_in_full or None,
    )


def _targets(
    pretrained: PreTrainedModel, args: ModelArgs, matrices: Mapping[str, ExpertMatrix]
) -> tuple[list[str], list[ExpertMatrix]]:
    """Linear layers that adapters are put on, and matrices of experts; of a model that sees, of its language model
    alone: the tower has layers of the same names."""
    sees = pretrained.config.model_type in VISION
    linear = {
        name: module
        for name, module in pretrained.named_modules()
        if type(module) is nn.Linear and not (sees and name.startswith(SEES))
    }
    heads = [name for name, module in linear.items() if _is_head(pretrained, module)]
    tied = [name for name in heads if _ties_ends(pretrained) and linear[name] is pretrained.get_output_embeddings()]
    of_experts = [layer for matrix in matrices.values() for layer in matrix.layers]
    chosen = targets([*linear, *of_experts], args, [*heads, *of_experts], tied)
    plain = [layer for layer in chosen if layer in linear]
    adapted = matrices_of(chosen, matrices)
    names = {matrix.name for matrix in adapted if not matrix.is_stacked}
    if names and args.use_rslora:
        raise StrategyError(f"model_args.use_rslora: {EXPERTS_AND_RSLORA}")
    if any(stem + "down_proj" not in names for name in names if (stem := name.removesuffix("gate_up_proj")) != name):
        raise StrategyError(f"model_args.lora_target: {', '.join(args.lora_target)} {EXPERTS_WITHOUT_DOWN}")
    if not plain:
        raise StrategyError(
            "model_args.lora_target names layers of experts alone. Name one beside them, such as o_proj"
        )
    return plain, adapted


def targets(linear: Sequence[str], args: ModelArgs, heads: Sequence[str] = (), tied: Sequence[str] = ()) -> list[str]:
    """The linear layers (full names) that lora_target matches, without those of freeze_module_prefix. `heads` are not
    part of all-linear. `tied` heads share the embedding's weight and are refused."""
    layers: dict[str, None] = {}
    not_all = set(heads)
    for word in args.lora_target:
        if word in REFUSED_WORDS:
            raise StrategyError(f"model_args.lora_target: {word}: {REFUSED_WORDS[word]}")
        named = [n for n in linear if n not in not_all] if word == ALL_LINEAR else _named(linear, word)
        if set(named) & set(tied):
            raise StrategyError(f"model_args.lora_target: {word}: {_ONE_WEIGHT}; an adapter would be of the head alone")
        if not named:
            there = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
            raise StrategyError(f"model_args.lora_target: no linear layer of the model is named {word}. It has {there}")
        layers |= dict.fromkeys(named)
    trained = [name for name in layers if not _is_frozen(name, args)]
    if not trained:
        raise StrategyError(
            f"model_args.freeze_module_prefix: {args.freeze_module_prefix} leaves no layer that lora_target names"
        )
    return trained


def _trained_in_full(pretrained: PreTrainedModel, args: ModelArgs) -> list[str]:
    modules = dict(pretrained.named_modules())
    ends = {id(module) for module in (pretrained.get_input_embeddings(), pretrained.get_output_embeddings())}
    tied = [name for name, module in modules.items() if _ties_ends(pretrained) and id(module) in ends]
    return trained_in_full(list(modules), tied, args)


def trained_in_full(modules: Sequence[str], tied: Sequence[str], args: ModelArgs) -> list[str]:
    """The modules (full names) that additional_target matches. `tied`: embedding and head, if they are one weight."""
    layers = []
    for word in args.additional_target:
        of_word = _named(modules, word)
        named = [name for name in of_word if not _is_frozen(name, args)]
        if of_word and not named:
            frozen = f"model_args.freeze_module_prefix: {args.freeze_module_prefix}"
            raise StrategyError(f"{frozen} leaves no module that additional_target: {word} names")
        if not named:
            raise StrategyError(f"model_args.additional_target: no module of the model is named {word}")
        if set(named) & set(tied):
            raise StrategyError(f"model_args.additional_target: {word}: {_ONE_WEIGHT}; two would come of it")
        layers += named
    return layers


def _is_frozen(module: str, args: ModelArgs) -> bool:
    return any(names_part(f"{module}.weight", word) for word in args.frozen_prefixes)


def _named(modules: Sequence[str], word: str) -> list[str]:
    """Modules that a word matches as in peft: by their whole name, or its last parts."""
    return [name for name in modules if name == word or name.endswith(f".{word}")]


def _ties_ends(pretrained: PreTrainedModel) -> bool:
    return bool(getattr(pretrained.config.get_text_config(), "tie_word_embeddings", False))


def _is_head(pretrained: PreTrainedModel, module: nn.Module) -> bool:
    return module is pretrained.get_output_embeddings() or module is getattr(pretrained, "score", None)


def _load(peft_model: Any, args: ModelArgs, head: Head, matrices: Sequence[ExpertMatrix]) -> dict[str, torch.Tensor]:
    """The weights of the head, which are the caller's to put in place: an engine may hold it in parts."""
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    names = get_peft_model_state_dict(peft_model, state_dict=peft_model.state_dict(), save_embedding_layers=False)
    score_prefix = f"{_SCORE}." if head != "lm" else None
    of_experts = [name for matrix in matrices for name in matrix.peft_names]
    weights = read_adapter([*(name.removeprefix(_PREFIX) for name in names), *of_experts], args, score_prefix)
    heads = {
        name.removeprefix(score_prefix): weights.pop(name)
        for name in list(weights)
        if score_prefix and name.startswith(score_prefix)
    }
    try:
        for matrix in matrices:
            own = {name: weights.pop(name) for name in matrix.peft_names}
            factors = {name: peft_model.get_parameter(f"{_PREFIX}{name}") for name in matrix.factors}
            found = matrix.together(own, [whole_shape(factor) for factor in factors.values()])
            for name, factor in factors.items():
                factor.data.copy_(found[name])
        with _names_as_given():
            set_peft_model_state_dict(peft_model, {f"{_PREFIX}{name}": tensor for name, tensor in weights.items()})
    except RuntimeError as error:
        raise StrategyError(f"{_at(args)} does not fit the model: {error}") from error
    return heads


def read_adapter(names: Sequence[str], args: ModelArgs, may_hold: str | None = None) -> dict[str, torch.Tensor]:
    """The adapter that lies at adapter_name_or_path, by names without peft's prefix. StrategyError if it is not the one
    that the settings describe: it must hold the tensors of these names, and may hold others that begin so."""
    from peft import PeftConfig
    from peft.utils import load_peft_weights

    place, key = str(args.adapter_name_or_path), _at(args)
    try:
        saved = PeftConfig.from_pretrained(place)
        weights = {
            name.removeprefix(_PREFIX): tensor for name, tensor in load_peft_weights(place, device="cpu").items()
        }
    except (OSError, ValueError, TypeError, json.JSONDecodeError) as error:
        raise StrategyError(f"{key}: no adapter can be read: {error}") from error
    if (why := other_form(vars(saved), args)) is not None:
        raise StrategyError(f"{key} {why}")
    lacks = sorted(set(names) - weights.keys())
    besides = sorted(n for n in weights.keys() - set(names) if may_hold is None or not n.startswith(may_hold))
    if lacks or besides:
        raise StrategyError(
            f"{key} has adapters for other layers than lora_target and additional_target name: it lacks "
            f"{', '.join(lacks[:3]) or 'none'}, and has {', '.join(besides[:3]) or 'none'} besides"
        )
    return weights


def _at(args: ModelArgs) -> str:
    return f"model_args.adapter_name_or_path: {args.adapter_name_or_path}"
