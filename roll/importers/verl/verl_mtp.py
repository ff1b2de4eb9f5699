"""verl's keys of heads for further tokens (multi-token prediction)."""

from __future__ import annotations

from roll.importers.rows import Look, Row, Sum, needless, summed
from roll.importers.verl.common import TRAIN
from roll.importers.verl.verl_conditions import ACTOR, MODEL, runs_on

AT = f"{MODEL}.mtp"
_KEYS = {"enable": False, "enable_train": False, "detach_encoder": False, "mtp_loss_scaling_factor": 0.1}
_ENGINES = "engines load models without their heads for further tokens"

ROWS: tuple[Row, ...] = (
    *(summed(f"{AT}.{key}", "mtp", default) for key, default in _KEYS.items()),
    needless(f"{AT}._target_", "the class of a section"),
    Row(f"{AT}.**", note=_ENGINES, idle=(None, False), outcome="not to be had", needs="drafts"),
)


def head_training(look: Look) -> Sum:
    """Converts MTP training of a policy on Megatron, the one trainer that supports it in both systems."""
    if not (look(f"{AT}.enable") and look(f"{AT}.enable_train")):
        return Sum({}, "no head for further tokens is trained: those of the files are saved as they were.")
    if reason := _missing(look):
        return Sum({}, "heads for further tokens are saved as they were.", lost={f"{AT}.enable_train": reason})
    mode, factor = (
        "standalone" if look(f"{AT}.detach_encoder") else "joint",
        look.amount(f"{AT}.mtp_loss_scaling_factor"),
    )
    near = "" if mode == "joint" else "Embedding and output matrix are kept from the head's loss as well."
    settings = {f"{TRAIN}.mtp_training_mode": mode, f"{TRAIN}.mtp_loss_scaling_factor": factor}
    return Sum(settings, f"mtp_training_mode: {mode}, weight {factor:g}.", near)


def _missing(look: Look) -> str:
    """Why the head cannot be trained here."""
    if reason := runs_on(ACTOR, megatron=True)(look):
        return f"{reason}: megatron_train alone trains heads"
    if look(f"{MODEL}.lora_rank") or look(f"{MODEL}.lora.rank"):
        return "adapters leave heads as they are"
    return ""
