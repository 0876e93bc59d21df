"""Addresses that a webhook may reach: security checks S33 to S37."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import pytest

from mulligan.config import Settings
from mulligan.core.errors import ConfigError, Fail
from mulligan.notifications.channels import (
    AddressPolicy,
    SendContext,
    build_address_policy,
    resolve_allowed_addresses,
)
from mulligan.notifications.webhook import Webhook
from support.messages import MESSAGE, send
from support.raw_receivers import OK, build_response

FORBIDDEN = (
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.1",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "100.64.0.1",
    "100.100.100.200",
    "169.254.169.254",
    "168.63.129.16",
    "192.0.0.192",
    "224.0.0.1",
    "255.255.255.255",
    "198.18.0.1",
    "203.0.113.7",
    "[::1]",
    "[::]",
    "[fe80::1]",
    "[fc00::1]",
    "[fd00:ec2::254]",
    "[ff02::1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::ffff:169.254.169.254]",
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b::8.8.8.8]",
    "[64:ff9b:1::a00:1]",
    "[2002:7f00:1::]",
    "[2001::1]",
    "[2001:db8::1]",
    "[::127.0.0.1]",
    "[5f00::1]",
    "[fec0::1]",
)
DISGUISED = (
    "0",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "127.1",
    "0177.0.0.1",
    "127.0.0.0x1",
    "1.1.1.1.",
    "0x",
    "7f.0.0.1.0",
)
NAMES = ("localhost", "localhost.", "a.localhost", "LOCALHOST")


async def _resolve_to_loopback(_host, _port):
    return ["127.0.0.1"]


@pytest.mark.security("S33")
@pytest.mark.parametrize("host", FORBIDDEN + DISGUISED)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_non_public_address_is_refused_in_every_notation(host, scheme):
    url = f"{scheme}://{host}:8443/x"
    with pytest.raises(Fail) as refused:
        send(Webhook(url), SendContext(Settings.model_validate({"notify": {"allow_http": True}})))
    assert refused.value.failure_code == "ADDRESS_REFUSED"
    assert refused.value.final


@pytest.mark.security("S33")
@pytest.mark.parametrize("host", NAMES)
def test_names_of_this_host_are_refused_without_a_connection(host, receiver, strict_context):
    canary = receiver()
    context = replace(strict_context, resolve=_resolve_to_loopback)
    with pytest.raises(Fail, match="it is this host"):
        send(Webhook(f"http://{host}:{canary.port}/"), context)
    assert canary.connections == 0


@pytest.mark.security("S34")
def test_a_host_name_is_resolved_only_once(receiver, loopback_context):
    """A public address first, then loopback: the connection goes to the checked one or nowhere."""
    canary = receiver()
    answers = [["127.0.0.1"], ["127.0.0.99"]]

    async def resolve(_host, _port):
        return answers.pop(0)

    assert send(
        Webhook(f"http://hook.example:{canary.port}/"), replace(loopback_context, resolve=resolve)
    ) == {"status": 204}
    assert (len(answers), canary.connections) == (1, 1)
    assert canary.requests[0].headers["host"] == f"hook.example:{canary.port}"


@pytest.mark.security("S33")
def test_a_host_with_one_forbidden_address_is_refused(receiver, strict_context):
    canary = receiver()

    async def resolve(_host, _port):
        return ["93.184.216.34", "127.0.0.1"]

    with pytest.raises(Fail, match="it is this host"):
        send(
            Webhook(f"https://hook.example:{canary.port}/"),
            replace(strict_context, resolve=resolve),
        )
    assert canary.connections == 0


@pytest.mark.security("S35")
@pytest.mark.parametrize(
    "to", ["http://127.0.0.1:{port}/", "file:///etc/passwd", "gopher://127.0.0.1:{port}/", "//x"]
)
@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(to, code, receiver, loopback_context):
    canary = receiver()
    first = receiver(build_response(code, f"Location: {to.format(port=canary.port)}"))
    with pytest.raises(Fail, match="Redirects are not followed") as refused:
        send(Webhook(first.url), loopback_context)
    assert refused.value.failure_code == "RECEIVER_REFUSED"
    assert canary.connections == 0


@pytest.mark.security("S36")
@pytest.mark.parametrize("port", [1, 22, 25, 110, 6379, 5432, 11211, 6000])
def test_ports_of_other_services_are_refused(port):
    with pytest.raises(Fail, match=f"port {port} is not used by web servers"):
        asyncio.run(resolve_allowed_addresses("https", "93.184.216.34", port, AddressPolicy()))


@pytest.mark.security("S36")
@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "javascript:alert(1)",
        "//example.com/",
        "https://kim:secret@example.com/",
        "https://kim@example.com/",
        "https:///x",
        "https://",
        "example.com",
        "https://exa mple.com/",
        "https://example.com/\r\nX: y",
        "https://example.com\\@127.0.0.1/",
        "https://[::1",
        "https://example.com:99999/",
        "https://example.com/" + "x" * 2000,
    ],
)
def test_an_invalid_url_is_refused_when_the_webhook_is_declared(url):
    with pytest.raises(ConfigError):
        Webhook(url)


@pytest.mark.security("S33")
@pytest.mark.parametrize(
    "host",
    [
        "\uff11\uff12\uff17.0.0.1",
        "\u2460\u2461\u2466.0.0.1",
        "127\u30020\u30020\u30021",
        "a%6d.com",
        "%31.0.0.1",
    ],
)
def test_unicode_lookalikes_do_not_reach_a_forbidden_address(host, receiver, strict_context):
    canary = receiver()
    with pytest.raises((Fail, ConfigError)):
        send(
            Webhook(f"http://{host}:{canary.port}/"),
            replace(strict_context, resolve=_resolve_to_loopback),
        )
    assert canary.connections == 0


def test_loopback_is_allowed_by_a_setting_and_by_code_and_not_otherwise(
    receiver, loopback_context, strict_context
):
    canary = receiver()
    with pytest.raises(Fail):
        send(Webhook(canary.url), strict_context)
    assert canary.connections == 0
    assert send(Webhook(canary.url), loopback_context) == {"status": 204}
    assert send(Webhook(canary.url, allow_private=True), strict_context) == {"status": 204}


def test_code_that_allows_private_networks_does_not_allow_metadata():
    for address in ("169.254.169.254", "64:ff9b::7f00:1", "224.0.0.1", "0.0.0.0"):  # noqa: S104 - refused
        with pytest.raises(Fail, match="must not be sent"):
            asyncio.run(
                resolve_allowed_addresses(
                    "https", address, 443, build_address_policy(Settings(), allow_private=True)
                )
            )


@pytest.mark.security("S33", "A25")
def test_mulligans_web_server_is_refused_even_where_loopback_is_allowed(receiver):
    canary = receiver()
    settings = {"notify": {"allow_private": ["127.0.0.0/8"]}, "web": {"port": canary.port}}
    with pytest.raises(Fail, match="own web server"):
        send(Webhook(canary.url), SendContext(Settings.model_validate(settings)))
    assert canary.connections == 0


def test_a_public_address_needs_tls_unless_allow_http_is_set():
    assert asyncio.run(
        resolve_allowed_addresses("https", "93.184.216.34", 443, AddressPolicy())
    ) == ["93.184.216.34"]
    with pytest.raises(Fail, match="allow_http"):
        asyncio.run(resolve_allowed_addresses("http", "93.184.216.34", 80, AddressPolicy()))
    assert asyncio.run(
        resolve_allowed_addresses("http", "93.184.216.34", 80, AddressPolicy(allow_http=True))
    ) == ["93.184.216.34"]


def test_an_allowed_nat64_address_is_checked_as_its_ipv4_address():
    policy = build_address_policy(
        Settings.model_validate({"notify": {"allow_private": "64:ff9b::/96"}})
    )
    assert asyncio.run(resolve_allowed_addresses("https", "64:ff9b::808:808", 443, policy)) == [
        "64:ff9b::808:808"
    ]
    with pytest.raises(Fail, match="metadata"):
        asyncio.run(resolve_allowed_addresses("https", "64:ff9b::a9fe:a9fe", 443, policy))


def test_a_host_name_that_cannot_be_resolved_is_retried(strict_context):
    async def fail(_host, _port):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def no_address(_host, _port):
        return []

    for resolve in (fail, no_address):
        with pytest.raises(Fail) as failed:
            send(Webhook("https://gone.example/"), replace(strict_context, resolve=resolve))
        assert (failed.value.failure_code, failed.value.final) == ("CONNECTION", False)


def test_the_next_address_is_tried_when_the_first_does_not_answer(receiver, loopback_context):
    target = receiver(OK)

    async def resolve(_host, _port):
        return ["127.9.9.9", "127.0.0.1"]  # nothing listens at the first

    assert send(
        Webhook(f"http://two.example:{target.port}/"), replace(loopback_context, resolve=resolve)
    ) == {"status": 204}


@pytest.mark.security("S37")
def test_proxies_from_the_environment_are_not_used(receiver, loopback_context, monkeypatch):
    proxy = receiver()
    target = receiver()
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    assert send(Webhook(target.url), loopback_context) == {"status": 204}
    assert (proxy.connections, target.connections) == (0, 1)


def test_the_message_of_these_tests_arrives(receiver, loopback_context):
    target = receiver()
    send(Webhook(target.url), loopback_context)
    assert MESSAGE.id.encode() in target.requests[0].body
