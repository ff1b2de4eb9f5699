"""One local Ray cluster for all tests of the executor."""

from collections.abc import Callable, Iterator

import pytest

from roll.distributed.executor.processes.cluster import Cluster
from roll.distributed.executor.processes.launch import RayRuntime
from roll.distributed.executor.processes.resource_manager import ResourceManager
from tests.integration.executor.parts import worker_setup


@pytest.fixture(scope="session")
def runtime() -> Iterator[RayRuntime]:
    runtime = RayRuntime()
    yield runtime
    runtime.shutdown()


@pytest.fixture(scope="session")
def resources(runtime: RayRuntime) -> ResourceManager:
    return ResourceManager(num_nodes=1, num_gpus_per_node=8)


def clusters_of(resources: ResourceManager) -> Iterator[Callable[..., Cluster]]:
    clusters: list[Cluster] = []

    def make(role: str, **options: object) -> Cluster:
        place, spec = worker_setup(role, **options)  # type: ignore[arg-type]
        clusters.append(Cluster(role, resources, resources.slots(place), spec))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.kill()


@pytest.fixture
def start(resources: ResourceManager) -> Iterator[Callable[..., Cluster]]:
    """start(role, ...) -> a cluster of the fakes, killed after the test. See `parts.worker_setup`."""
    yield from clusters_of(resources)


@pytest.fixture(scope="session")
def start_shared(resources: ResourceManager) -> Iterator[Callable[..., Cluster]]:
    yield from clusters_of(resources)


# The clusters that most tests share, set up: a process costs seconds. The fakes' devices overlap on 1.


@pytest.fixture(scope="session")
def trainer(start_shared: Callable[..., Cluster]) -> Cluster:
    cluster = start_shared("actor_train", devices=(0, 1), seed=40)
    cluster.call_all("setup")
    return cluster


@pytest.fixture(scope="session")
def engines(start_shared: Callable[..., Cluster]) -> Cluster:
    cluster = start_shared("actor_infer", devices=(1, 2))
    cluster.call_all("setup")
    return cluster


@pytest.fixture(scope="session")
def critic(start_shared: Callable[..., Cluster]) -> Cluster:
    cluster = start_shared("critic", devices=(5,))
    cluster.call_all("setup")
    return cluster


@pytest.fixture(scope="session")
def toys(start_shared: Callable[..., Cluster]) -> Cluster:
    """Two ToyWorkers that do not mind what they are told."""
    options = {"worker_class": "tests.toys:ToyWorker", "system_envs": {"MY_SETTING": "x"}}
    return start_shared("actor_train", devices=(0, 1), **options)
