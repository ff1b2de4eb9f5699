import torch

from roll.types.metrics import MetricSums


def test_merged_means_weigh_by_count_and_maxima_take_the_largest():
    a, b = MetricSums(), MetricSums()
    a.add("x", 2.0, 1)
    b.add("x", torch.tensor(10.0), torch.tensor(3))
    a.maximum("m", torch.tensor(1.0))
    b.maximum("m", 5.0)
    b.add("nothing", 0.0, 0)
    assert a.merge([b]).result("actor/") == {"actor/x": 3.0, "actor/m": 5.0}
