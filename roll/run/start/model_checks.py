"""Checks of a role against the config.json of its model, where that is on this machine."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from roll.configs.problems import Problem
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.run import RunConfig
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.features import Feature
from roll.configs.strategies.number_checks import cap_warning, number_problems, rope_row_problems, untried_warning
from roll.configs.strategies.table import spec_of
from roll.configs.tables.features import FeaturePlugin
from roll.run.start.machine import lacks_gpus


def model_warnings(choice: Choice, model: Mapping[str, Any]) -> Iterator[str]:
    if Feature.TRANSFORMERS_MODEL in spec_of(choice.worker.strategy_name).supports:
        yield from filter(None, (untried_warning(choice, model), cap_warning(choice, model)))


def model_problems(
    config: RunConfig, choice: Choice, model: Mapping[str, Any], features: Sequence[FeaturePlugin]
) -> Iterator[Problem]:
    worker, spec = choice.worker, spec_of(choice.worker.strategy_name)
    runs_transformers = Feature.TRANSFORMERS_MODEL in spec.supports
    if spec.model_problems:
        yield from spec.hook_findings(spec.model_problems, Problem, choice, model)
    else:
        yield from _head_problems(choice.role.name, worker, model)
    if runs_transformers:
        yield from number_problems(choice, model)
    for feature in features:
        yield from feature.model_problems(choice, model)
    if choice.role.use == "generate":
        yield from spec.hook_findings(spec.engine_model_problems, Problem, choice, model)
        if lacks_gpus(config):
            yield from spec.hook_findings(spec.cpu_model_problems, Problem, choice, model)
    if choice.role.head in ("sequence", "reward"):
        yield from _sequence_head_problems(choice, model)
    if choice.role.head == "sequence":
        return
    if choice.role.is_apart:  # its prompts are no rows of the run
        return
    positions, longest = model.get("max_position_embeddings"), config.longest_row
    if runs_transformers or choice.role.use == "generate":
        yield from rope_row_problems(choice, model, longest, config.length_keys, not runs_transformers)
    if type(positions) is int and positions < longest and not model.get("rope_scaling"):
        parts = [key for key in config.length_keys if key != "sequence_length"]
        yield Problem(
            f"sequence_length: {longest} tokens are more than the {positions} positions of "
            f"{worker.model_args.model_name_or_path} "
            f"(max_position_embeddings). Lower {' or '.join(parts or config.length_keys)}.",
            (*config.length_keys, "val_sequence_length"),
        )


def _sequence_head_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    name, key = choice.worker.model_args.model_name_or_path, f"{choice.role.name}.model_args.model_name_or_path"
    kinds = model.get("architectures")
    is_given = choice.role.head == "sequence"  # one that learns gets it
    if is_given and isinstance(kinds, list) and kinds and not any("SequenceClassification" in str(k) for k in kinds):
        yield Problem(
            f"{key}: {name} is a {', '.join(map(str, kinds))}, without the sequence-classification head that "
            f"{choice.role.name} needs. Name a reward model (...ForSequenceClassification).",
            (key,),
        )
    elif not is_given and isinstance(kinds, list) and _num_labels(kinds, model) > 1:
        yield Problem(
            f"{key}: the head of {name} gives {_num_labels(kinds, model)} numbers (config.json: id2label), and the "
            f"reward is one. Name a reward model with one label, or a causal language model.",
            (key,),
        )
    elif all(part.get("pad_token_id") is None for part in (model, model.get("text_config") or {})):
        yield Problem(
            f"{key}: config.json of {name} has no pad_token_id, which separates rows of a batch from their padding. "
            f"Set {choice.role.name}.model_args.model_config_kwargs.pad_token_id to the tokenizer's.",
            (key, f"{choice.role.name}.model_args.model_config_kwargs"),
        )


def _num_labels(kinds: Sequence[object], model: Mapping[str, Any]) -> int:
    """Number of labels of a saved sequence-classification model (transformers' default: 2); 0 for others."""
    labels = model.get("id2label")
    if not any("SequenceClassification" in str(kind) for kind in kinds):
        return 0
    return len(labels) if isinstance(labels, Mapping) else 2


def _head_problems(role: str, worker: WorkerConfig, model: Mapping[str, Any]) -> Iterator[Problem]:
    key, tensor = f"{role}.num_gpus_per_worker", _tensor_size(worker)
    heads, kv_heads = model.get("num_attention_heads"), model.get("num_key_value_heads")
    if type(heads) is int and heads % tensor:
        yield Problem(f"{key}: {tensor} does not divide the model's {heads} attention heads.", (key,))
    elif type(kv_heads) is int and kv_heads % tensor and tensor % kv_heads:
        yield Problem(f"{key}: {tensor} does not fit the model's {kv_heads} key-value heads.", (key,))


def _tensor_size(worker: WorkerConfig) -> int:
    config = worker.strategy_config
    tensor = config.get("tensor_parallel_size", config.get("tp_size"))
    return tensor if type(tensor) is int and tensor > 0 else worker.num_gpus_per_worker
