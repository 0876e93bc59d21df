"""Where a webhook may lead: numbers 33 to 37 of what reviewers ask of outgoing requests."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import pytest

from mulligan.config import Settings
from mulligan.core.errors import ConfigError, Fail
from mulligan.notifications.channels import AddressPolicy, Sending, addresses, gate_of
from mulligan.notifications.webhook import Webhook
from support.messages import MESSAGE, sent
from support.receiving import OK, status

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


async def _loopback(_host, _port):
    return ["127.0.0.1"]


@pytest.mark.security("S33")
@pytest.mark.parametrize("host", FORBIDDEN + DISGUISED)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_address_that_is_not_public_is_refused_however_it_is_written(host, scheme):
    url = f"{scheme}://{host}:8443/x"
    with pytest.raises(Fail) as refused:
        sent(Webhook(url), Sending(Settings.model_validate({"notify": {"allow_http": True}})))
    assert refused.value.code_given == "ADDRESS_REFUSED"
    assert refused.value.final


@pytest.mark.security("S33")
@pytest.mark.parametrize("host", NAMES)
def test_names_of_this_host_are_refused_and_nobody_is_connected_to(host, receiver, strict):
    canary = receiver()
    sending = replace(strict, resolve=_loopback)
    with pytest.raises(Fail, match="this host itself"):
        sent(Webhook(f"http://{host}:{canary.port}/"), sending)
    assert canary.connections == 0


@pytest.mark.security("S34")
def test_a_name_that_means_something_else_a_moment_later_is_asked_for_once(receiver, local):
    """A public address first, then loopback: the connection goes to the checked one or nowhere."""
    canary, answers = receiver(), [["127.0.0.1"], ["127.0.0.99"]]

    async def resolve(_host, _port):
        return answers.pop(0)

    assert sent(
        Webhook(f"http://hook.example:{canary.port}/"), replace(local, resolve=resolve)
    ) == {"status": 204}
    assert (len(answers), canary.connections) == (1, 1)
    assert canary.requests[0].headers["host"] == f"hook.example:{canary.port}"


@pytest.mark.security("S33")
def test_one_bad_answer_among_good_ones_is_enough_to_refuse(receiver, strict):
    canary = receiver()

    async def resolve(_host, _port):
        return ["93.184.216.34", "127.0.0.1"]

    with pytest.raises(Fail, match="this host itself"):
        sent(Webhook(f"https://hook.example:{canary.port}/"), replace(strict, resolve=resolve))
    assert canary.connections == 0


@pytest.mark.security("S35")
@pytest.mark.parametrize(
    "to", ["http://127.0.0.1:{port}/", "file:///etc/passwd", "gopher://127.0.0.1:{port}/", "//x"]
)
@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(to, code, receiver, local):
    canary = receiver()
    first = receiver(status(code, f"Location: {to.format(port=canary.port)}"))
    with pytest.raises(Fail, match="redirects are not followed") as refused:
        sent(Webhook(first.url), local)
    assert refused.value.code_given == "RECEIVER_REFUSED"
    assert canary.connections == 0


@pytest.mark.security("S36")
@pytest.mark.parametrize("port", [1, 22, 25, 110, 6379, 5432, 11211, 6000])
def test_ports_of_other_services_are_refused(port):
    with pytest.raises(Fail, match=f"port {port} is not one of a web server"):
        asyncio.run(addresses("https", "93.184.216.34", port, AddressPolicy()))


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
def test_what_cannot_be_a_webhook_is_refused_when_it_is_declared(url):
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
def test_letters_that_look_like_others_lead_nowhere_forbidden(host, receiver, strict):
    canary = receiver()
    with pytest.raises((Fail, ConfigError)):
        sent(Webhook(f"http://{host}:{canary.port}/"), replace(strict, resolve=_loopback))
    assert canary.connections == 0


def test_loopback_is_allowed_by_a_setting_and_by_code_and_not_otherwise(receiver, local, strict):
    canary = receiver()
    with pytest.raises(Fail):
        sent(Webhook(canary.url), strict)
    assert canary.connections == 0
    assert sent(Webhook(canary.url), local) == {"status": 204}
    assert sent(Webhook(canary.url, allow_private=True), strict) == {"status": 204}


def test_code_that_allows_private_networks_does_not_allow_metadata():
    for address in ("169.254.169.254", "64:ff9b::7f00:1", "224.0.0.1", "0.0.0.0"):  # noqa: S104 - refused
        with pytest.raises(Fail, match="must not be sent"):
            asyncio.run(addresses("https", address, 443, gate_of(Settings(), private=True)))


@pytest.mark.security("S33", "A25")
def test_our_own_page_is_refused_even_where_loopback_is_allowed(receiver):
    canary = receiver()
    plain = {"notify": {"allow_private": ["127.0.0.0/8"]}, "web": {"port": canary.port}}
    with pytest.raises(Fail, match="our own page"):
        sent(Webhook(canary.url), Sending(Settings.model_validate(plain)))
    assert canary.connections == 0


def test_a_public_address_needs_tls_unless_a_setting_says_otherwise():
    assert asyncio.run(addresses("https", "93.184.216.34", 443, AddressPolicy())) == [
        "93.184.216.34"
    ]
    with pytest.raises(Fail, match="allow_http"):
        asyncio.run(addresses("http", "93.184.216.34", 80, AddressPolicy()))
    assert asyncio.run(addresses("http", "93.184.216.34", 80, AddressPolicy(http=True))) == [
        "93.184.216.34"
    ]


def test_an_allowed_translation_still_looks_at_the_address_behind_it():
    gate = gate_of(Settings.model_validate({"notify": {"allow_private": "64:ff9b::/96"}}))
    assert asyncio.run(addresses("https", "64:ff9b::808:808", 443, gate)) == ["64:ff9b::808:808"]
    with pytest.raises(Fail, match="metadata"):
        asyncio.run(addresses("https", "64:ff9b::a9fe:a9fe", 443, gate))


def test_a_name_that_cannot_be_resolved_is_tried_again_later(strict):
    async def nobody(_host, _port):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def nothing(_host, _port):
        return []

    for resolve in (nobody, nothing):
        with pytest.raises(Fail) as failed:
            sent(Webhook("https://gone.example/"), replace(strict, resolve=resolve))
        assert (failed.value.code_given, failed.value.final) == ("CONNECTION", False)


def test_the_next_address_is_tried_when_the_first_does_not_answer(receiver, local):
    there = receiver(OK)

    async def resolve(_host, _port):
        return ["127.9.9.9", "127.0.0.1"]  # nobody listens at the first

    assert sent(Webhook(f"http://two.example:{there.port}/"), replace(local, resolve=resolve)) == {
        "status": 204
    }


@pytest.mark.security("S37")
def test_proxies_of_the_environment_are_not_used(receiver, local, monkeypatch):
    proxy, there = receiver(), receiver()
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    assert sent(Webhook(there.url), local) == {"status": 204}
    assert (proxy.connections, there.connections) == (0, 1)


def test_the_message_used_here_is_one_that_arrives(receiver, local):
    there = receiver()
    sent(Webhook(there.url), local)
    assert MESSAGE.id.encode() in there.requests[0].body
