"""Trinity-RFT's mix: an expert's rows beside the samples of a step, and what they weigh."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from roll.importers import words
from roll.importers.rows import Condition, Look, NotHere, Row, Sum, changes, lacks, needless, summed
from roll.importers.verl.common import NO_PICTURES
from roll.importers.verl.verl_conditions import ACTOR

_OWN = "trinity."
TYPE, _STRATEGY, _ARGS = "algorithm.algorithm_type", "algorithm.sample_strategy", "algorithm.policy_loss_fn_args"
_NAMES: tuple[str, ...] = ("sft_dataset",)
_AT = f"buffer.trainer_input.auxiliary_buffers.{_NAMES[0]}"
_OLDER = "buffer.trainer_input.sft_warmup_dataset"
"""Where the expert's rows were named before, beside those of a fine-tuning before the run."""
_OF_FILES = ("path", "split", "subset_name", "format.prompt_key", "format.response_key", "format.messages_key")
_NO_MIX = "rows of answers are fine-tuned on in a run of their own, or in a stage before (docs/sft.md, docs/stages.md)"
_RATIO, _LOSS = f"{_STRATEGY}_args.expert_data_ratio", "algorithm.policy_loss_fn"
_SHARE = "There the expert's rows take this share of a batch; here they join all samples of a step, to the same share."
_KL = "Here the KL of the loss counts 1 - weight as well, there wholly."

MIX_ROWS: tuple[Row, ...] = (
    changes(f"{_STRATEGY}", "a step trains on the groups it took", "default", "warmup", "mix"),
    summed(_RATIO, "mix", needs="mix"),
    *(
        summed(f"{_ARGS}.{name}", "mix", needs="mix")
        for name in ("mu", "sft_loss_agg_mode", "use_token_level_loss_in_sft")
    ),
    *(
        summed(f"{_ARGS}.{name}", "mix", needs="mix chord")
        for name in ("mu_warmup_steps", "mu_decay_steps", "mu_peak", "mu_valley", "enable_phi_function")
    ),
    *(
        needless(f"{_ARGS}.{name}", "counts follow from the batch")
        for name in ("train_batch_size_usual", "train_batch_size_expert", "use_dynamic_bsz", "ppo_mini_batch_size",
                     "ppo_micro_batch_size_per_gpu", "ngpus_trainer", "read_batch_size_usual", "read_batch_size_expert")
    ),
    *(summed(f"{_AT}.{key}", "mix", needs="mix") for key in _OF_FILES),
    *(summed(f"{_OLDER}.{key}", "mix") for key in _OF_FILES),
    *(
        needless(f"{at}.{key}", "the columns say what a row is")
        for at in (_AT, _OLDER) for key in ("format.prompt_type", "schema_type", "algorithm_type")
    ),
    *(needless(f"{at}.{key}", "rows are read from files") for at in (_AT, _OLDER) for key in ("name", "storage_type")),
    *(lacks(f"{at}.format.image_key", NO_PICTURES) for at in (_AT, _OLDER)),
    needless(f"{_AT}.total_epochs", "rows are gone through as often as the run takes"),
    lacks(
        "buffer.trainer_input.auxiliary_buffers.**", f"mix.rows has the rows of {_NAMES[0]} (docs/mix.md)", 0
    ),
)  # fmt: skip


def mixes(look: Look) -> str:
    """The kind of mix that is asked for, or nothing."""
    given = [look(f"{_OWN}{key}") for key in (_LOSS, TYPE)]
    return next((str(name) for name in given if name in ("mix", "mix_chord")), "")


def _mix(look: Look) -> Sum:
    kind = mixes(look)
    if not kind:
        return Sum({}, "no mix", lost={f"{_OWN}{_OLDER}.{key}": _NO_MIX for key in _OF_FILES})
    section = _OLDER if look(f"{_OWN}{_AT}.path") is None else _AT
    if not (path := look(f"{_OWN}{section}.path")):
        raise NotHere(f"{_AT}.path is missing: set mix.rows.{_NAMES[0]}.data_args.file_name")
    at = f"mix.rows.{_NAMES[0]}"
    share = look.amount(f"{_OWN}{_RATIO}", 0.5)
    settings = {f"{at}.share": share, f"{at}.data_args.file_name": words.files(path)}
    columns = {
        "split": "data_args.split",
        "subset_name": "data_args.subset",
        "format.prompt_key": "prompt_key",
        "format.response_key": "response_key",
        "format.messages_key": "data_args.messages",
    }
    found = {key: look(f"{_OWN}{section}.{key}") for key in columns}
    if found["format.messages_key"] is None:
        found |= {"format.prompt_key": found["format.prompt_key"] or "prompt"}
        found |= {"format.response_key": found["format.response_key"] or "response"}
    settings |= {f"{at}.{columns[key]}": value for key, value in found.items() if value is not None}
    by_tokens = look(f"{_OWN}{_ARGS}.use_token_level_loss_in_sft", True)  # in older files
    mode = look(f"{_OWN}{_ARGS}.sft_loss_agg_mode") or ("token-mean" if by_tokens else "seq-mean-token-mean")
    settings["mix.loss_agg_mode"] = words.word({name: name for name in words.AGGREGATIONS}, "sft_loss_agg_mode")(mode)
    settings |= _weights(look, kind)
    text = f"mix.rows.{_NAMES[0]}: share {share:g}, weight {settings['mix.weight']:g} (docs/mix.md)."
    nears = {f"{_OWN}{_RATIO}": _SHARE}
    if look(f"{ACTOR}.use_kl_loss"):
        nears |= dict.fromkeys((f"{_OWN}{_ARGS}.{name}" for name in ("mu", "mu_peak")), _KL)
    return Sum(settings, text, nears=nears)


def _weights(look: Look, kind: str) -> dict[str, object]:
    """Settings of the mix's weight. Without decay steps, Trinity uses the valley after the rise."""
    if kind == "mix":
        return {"mix.weight": look.amount(f"{_OWN}{_ARGS}.mu", 0.1)}
    rise, fall = (look.number(f"{_OWN}{_ARGS}.mu_{name}_steps", 0) for name in ("warmup", "decay"))
    peak, valley = (look.amount(f"{_OWN}{_ARGS}.mu_{name}", 0.1) for name in ("peak", "valley"))
    weighs = look(f"{_OWN}{_ARGS}.enable_phi_function", True)
    found: dict[str, object] = {"mix.weight": peak if fall else valley, "mix.warmup_steps": rise}
    found["mix.token_weights"] = "uncertain" if weighs else "none"
    return found | ({"mix.decay_steps": fall, "mix.final_weight": valley} if fall else {})


def sampled(look: Look, batch: int) -> int:
    """Those of a train batch that are no rows of the expert."""
    return round(batch * (1 - look.amount(f"{_OWN}{_RATIO}", 0.5))) if mixes(look) else batch


MIX_CONDITIONS: Mapping[str, Condition] = {
    "mix": lambda look: "" if mixes(look) else "the loss is no mix",
    "mix chord": lambda look: "" if mixes(look) == "mix_chord" else "the loss is not mix_chord",
}
MIX_SUMS: Mapping[str, Callable[[Look], Sum]] = {"mix": _mix}
