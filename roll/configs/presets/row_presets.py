"""Rows of the table of algorithms by name for runs whose rows are there before them."""

from roll.configs.presets.preset import Preset

_H = "h = (log p - log p_ref of the better answer) - (the same of the worse), sums over their tokens"
_MEAN = "loss of an update = the mean over its pairs"
_DPO = {"beta": 0.1, "ipo": False, "label_smoothing": 0.0, "reference_free": False}

ROW_PRESETS = (
    Preset(
        "sft",
        "maximum likelihood",
        {"train_on": "all"},
        ("loss of a token = -log p", "loss of an update = the mean over the tokens to learn"),
        pipeline="sft",
    ),
    Preset(
        "dpo",
        "Rafailov et al., arXiv 2305.18290",
        _DPO,
        (_H, "loss of a pair = -log sigmoid(beta h)", _MEAN),
        beside="sft_loss_coef, the better answer's likelihood beside it (arXiv 2404.19733)",
        pipeline="dpo",
    ),
    Preset(
        "cdpo",
        "Mitchell, A note on DPO with noisy preferences, 2023",
        {**_DPO, "label_smoothing": 0.1},
        (_H, "loss of a pair = -(1 - s) log sigmoid(beta h) - s log sigmoid(-beta h), s = label_smoothing", _MEAN),
        pipeline="dpo",
    ),
    Preset(
        "ipo",
        "Azar et al., arXiv 2310.12036",
        {**_DPO, "ipo": True},
        (_H, "loss of a pair = (h - 1 / (2 beta))^2", _MEAN),
        pipeline="dpo",
    ),
)
