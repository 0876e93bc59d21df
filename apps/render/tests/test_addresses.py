"""The address guard: pictures come from public addresses only, unless a setting allows others."""

from __future__ import annotations

import socket

import httpx2
import pytest

from mulligan.apps import addresses
from mulligan.apps.render.demo import world

NOT_PUBLIC = "Failed to download image: its address is not public"


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",  # metadata of a cloud's machine
        "100.64.0.1",
        "0.0.0.0",  # noqa: S104 - an address to refuse
        "224.0.0.1",
        "::1",
        "fe80::1",
        "fd00::1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
    ],
)
def test_private_addresses_are_refused(address):
    assert not addresses.is_public(address)


def test_public_addresses_are_allowed():
    assert addresses.is_public("93.184.216.34")
    assert addresses.is_public("2606:2800:220:1:248:1893:25c8:1946")


@pytest.mark.any_store
def test_a_picture_on_a_private_address_is_refused_without_a_request(service, set_config):
    set_config(allow_private_addresses=False)
    job_view = service.run_order(service.clip())
    assert (job_view["state"], job_view["attempts"]) == ("FAILED", 1)
    assert job_view["error"]["message"] == NOT_PUBLIC
    assert job_view["error"]["details"] == {"url": f"{service.picture_server}/photo.jpg"}
    assert world.requests_by_name == {}


@pytest.fixture
def resolver(monkeypatch):
    """Resolve names by a table: `resolver["pictures.example"] = ["127.0.0.1"]`."""
    table: dict[str, list[str]] = {}
    real = socket.getaddrinfo

    def resolve(host, *args, **kwargs):
        if host not in table:
            return real(host, *args, **kwargs)
        return [answer for address in table[host] for answer in real(address, *args, **kwargs)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return table


@pytest.mark.any_store
def test_a_name_of_a_private_address_is_refused(service, set_config, resolver):
    set_config(allow_private_addresses=False)
    resolver["pictures.example"] = ["93.184.216.34", "127.0.0.1"]
    port = httpx2.URL(service.picture_server).port
    job_view = service.run_order(service.clip(f"http://pictures.example:{port}/photo.jpg"))
    assert (job_view["attempts"], job_view["error"]["message"]) == (1, NOT_PUBLIC)
    assert world.requests_by_name == {}


@pytest.mark.any_store
def test_a_redirect_to_a_private_address_is_refused(service, set_config, resolver, monkeypatch):
    """The picture server counts as public here, and 127.0.0.2 as private."""
    monkeypatch.setattr(addresses, "is_public", lambda address: address == "127.0.0.1")
    set_config(allow_private_addresses=False)
    port = httpx2.URL(service.picture_server).port
    resolver["pictures.example"] = ["127.0.0.1"]
    resolver["inside.example"] = ["127.0.0.2"]
    public = f"http://pictures.example:{port}"
    good = service.run_order(service.clip(f"{public}/redirect-a.jpg?to={public}/photo.jpg"))
    assert good["state"] == "COMPLETED"
    for target in ("http://127.0.0.2/", "http://inside.example/", "http://[::1]:1/"):
        bad = service.run_order(service.clip(f"{public}/redirect-b.jpg?to={target}"))
        assert (bad["attempts"], bad["error"]["message"]) == (1, NOT_PUBLIC)
        assert bad["error"]["details"] == {"url": f"{public}/redirect-b.jpg"}


@pytest.mark.any_store
def test_a_proxy_of_the_environment_does_not_bypass_the_guard(service, set_config, monkeypatch):
    set_config(allow_private_addresses=False)
    monkeypatch.setenv("HTTP_PROXY", service.picture_server)
    job_view = service.run_order(service.clip("http://10.0.0.1/photo.jpg"))
    assert job_view["error"]["message"] == NOT_PUBLIC
    assert world.requests_by_name == {}
