"""Interfaces by address, and back."""

import psutil
import pytest

from roll.errors import ResourceError
from roll.utils.network import LOOPBACK, address_of, interface_of


def test_every_interface_with_an_address_is_found_by_it():
    loopback = interface_of(LOOPBACK)
    assert address_of(loopback) == LOOPBACK
    for interface, entries in psutil.net_if_addrs().items():
        addresses = [entry.address for entry in entries if entry.family.name == "AF_INET"]
        if addresses:
            assert address_of(interface) == addresses[0]
            assert interface_of(addresses[0]) == interface


def test_all_loopback_addresses_belong_to_the_loopback_interface():
    assert interface_of("127.0.0.2") == interface_of(LOOPBACK)


def test_an_interface_or_address_that_is_not_there_is_named_with_what_is():
    with pytest.raises(ResourceError, match=r"network_interface: ib7: .* no such interface .*\(127\.0\.0\.1\)"):
        address_of("ib7")
    with pytest.raises(ResourceError, match=r"known to Ray by the address 203\.0\.113\.9.*set network_interface"):
        interface_of("203.0.113.9")
