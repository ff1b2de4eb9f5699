import itertools

import torch

from roll.distributed.strategy.sglang.patches import FusedWeights

LAYER = "model.layers.{}.self_attn.{}"
PARTS = ("q_a_proj.weight", "kv_a_proj_with_mqa.weight")
NAMES = [
    name
    for layer in range(2)
    for name in (f"model.layers.{layer}.mlp.weight", *(LAYER.format(layer, part) for part in PARTS))
]


def calls(names: list[str], borders: tuple[int, ...], expected: list[str] | None) -> list[list[str]]:
    """Names of each load, when the stream of weights is cut into buckets there. The memory of a bucket is overwritten
    after it; what is loaded must be what was sent."""
    fused, loads = FusedWeights(expected), []
    for start, end in itertools.pairwise((0, *borders, len(names))):
        bucket = {name: torch.full((2,), float(names.index(name))) for name in names[start:end]}
        loads.append(fused.pass_on(bucket))
        assert all(tensor.tolist() == [names.index(name)] * 2 for name, tensor in loads[-1])
        for tensor in bucket.values():
            tensor.fill_(-1)
    loads.append(fused.rest())
    return [[name for name, _ in load] for load in loads]


def test_partners_are_loaded_in_one_call_wherever_the_buckets_are_cut():
    """SGLang joins them within one call and forgets a single one."""
    for borders in itertools.combinations(range(1, len(NAMES)), 2):
        loads = calls(NAMES, borders, NAMES)
        assert sorted(itertools.chain(*loads)) == sorted(NAMES)
        for layer in range(2):
            pair = {LAYER.format(layer, part) for part in PARTS}
            assert [pair & set(load) for load in loads if pair & set(load)] == [pair]
        assert loads[-1] == []  # nothing waits for the end


def test_partners_are_loaded_at_the_end_and_plain_weights_at_once():
    loads = calls(NAMES, (2, 4), None)
    assert set(loads[-1]) == {LAYER.format(layer, part) for layer in range(2) for part in PARTS}
    names = [LAYER.format(0, part) for part in ("q_proj.weight", "kv_b_proj.weight", "q_b_proj.weight")]
    assert calls(names, (1, 2), names) == [[name] for name in names] + [[]]
