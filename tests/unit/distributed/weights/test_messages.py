"""Where a bucket lies survives a journey as plain values."""

import json
from pathlib import Path

import pytest
import torch

from roll.distributed.weights.bucket import (
    BroadcastBucket,
    BucketSource,
    CudaIpcBucket,
    FileBucket,
    MemoryBucket,
    RankedBucket,
    decode_source,
    encode_source,
    index_bucket,
)
from roll.errors import StrategyError

INDEX = index_bucket([("a.weight", torch.zeros(3, 5)), ("a.bias", torch.zeros(7, dtype=torch.bfloat16))])


@pytest.mark.parametrize(
    "source",
    [
        MemoryBucket(INDEX, "segment"),
        BroadcastBucket(INDEX, "group"),
        FileBucket(Path("bucket.safetensors")),
        CudaIpcBucket(INDEX, ((8,), (1,), 0, 64, 0, 128, True), "GPU-1"),
        RankedBucket((MemoryBucket(INDEX, "segment"), CudaIpcBucket(INDEX, ((8,), (1,), 0), "GPU-1"))),
    ],
)
def test_a_source_is_the_same_after_the_journey(source: BucketSource) -> None:
    assert decode_source(json.loads(json.dumps(encode_source(source)))) == source


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(StrategyError, match="telepathy"):
        decode_source({"kind": "telepathy"})
