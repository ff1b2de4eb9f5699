"""Checks of fsdp2_train and fsdp2_infer, and what their specs are asked."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from roll.configs.problems import Problem
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.training import EIGHT_BIT
from roll.configs.strategies import fsdp2_settings, packing
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.fsdp2_settings import Fsdp2Settings
from roll.configs.strategies.model_numbers import text_part
from roll.configs.tables.families import EXPERTS

_EIGHT_BIT_OR_MUON = (EIGHT_BIT, "muon")

# `ep_size` of the fsdp2 strategies: which mixtures can be divided, and what does not go with it.


def expert_problems(choice: Choice, settings: Fsdp2Settings) -> Iterator[Problem]:
    """Yield the settings of the role that conflict with `ep_size`."""
    size, worker, name = settings.ep_size, choice.worker, choice.role.name
    if size == 1:
        return
    key, ranks, together = f"{choice.at}.ep_size", worker.num_workers, settings.shard_size(worker.num_workers)
    if together > 0 and ranks % together == 0 and together % size:
        yield Problem(
            f"{key}: {size} does not divide the {together} ranks (of {ranks}) that hold the model together.",
            (key, f"{choice.at}.fsdp_size", f"{name}.device_mapping", f"{name}.world_size"),
        )
    reasons = {
        f"{name}.use_torch_compile": worker.use_torch_compile
        and "the number of exchanged tokens is known only at run time. Use one of the two",
        f"{name}.model_args.additional_target": bool(worker.model_args.additional_target)
        and "copies of layers were never tried with divided experts. Remove one of the two",
    }
    for other, why in reasons.items():
        if why:
            yield Problem(f"{key}: {size} with {other}: {why}.", (key, other))
    optim = worker.training_args.optim
    if choice.role.learns and optim in _EIGHT_BIT_OR_MUON:
        other = f"{name}.training_args.optim"
        text = f"{key}: {size} with {other}: {optim}, which was not tried on divided experts. Use adamw_torch."
        yield Problem(text, (key, other))


def expert_model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Checks expert parallelism against the config.json of the model: its type must be known, and its number of
    experts divisible."""
    size, text = _settings(choice.worker).ep_size, text_part(model)
    if size == 1:
        return
    key, model_key = f"{choice.at}.ep_size", f"{choice.role.name}.model_args.model_name_or_path"
    if text.get("model_type") not in fsdp2_settings.DIVIDED_EXPERTS:
        yield Problem(f"{key}: {fsdp2_settings.refused_mixture(text.get('model_type'))}", (key, model_key))
        return
    number = next((text[each] for each in EXPERTS if type(text.get(each)) is int), size)
    if number % size:
        path = choice.worker.model_args.model_name_or_path
        yield Problem(f"{key}: {size} does not divide the {number} experts of {path}.", (key, model_key))


def _settings(worker: WorkerConfig) -> Fsdp2Settings:
    """The defaults where the settings are wrong, which is told with them."""
    try:
        return Fsdp2Settings.model_validate(worker.strategy_config)
    except ValidationError:
        return Fsdp2Settings()


def problems(choice: Choice) -> Iterator[Problem]:
    """Yield the problems that the class of the strategy's settings cannot see by itself."""
    worker, name = choice.worker, choice.role.name
    yield from packing.ranks_problems(choice)
    if worker.model_args.dtype == "fp16":
        key = f"{name}.model_args.dtype"
        yield Problem(f"{key}: fp16 with {worker.strategy_name}, without loss scaling. Use bf16, or fp32.", (key,))
    try:
        settings = Fsdp2Settings.model_validate(worker.strategy_config)
    except ValidationError:
        return  # told with the settings
    size, ranks = settings.fsdp_size, worker.num_workers
    if size == 0 or ranks % settings.shard_size(ranks):
        key = f"{choice.at}.fsdp_size"
        text = f"{key}: {size} does not divide the role's {ranks} ranks. Use -1, or a divisor."
        yield Problem(text, (key, f"{name}.device_mapping", f"{name}.world_size"))
    yield from expert_problems(choice, settings)
    dtype = settings.param_dtype
    if dtype not in (None, worker.model_args.dtype):
        key, other = f"{choice.at}.param_dtype", f"{name}.model_args.dtype"
        yield Problem(f"{key}: {dtype} contradicts {other}: {worker.model_args.dtype}. Keep one.", (key, other))
    if worker.model_args.dtype == "fp32" and settings.reduce_dtype != "fp32" and choice.role.learns:
        key, other = f"{choice.at}.reduce_dtype", f"{name}.model_args.dtype"
        text = f"{key}: gradients of an fp32 model are always summed in fp32. Remove it, or set {other} to bf16."
        yield Problem(text, (key, other))
    for key in ("param_offload", "optimizer_offload"):
        if settings.offload_policy and getattr(settings, key):
            at = f"{choice.at}.{key}"
            text = f"{at}: with offload_policy everything stays in host memory anyway. Remove one of them."
            yield Problem(text, (at, f"{choice.at}.offload_policy"))
    optim = worker.training_args.optim
    why = {"muon": "gathers matrices between the ranks", EIGHT_BIT: "computes where the weights are"}.get(optim)
    if choice.role.learns and why and settings.offload_policy:
        key, at = f"{name}.training_args.optim", f"{choice.at}.offload_policy"
        text = f"{key}: {optim} {why}, and offload_policy keeps them in host memory."
        yield Problem(f"{text} Use param_offload and optimizer_offload, or adamw_torch.", (key, at))
    if settings.optimizer_offload and not choice.role.learns:
        at = f"{choice.at}.optimizer_offload"
        yield Problem(f"{at}: {name} does not learn and does not use it. Remove it.", (at,))


def model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Checks a role against the config.json of its model."""
    yield from packing.model_problems(choice, model)
    yield from expert_model_problems(choice, model)


def warnings(choice: Choice) -> Iterator[str]:
    if "reduce_dtype" in choice.worker.strategy_config and not choice.role.learns:
        yield f"{choice.at}.reduce_dtype does nothing: {choice.role.name} does not learn."
