"""Whether a model of this process computes the same number for a token in every pass: asked before it computes for
anybody."""

import torch
from torch import nn

from roll.errors import StrategyError
from roll.models.exact.attention import exact_refusal, use_exact_attention
from roll.models.exact.experts import use_exact_experts
from roll.models.exact.products import EXACT_HEAD, use_exact_products
from roll.models.exact.rows import ExactRows
from roll.models.exact.sizes import WHOLE
from roll.models.hf import TokenLogProbModel
from roll.models.loading import LoadedModel
from roll.models.sequences.attention import state_layers
from roll.models.sequences.pack import Pack
from roll.models.sequences.tree import tree_or_pack
from roll.platforms.table import platform_of

_MOST_THREADS = 2
_LENGTHS = (40, 7, 21)  # of the rows that are tried
_FORK = 19  # where rows that begin alike part
_MOVING_ROTARY = ("dynamic", "longrope")  # frequencies by the longest row of a pass


def make_exact(model: LoadedModel, device: torch.device | None = None) -> None:
    """Has the model compute exact log-probs. `device`: where it computes; None: where its weights are. StrategyError
    where it, or the process, cannot."""
    if not isinstance(model.module, TokenLogProbModel):
        return
    pretrained = model.pretrained
    if state_layers(pretrained):
        raise exact_refusal("it has layers with states")
    if reason := use_exact_experts(pretrained):
        raise exact_refusal(reason)
    text = pretrained.config.get_text_config().to_dict()
    rotary = (text.get("rope_parameters") or {}).get("rope_type")
    if rotary in _MOVING_ROTARY:
        raise exact_refusal(f"rope_type {rotary}: its positions depend on the longest row of a pass")
    for name, layer in pretrained.named_modules():
        if isinstance(layer, nn.Linear) and layer is not model.module.head.lm_head and layer.out_features % WHOLE:
            raise exact_refusal(f"{name} is {layer.out_features} wide, which is not a multiple of {WHOLE}")
    threads = torch.get_num_threads()
    if (device or pretrained.device).type == "cpu" and threads > _MOST_THREADS:
        raise StrategyError(
            f"exact_log_probs: this process has {threads} threads, which split operations at places that depend on "
            f"the batch. Set system_envs.OMP_NUM_THREADS to 1 or {_MOST_THREADS}"
        )
    use_exact_attention(pretrained)
    use_exact_products(model.module.backbone)
    model.module.head.form = EXACT_HEAD


def check_exact(model: LoadedModel, device: torch.device) -> None:
    """StrategyError if a row's log-probs alone are other bits than beside others: a machine whose matrix products do
    not go by rows alone. Collective, and the same number of passes on every rank."""
    module = model.module
    if not isinstance(module, TokenLogProbModel):
        return
    if not (platform := platform_of(device)).has_exact_products:
        raise exact_refusal(f"it runs on {platform.name}, which has no kernels for it")
    rows = len(_LENGTHS)
    lengths = torch.tensor(_LENGTHS, device=device)
    columns = torch.arange(max(_LENGTHS), device=device)
    ids = (columns * 7 + torch.arange(rows, device=device)[:, None] * 31) % 251 + 3
    ids = ids % model.pretrained.config.get_text_config().vocab_size

    def log_probs(chosen: list[int]) -> torch.Tensor:
        mask = columns < lengths[chosen][:, None]
        layout = ExactRows.of(Pack.scored(ids[chosen], lengths[chosen]))
        return module(ids[chosen], mask, layout=layout)[0]

    together = log_probs([0, 1, 2])
    for row in range(rows):
        if not torch.equal(log_probs([row])[0], together[row]):
            raise exact_refusal(
                f"on this {device.type} a row of {_LENGTHS[row]} tokens has other log-probs when it is computed alone"
            )
    forked = ids[[0, 0, 0]]
    forked[1, _FORK:] = ids[1, _FORK:]
    counts = torch.tensor([_LENGTHS[0], _LENGTHS[0], _FORK], device=device)
    tree = ExactRows.of(tree_or_pack(forked, counts - 1, least_saved=0))
    shared = module(forked, columns < counts[:, None], layout=tree)[0]
    for row in range(rows):
        one, length = forked[row : row + 1], counts[row : row + 1]
        alone = module(one, columns < length[:, None], layout=ExactRows.of(Pack.scored(one, length)))[0]
        if not torch.equal(alone[0], shared[row]):
            raise exact_refusal(f"on this {device.type} a row has other log-probs beside others that begin alike")
