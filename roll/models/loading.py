"""Hugging Face directories to trainable modules, and back to Hugging Face names."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    PrefixChange,
    Transpose,
    WeightConverter,
    WeightTransform,
    revert_weight_conversion,
)
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.utils import logging as transformers_logging

from roll.configs.sections.model import Head, ModelArgs
from roll.configs.strategies.model_facts import LOGIT_CAPS, LOGIT_FACTORS, UNTRAINED
from roll.configs.strategies.model_numbers import is_dropout, unread_number
from roll.configs.tables.features import IN_MODELS, active
from roll.errors import StrategyError
from roll.models.copied_files import copy_start_files, mtp_heads, shared_copies
from roll.models.exports import Exported, ModelAdapters, plain_name
from roll.models.head_scores import LogitTransform
from roll.models.hf import LogProbHead, SequenceModel, TokenLogProbModel, TokenValueModel, ValueHead
from roll.models.recomputation import checkpoint_blocks
from roll.models.sequences.attention import attention_options, state_layers
from roll.models.weight_files import tensor_files
from roll.utils.imports import replaced

if TYPE_CHECKING:
    from roll.configs.tables.sight import VisionModel

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ADAPTER_FOLDER = "adapter"
transformers_logging.disable_progress_bar()  # every rank would draw its own

Module = TokenLogProbModel | TokenValueModel | SequenceModel
GatherParameters = Callable[[Sequence[nn.Parameter]], AbstractContextManager[Any]]


@dataclass(frozen=True)
class LoadedModel:
    """A module to train or to score with, and what is needed to write it as a Hugging Face model again."""

    module: Module
    pretrained: PreTrainedModel  # owns the same parameters
    hf_names: dict[str, str]  # parameter of `module` -> its name in `pretrained`; tied weights occur once
    adapters: ModelAdapters | None = None
    vision: VisionModel | None = None  # of a model that sees

    def freeze_tower(self) -> None:
        """Leaves what sees as it is, in a run that shows no pictures."""
        for name, parameter in self.pretrained.named_parameters():
            if self.vision is not None and self.vision.sees_by(plain_name(name)):
                parameter.requires_grad_(False)

    @property
    def exports(self) -> tuple[Exported, ...]:
        """The weights of the Hugging Face model, adapters merged into them."""
        if self.adapters is not None:
            return self.adapters.exports(self.hf_names)
        return tuple(Exported(name, own_name) for own_name, name in self.hf_names.items())

    @property
    def kept_buffers(self) -> list[tuple[str, torch.Tensor]]:
        """Numbers that the model's files hold and no optimizer knows, such as the bias by which routers of DeepSeek-V3
        and GLM-4-MoE choose, by their names without adapters."""
        buffers = dict(_kept_buffers(self.pretrained)).items()
        return [(plain_name(name), buffer) for name, buffer in buffers if ".original_module." not in name]

    @cached_property
    def joined_in_files(self) -> dict[str, str]:
        """Weights of `pretrained` that the model's files hold several of in one tensor, and what they call it."""
        conversions = getattr(self.pretrained, "_weight_conversions", None) or ()
        if not any(isinstance(each, WeightConverter) and len(each.target_patterns) > 1 for each in conversions):
            return {}
        stored = {
            export.name: next(iter(revert_weight_conversion(self.pretrained, {export.name: torch.zeros(1, 1)})))
            for export in self.exports
        }
        numbers = Counter(stored.values())
        return {name: tensor for name, tensor in stored.items() if numbers[tensor] > 1}

    def in_checkpoint_form(self, weights: Sequence[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
        """Weights of `pretrained` as its checkpoint names and cuts them: transformers fuses the experts of mixture
        models while it loads them, here they are taken apart again. Models that see keep the names that they have in
        memory, which engines take as well, unless they have experts."""
        if not getattr(self.pretrained, "_weight_conversions", None):
            return list(weights)
        if self.vision is not None and not any(".experts." in name for name, _ in weights):
            return list(weights)
        return list(revert_weight_conversion(self.pretrained, dict(weights)).items())


def load_model(
    args: ModelArgs,
    head: Head,
    gather: GatherParameters = lambda parameters: nullcontext(),
    *,
    empty: bool = False,
    with_adapters: bool = False,
) -> LoadedModel:
    """The model of a role. `gather` makes partitioned parameters whole while they are written (ZeRO-3). `empty`: only
    its form, on torch's meta device, from config.json alone. `with_adapters`: with the adapters that `args` ask for."""
    if head in ("value", "reward"):
        return load_critic(args, gather, empty, with_adapters, head)
    return load_sequence_model(args, empty) if head == "sequence" else load_policy(args, empty, with_adapters)


def load_policy(args: ModelArgs, empty: bool = False, with_adapters: bool = False) -> LoadedModel:
    """A causal language model that gives log-probs, of text alone or of text with pictures."""
    config = model_config(args)
    transform = _logit_transform(config)
    kind, vision = _kind(args, config, "lm")
    pretrained, _ = _load(kind, args, config, empty)
    _check_head(pretrained)
    adapters = _adapters(pretrained, args, "lm", empty) if with_adapters else None
    lm_head = _lm_head(pretrained)
    head = LogProbHead(lm_head, transform, args.fused_kernel_options)
    head.adapters = adapters
    return _finish(TokenLogProbModel(_backbone(pretrained), head), pretrained, args, adapters, vision)


def _backbone(pretrained: PreTrainedModel) -> nn.Module:
    """All but the head. Some types (llama4_text) name a base model that they do not have."""
    base = pretrained.base_model
    if base is not pretrained:
        return base
    return next(child for child in pretrained.children() if isinstance(child, PreTrainedModel))


def _lm_head(pretrained: PreTrainedModel) -> nn.Module:
    lm_head = pretrained.get_output_embeddings()
    assert lm_head is not None
    return lm_head


def _check_head(pretrained: PreTrainedModel) -> None:
    """StrategyError where more than one linear layer stands between the backbone and the logits."""
    used = {id(p) for part in (_backbone(pretrained), _lm_head(pretrained)) for p in part.parameters()}
    if others := [name for name, parameter in pretrained.named_parameters() if id(parameter) not in used]:
        raise StrategyError(
            f"{pretrained.name_or_path}: {type(pretrained).__name__} has a head of several layers, and log-probs are "
            f"computed from one linear layer. Beside it are {', '.join(others[:3])}"
        )


def _logit_transform(config: PretrainedConfig) -> LogitTransform:
    """Return the transform between head and logits that the architecture's own forward pass contains. Raises
    StrategyError if config.json has a number of this kind that is not known for the architecture."""
    text = config.get_text_config()
    if unread := unread_number(text.to_dict()):
        raise StrategyError(f"{config.name_or_path}: config.json has {unread}")
    caps = (getattr(text, key, None) for key, kinds in LOGIT_CAPS.items() if text.model_type in kinds)
    factors = (
        getattr(text, key) ** kinds[text.model_type]
        for key, kinds in LOGIT_FACTORS.items()
        if text.model_type in kinds and getattr(text, key, None) is not None
    )
    return LogitTransform(softcap=next(filter(None, caps), None), factor=prod(factors, start=1.0))


def load_critic(
    args: ModelArgs,
    gather: GatherParameters = lambda parameters: nullcontext(),
    empty: bool = False,
    with_adapters: bool = False,
    head: Head = "value",
) -> LoadedModel:
    """A backbone with a value head (Hugging Face: token classification with one label), or a reward head (sequence
    classification with one label), which gives values all the same.

    A checkpoint without the head gets one of zeros, so that a new critic begins by predicting 0 everywhere. `gather`
    makes partitioned parameters whole while they are written (ZeRO-3).
    """
    config = model_config(args, num_labels=1)
    if head == "reward":
        padding_token(args, config)
    kind, vision = _kind(args, config, head)
    try:
        pretrained, missing = _load(kind, args, config, empty, may_lack=("score.weight", "score.bias"))
    except ValueError as error:
        raise StrategyError(
            f"{args.model_name_or_path}: no {head} head for {config.model_type} models: {error}"
        ) from error
    except RuntimeError as error:  # transformers names what does not fit in a report of its own
        raise StrategyError(
            f"{args.model_name_or_path} has weights of other shapes than a {config.model_type} model with one label"
        ) from error
    score = getattr(pretrained, "score", None)
    if not isinstance(score, nn.Linear):
        raise StrategyError(f"{args.model_name_or_path}: no {head} head for {config.model_type} models")
    if "score.weight" in missing:
        parameters = list(score.parameters())
        with gather(parameters), torch.no_grad():
            for parameter in parameters:
                parameter.zero_()
    adapters = _adapters(pretrained, args, head, empty) if with_adapters else None
    if adapters is not None and adapters.head:
        with gather(list(score.parameters())), torch.no_grad():
            for name, parameter in score.named_parameters():
                if name in adapters.head:
                    parameter.copy_(adapters.head[name])
    return _finish(TokenValueModel(pretrained.base_model, ValueHead(score)), pretrained, args, adapters, vision)


def _kind(args: ModelArgs, config: PretrainedConfig, head: Head) -> tuple[Any, VisionModel | None]:
    """The class of a role's model, and how it sees."""
    for name, is_wanted in IN_MODELS.items():
        if is_wanted(config) and (found := import_module(f"roll.features.{name}.model").kind(args, config, head)):
            return found
    return _KINDS[head], None


_KINDS: Mapping[Head, Any] = {
    "lm": AutoModelForCausalLM,
    "value": AutoModelForTokenClassification,
    "sequence": AutoModelForSequenceClassification,
    "reward": AutoModelForSequenceClassification,
}


def load_sequence_model(args: ModelArgs, empty: bool = False) -> LoadedModel:
    """A model with a sequence-classification head, such as a reward model. Its checkpoint has to hold the head."""
    config = model_config(args)
    pad_token_id = padding_token(args, config)
    config.get_text_config().use_cache = False  # one pass per row: keys and values would be kept for nothing
    kind, vision = _kind(args, config, "sequence")
    try:
        pretrained, _ = _load(kind, args, config, empty)
    except (ValueError, RuntimeError) as error:  # an architecture without such a head; a head of another size
        raise StrategyError(
            f"{args.model_name_or_path}: no sequence-classification head can be loaded: {error}"
        ) from error
    return _finish(SequenceModel(pretrained, pad_token_id), pretrained, args, vision=vision)


def padding_token(args: ModelArgs, config: PretrainedConfig) -> int:
    """The token that fills rows up, by the config.json of a role's model. StrategyError where it names none."""
    held = (getattr(part, "pad_token_id", None) for part in (config.get_text_config(), config))
    pad_token_id = next((each for each in held if each is not None), None)
    if pad_token_id is None:
        raise StrategyError(
            f"{args.model_name_or_path}: config.json has no pad_token_id, which separates rows of a batch from their "
            "padding. Set model_args.model_config_kwargs.pad_token_id to the tokenizer's"
        )
    return pad_token_id


def model_config(args: ModelArgs, **overrides: object) -> PretrainedConfig:
    """config.json with the role's overrides and without dropout, in training, too: the trainer's log-probs are compared
    with those of the engine that sampled."""
    if args.model_name_or_path is None:
        raise StrategyError("model_args.model_name_or_path is not set")
    config = AutoConfig.from_pretrained(args.model_name_or_path, trust_remote_code=False)
    for key, value in args.model_config_kwargs.items():
        if not hasattr(config, key):
            raise StrategyError(
                f"model_args.model_config_kwargs.{key}: {config.model_type} models have no such setting"
            )
        if is_dropout(key, value):
            raise StrategyError(
                f"model_args.model_config_kwargs.{key}: {value}, but dropout is off in training, too. Remove it"
            )
    for part in {id(each): each for each in (config, config.get_text_config())}.values():
        part.update({key: 0.0 for key, value in part.to_dict().items() if is_dropout(key, value)})
    config.update(args.model_config_kwargs | overrides)
    return config


def shared_vocabulary(*models: ModelArgs) -> int:
    """How many rows the heads of all have: some families pad them."""
    return min(model_config(args).get_text_config().vocab_size for args in models)


def _load(
    kind: Any, args: ModelArgs, config: PretrainedConfig, empty: bool, may_lack: Sequence[str] = ()
) -> tuple[PreTrainedModel, set[str]]:
    """The model, and which of `may_lack` its checkpoint does not hold. StrategyError if it lacks anything else:
    transformers would fill it with random numbers and a warning."""
    options = attention_options(args, config)
    if empty:
        with torch.device("meta"):
            make: Any = kind._from_config if issubclass(kind, PreTrainedModel) else kind.from_config
            pretrained = make(config, dtype=DTYPES[args.dtype], **options)
        pretrained._weight_conversions = _conversions(pretrained, args)
        return pretrained, set()
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        with _padding_row_kept(config):
            pretrained, report = kind.from_pretrained(
                args.model_name_or_path, config=config, dtype=DTYPES[args.dtype], output_loading_info=True, **options
            )
    finally:
        transformers_logging.set_verbosity(verbosity)
    if is_deepspeed_zero3_enabled():
        _restore_buffers(pretrained)
        # There transformers 5.19 keeps renamings of ancient checkpoints that it did not use; saving would undo them.
        pretrained._weight_conversions = _conversions(pretrained, args)
    elif conversions := getattr(pretrained, "_weight_conversions", None):
        pretrained._weight_conversions = as_published(conversions)
    missing = set(report["missing_keys"])
    if missing - set(may_lack):
        names = ", ".join(sorted(missing - set(may_lack))[:5])
        raise StrategyError(f"{args.model_name_or_path} lacks weights that its config.json asks for: {names}")
    return pretrained, missing


@contextmanager
def _padding_row_kept(config: PretrainedConfig) -> Iterator[None]:
    """Inside, the embedding of Youtu keeps the row of its padding token. transformers (5.19) empties it after it was
    loaded, so that a tied head is another matrix, and ZeRO-3 fails, which holds no rows there."""
    if config.model_type != "youtu":
        yield
        return
    from transformers.models.youtu.modeling_youtu import YoutuPreTrainedModel

    with replaced(YoutuPreTrainedModel, "_init_weights", PreTrainedModel._init_weights):
        yield


_BUFFERS = {"inv_freq": torch.float32, "normalizer": torch.bfloat16}


def _restore_buffers(pretrained: PreTrainedModel) -> None:
    """Computes anew what models keep in a dtype of its own: rotary frequencies in fp32, and the factor of
    RecurrentGemma's embedding in bf16. Where weights are divided at once, DeepSpeed (0.19) makes every new tensor one
    of the training's dtype, and transformers fills those. In bf16 angles are then off by up to 0.4 %."""
    for module in pretrained.modules():
        buffers = dict(module.named_buffers(recurse=False))
        formats = {name: form for name in buffers for end, form in _BUFFERS.items() if name.endswith(end)}
        if all(buffers[name].dtype == form for name, form in formats.items()):
            continue
        for name, form in formats.items():
            module.register_buffer(name, buffers[name].to(form), persistent=False)
        pretrained._init_weights(module)


def _conversions(pretrained: PreTrainedModel, args: ModelArgs) -> list[WeightTransform]:
    """Return how transformers renames and cuts the weights of the files. A beginning that it takes away is in the files
    of models that see, and not in those of the same text model alone."""
    conversions = as_published(get_model_conversion_mapping(pretrained, add_legacy=False))
    if not any(isinstance(each, PrefixChange) for each in conversions):
        return conversions
    names = tensor_files(str(args.model_name_or_path))

    def is_used(change: PrefixChange) -> bool:
        return not names or any(change.rename_source_key(name)[0] != name for name in names)

    return [each for each in conversions if not isinstance(each, PrefixChange) or is_used(each)]


def as_published(conversions: Sequence[WeightTransform]) -> list[WeightTransform]:
    """The same, that turn the experts of Qwen3-VL-MoE back when they are written: published files and vLLM have their
    sides the other way round. transformers (5.19) turns what does not fit, and in memory it does."""
    turned = copy.deepcopy(list(conversions))
    for each in turned:
        for operation in getattr(each, "operations", ()):
            if isinstance(operation, Transpose):
                operation.check_dims = False
    return turned


def _has_names_of_files(weights: Mapping[str, torch.Tensor], start: str) -> bool:
    """Whether most weights have the names that the start's files have. Those of models with pictures can have the names
    that transformers has in memory. It changes these back as it writes, and would change names of files once more."""
    return 2 * len(weights.keys() & tensor_files(start).keys()) > len(weights)


def write_hf_model(
    directory: Path,
    model: LoadedModel,
    args: ModelArgs,
    head: Head,
    weights: dict[str, torch.Tensor],
    trained: Mapping[str, torch.Tensor],
) -> None:
    """Writes config.json, safetensors of `weights`, what the model keeps beside them without training it, and the files
    of its start (`copy_start_files`). The weights of adapters, `trained` by the names of `pretrained`, go into a folder
    `adapter` beside them that peft loads."""
    form = load_model(args, head, empty=True).pretrained
    buffers = {name: buffer.to("cpu", copy=True) for name, buffer in _kept_buffers(model.pretrained)}
    beside = [(name, buffer.to("cpu", copy=True)) for name, buffer in model.kept_buffers]
    weights = weights | dict(model.in_checkpoint_form(beside))
    start = str(args.model_name_or_path)
    if head == "lm":
        shared = {copy: weights[original].clone() for copy, original in shared_copies(start).items()}
        weights |= dict(mtp_heads(start, but=shared)) | shared
    if form.can_generate():
        form.generation_config = GenerationConfig()  # one that can be written; the start's file takes its place
    form.save_pretrained(directory, state_dict=weights, save_original_format=not _has_names_of_files(weights, start))
    copy_start_files(args, directory)
    if model.adapters is not None:
        model.adapters.save(directory / ADAPTER_FOLDER, str(args.model_name_or_path), {**buffers, **trained})


def _kept_buffers(pretrained: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Persistent buffers by their names in `pretrained`."""
    for prefix, module in pretrained.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}".removeprefix("."), buffer.detach()


def _adapters(pretrained: PreTrainedModel, args: ModelArgs, head: Head, empty: bool) -> ModelAdapters | None:
    with torch.device("meta") if empty else nullcontext():
        made = (feature.add_adapters(pretrained, args, head, empty) for feature in active(args))
        return next(filter(None, made), None)


def _finish(
    module: Module,
    pretrained: PreTrainedModel,
    args: ModelArgs,
    adapters: ModelAdapters | None = None,
    vision: VisionModel | None = None,
) -> LoadedModel:
    own_names = {id(parameter): name for name, parameter in pretrained.named_parameters()}
    hf_names = {name: own_names[id(parameter)] for name, parameter in module.named_parameters()}
    if not args.disable_gradient_checkpointing and pretrained.supports_gradient_checkpointing:
        checkpoint_blocks(pretrained, args)
        if args.gradient_checkpointing_use_reentrant and adapters is not None:
            # It recomputes only for an input that wants a gradient, which that of frozen embeddings does not.
            pretrained.enable_input_require_grads()
    for name, child in module.named_modules():
        if isinstance(child, nn.Dropout) and ".lora_dropout." not in name:
            child.p = 0.0
        for key, value in list(vars(child).items()):
            if is_dropout(key, value) and not key.startswith("lora"):
                setattr(child, key, 0.0)
    module.train()
    for child in module.modules():
        # Routers of mixtures add noise in training. Mode, not number: some compute with the number in either mode.
        if any("jitter" in name for name in vars(child)):
            child.eval()
    for layer in state_layers(module) if adapters is not None else ():
        # In training Mamba's calls one kernel of mamba-ssm for all of it, which reads the weight of out_proj past its
        # adapter. Of the layer alone: what drops out in adapters goes by their own mode.
        layer.training = False
    is_named = str.startswith if vision is None else vision.names_part
    for prefix in args.frozen_prefixes:
        frozen = [p for name, p in pretrained.named_parameters() if is_named(plain_name(name), prefix)]
        if not frozen:
            raise StrategyError(f"model_args.freeze_module_prefix: no parameter's name begins with {prefix!r}")
        for parameter in frozen:
            parameter.requires_grad_(False)
    if args.frozen_prefixes and not any(parameter.requires_grad for parameter in module.parameters()):
        raise StrategyError(f"model_args.freeze_module_prefix: {args.freeze_module_prefix} leaves nothing to train")
    for name, parameter in pretrained.named_parameters():
        if ".lora_" not in name and not UNTRAINED.isdisjoint(name.split(".")):
            parameter.requires_grad_(False)  # DeepSpeed would take a gradient of 0 for it, and let it decay
    return LoadedModel(module, pretrained, hf_names, adapters, vision)
