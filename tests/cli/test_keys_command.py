"""`mulligan keys`: create, list and revoke API keys."""

from __future__ import annotations

import json


def test_a_key_is_printed_once_listed_without_its_secret_and_revoked(file_app, call):
    made = call(
        "keys",
        "create",
        "--scope",
        "acme",
        "--role",
        "operator",
        "--expires",
        "90d",
        "--name",
        "backend",
    )
    text = made.out.strip()
    assert made.code == 0
    assert file_app.keys.authenticate(text).scope == "acme"
    assert "not shown again" in made.err
    key = file_app.keys.list()[0]
    listed = call("keys", "list")
    assert key.id in listed.out
    assert text not in listed.out
    assert call("keys", "revoke", key.id, "--reason", "it leaked").code == 0
    assert file_app.keys.authenticate(text) is None
    assert file_app.events.list(type="key.revoked")[0].data["reason"] == "it leaked"
    assert "revoked" in call("keys", "list", "-o", "jsonl").out


def test_create_as_json_includes_the_key(file_app, call):
    made = json.loads(call("keys", "create", "--scope", "*", "--role", "viewer", "-o", "json").out)
    assert file_app.keys.authenticate(made["key"]).id == made["id"]
    assert made["role"] == "viewer"
    assert made["expires_at"] is None


def test_invalid_arguments_are_refused(file_app, call):
    file_app.store.prepare()
    assert call("keys", "create", "--scope", "", "--role", "viewer").code == 2
    assert call("keys", "create", "--scope", "acme", "--role", "root").code == 2
    assert call("keys", "revoke", "mk_nobody").code == 3
    assert "No keys yet" not in call("keys", "list").out
