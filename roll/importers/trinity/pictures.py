"""Trinity-RFT's columns of pictures."""

from __future__ import annotations

from roll.importers.rows import CombinedKeys, SourceLookup
from roll.importers.verl.common import MODEL
from roll.importers.verl.pictures import ONLY_RLVR, refusal, stops

_INPUT = "trinity.buffer.explorer_input"
_COLUMNS = {
    f"{_INPUT}.taskset.format.image_key": "actor_train",
    f"{_INPUT}.eval_tasksets.0.format.image_key": "validation",
}


def pictures(source: SourceLookup) -> CombinedKeys:
    """The column of pictures of the tasks, and of the first set of evaluation."""
    keys = {key: role for key, role in _COLUMNS.items() if source.is_set(key)}
    reasons = [refusal(source(f"{MODEL}.path")), *(why for why, _ in stops(source))]
    if why := next(filter(None, reasons), ""):
        return CombinedKeys({}, "", changes=dict.fromkeys(keys, why))
    settings = {f"{role}.data_args.image_key": source(key) for key, role in keys.items()}
    text = "; ".join(f"{key}: {value}" for key, value in settings.items())
    return CombinedKeys(settings, f"{text or 'no column of pictures'}.")


def no_pictures(source: SourceLookup) -> CombinedKeys:
    """The same keys of a run that shows none."""
    return CombinedKeys({}, "", changes=dict.fromkeys(filter(source.is_set, _COLUMNS), ONLY_RLVR))
