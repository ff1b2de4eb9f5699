"""What makes the processes of a node listen in one place."""

import pytest

from roll.distributed.executor.processes.resource_manager import loopback_network, node_network
from roll.errors import ResourceError
from roll.platforms.table import CPU, NPU
from roll.utils.network import LOOPBACK, interface_of

LO = interface_of(LOOPBACK)


def test_interfaces_follow_the_number_of_nodes_and_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    network = loopback_network()
    assert network.address == LOOPBACK
    assert network.variables == {"GLOO_SOCKET_IFNAME": LO, "NCCL_SOCKET_IFNAME": f"={LO}"}
    assert loopback_network(NPU).variables == {"GLOO_SOCKET_IFNAME": LO, "HCCL_SOCKET_IFNAME": f"={LO}"}
    assert node_network("127.0.0.2", LO, NPU).variables == loopback_network(NPU).variables
    assert loopback_network(CPU).variables == {"GLOO_SOCKET_IFNAME": LO}


def test_among_several_nodes_the_interface_is_that_of_rays_address_or_the_nodes_own_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7,eth8")
    network = node_network("127.0.0.2", None)
    assert network.address == "127.0.0.2"
    assert network.variables == {"GLOO_SOCKET_IFNAME": LO, "NCCL_SOCKET_IFNAME": "eth7,eth8"}


def test_the_key_wins_over_both_and_names_an_interface_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    network = node_network("203.0.113.9", LO)
    assert network.address == LOOPBACK
    assert network.variables == {"GLOO_SOCKET_IFNAME": LO, "NCCL_SOCKET_IFNAME": f"={LO}"}
    with pytest.raises(ResourceError, match="network_interface: ib7: .* has no such interface"):
        node_network("127.0.0.2", "ib7")
