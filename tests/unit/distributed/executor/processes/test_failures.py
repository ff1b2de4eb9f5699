import pickle

from roll.distributed.executor.processes.worker_process import Failure, worker_error
from roll.errors import WorkerError


class Unpicklable(Exception):
    def __init__(self, a: object, b: object):
        super().__init__("text")


def test_the_root_cause_comes_first_and_the_others_follow():
    failures = [
        Failure(0, "RuntimeError: Connection closed by peer [127.0.0.1]"),
        Failure(2, "ValueError: bad row"),
        Failure(1, "KeyError: 'x'"),
    ]
    text = str(worker_error("actor_train", "train", failures))
    assert text.startswith(
        "actor_train rank 1 failed in train: KeyError: 'x'; then rank 2: ValueError: bad row; rank 0"
    )


def test_the_cause_is_the_dead_worker_or_the_one_that_is_named():
    failures = [Failure(0, "ValueError: strange"), Failure(3, "killed", died=True)]
    assert str(worker_error("critic", "train", failures)).startswith("critic rank 3 died in train: killed")
    failure = Failure.of(WorkerError("actor_infer rank 1 died in receive_weights: gone"), rank=0)
    assert str(worker_error("actor_train", "publish_weights", [failure])) == str(
        WorkerError("actor_infer rank 1 died in receive_weights: gone")
    )


def test_a_failure_travels_whatever_the_exception_holds():
    try:
        raise Unpicklable(1, 2)
    except Unpicklable as error:
        failure = pickle.loads(pickle.dumps(Failure.of(error, rank=5)))
    message, _, place = failure.message.partition("\n")
    assert (failure.rank, message, failure.died) == (5, "Unpicklable: text", False)
    assert place.startswith(f"  {__file__}:") and place.endswith(": raise Unpicklable(1, 2)")
    assert "raise Unpicklable(1, 2)" in failure.details
