"""Declarations of payload versions: version= and upcast= of a kind."""

from __future__ import annotations

import pytest

from mulligan import Mulligan
from mulligan.core.errors import ConfigError, PayloadRefused
from mulligan.manifest.specs import KindSpec
from mulligan.manifest.versions import check_versions, describe_versions, upcast_payload


def rename(payload):
    return {"address": payload["to"]}


async def rename_later(payload):
    return payload


@pytest.mark.parametrize(
    ("version", "upcast", "problem"),
    [
        (0, None, "version must be a whole number from 1 on, not 0"),
        (True, None, "not True"),
        ("2", None, "not '2'"),
        (2, None, r"version=2 needs upcast=\{1: …\}"),
        (3, {1: rename}, r"version=3 needs upcast=\{2: …\}"),
        (4, {1: rename, 3: rename}, r"version=4 needs upcast=\{2: …\}"),
        (2, {2: rename}, "only versions below version=2"),
        (2, {0: rename, 1: rename}, "upcast has version 0"),
        (2, {"1": rename}, "upcast has version '1'"),
        (2, [rename], "upcast must map a version to the function"),
        (2, {1: "rename"}, "must be an ordinary function of the payload, not 'rename'"),
        (2, {1: rename_later}, "must be an ordinary function"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(version, upcast, problem):
    app = Mulligan("sqlite:///never-opened.db")
    with pytest.raises(ConfigError, match=problem):
        app.job(name="send", version=version, upcast=upcast)(lambda address: None)


def test_upcast_functions_of_versions_that_are_gone_may_be_left_out():
    assert check_versions("send", 3, {2: rename}) == {2: rename}
    assert check_versions("send", 1, None) == {}


def test_a_payload_passes_through_each_version_up_to_the_current_one():
    functions = {1: rename, 2: lambda payload: {**payload, "locale": "en"}}
    spec = KindSpec("send", version=3)
    assert upcast_payload(spec, functions, {"to": "a"}, 1) == {"address": "a", "locale": "en"}
    assert upcast_payload(spec, functions, {"address": "a"}, 2) == {"address": "a", "locale": "en"}
    assert upcast_payload(spec, functions, {"locale": "de"}, 3) == {"locale": "de"}


def test_a_version_that_a_kind_does_not_take_is_refused():
    spec = KindSpec("send", version=3, oldest_version=2)
    with pytest.raises(PayloadRefused, match="has version 1; this release takes versions 2 to 3"):
        upcast_payload(spec, {2: rename}, {}, 1)
    with pytest.raises(PayloadRefused, match="has version 4"):
        upcast_payload(spec, {2: rename}, {}, 4)
    assert describe_versions(KindSpec("send", version=3, oldest_version=3)) == "version 3"


def test_an_upcast_that_returns_no_dict_is_refused():
    with pytest.raises(PayloadRefused, match="upcast of version 1 must return a dict, not None"):
        upcast_payload(KindSpec("send", version=2), {1: lambda _: None}, {}, 1)
