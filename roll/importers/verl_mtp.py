"""verl's keys of heads for further tokens (multi-token prediction)."""

from __future__ import annotations

from roll.importers.rows import Look, Row, Sum, lacks, summed
from roll.importers.verl_common import TRAIN
from roll.importers.verl_conditions import ACTOR, MODEL, runs_on

AT = f"{MODEL}.mtp"
_KEYS = {"enable": False, "enable_train": False, "detach_encoder": False, "mtp_loss_scaling_factor": 0.1}

ROWS: tuple[Row, ...] = (
    *(summed(f"{AT}.{key}", "mtp", default) for key, default in _KEYS.items()),
    lacks(f"{AT}.**", "engines load models without their heads for further tokens", False),
)


def head_training(look: Look) -> Sum:
    """Of a policy on Megatron, the one trainer that does so here as there."""
    if not (look(f"{AT}.enable") and look(f"{AT}.enable_train")):
        return Sum({}, "no head for further tokens is trained: those of the files are saved as they were.")
    if reason := runs_on(ACTOR, megatron=True)(look):
        text = "heads for further tokens are saved as they were."
        return Sum({}, text, lost={f"{AT}.enable_train": f"{reason}: megatron_train alone trains heads"})
    mode, factor = (
        "standalone" if look(f"{AT}.detach_encoder") else "joint",
        look.amount(f"{AT}.mtp_loss_scaling_factor"),
    )
    near = "" if mode == "joint" else "Embedding and output matrix are kept from the head's loss as well."
    settings = {f"{TRAIN}.mtp_training_mode": mode, f"{TRAIN}.mtp_loss_scaling_factor": factor}
    return Sum(settings, f"mtp_training_mode: {mode}, weight {factor:g}.", near)
