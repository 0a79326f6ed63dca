"""``sops.overlay``: scenario rows 37 to 39."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_rfr.webhooks.sealing import open_sealed, reseal
from airflow_provider_rfr.webhooks.sealing._policy import ENCRYPTED_REGEX, check_overlay, merged
from tests.unit.messages import check_messages

SAFE = {"nonsensitive": True}
SCHEMA = {
    "type": "object",
    "properties": {
        "host": {"type": "string"},
        "login": {"type": "object", "properties": {"password": {"type": "string", "secret": True}}},
        "tuning": {"type": "object", "properties": {"batch": {"type": "integer", **SAFE}, "slot": {"type": "string"}}},
        "free": {"type": "object", **SAFE, "properties": {"threads": {"type": "integer"}}},
    },
}


@pytest.mark.parametrize(
    "patch",
    [
        {"tuning": {"batch": 5}},
        {"tuning": {"batch": None}},
        {"free": {"threads": 8, "unknown": {"deep": True}}},
        {"free": None},
        {"free": [1]},
        {},
        {"login": {}},
        {"tuning": {"batch": {"any": "thing"}}, "free": {}},
    ],
)
def test_a_patch_of_what_needs_no_seal_is_accepted(patch: Any) -> None:
    check_overlay(patch, SCHEMA)


@pytest.mark.parametrize(
    ("patch", "pointer"),
    [
        ({"host": "evil.example.com"}, "/host"),
        ({"tuning": {"slot": "x"}}, "/tuning/slot"),
        ({"tuning": {"batch": 1, "slot": "x"}}, "/tuning/slot"),
        ({"login": {"password": "x"}}, "/login/password"),
        ({"tuning": {"unknown": 1}}, "/tuning/unknown"),
        ({"unknown": "x"}, "/unknown"),
        ({"unknown": {}}, "/unknown"),
        ({"host": None}, "/host"),
        ({"login": None}, "/login"),
        ({"host": {}}, "/host"),
        ({"host": {"a": {}}}, "/host/a"),
        ({"login": []}, "/login"),
        ({"a/b~c": 1}, "/a~1b~0c"),
        ("text", "''"),
        ([1], "''"),
        (5, "''"),
    ],
)
def test_a_patch_of_anything_else_is_refused_with_its_pointer(patch: Any, pointer: str, refusal: Any) -> None:
    told = refusal(check_overlay, patch, SCHEMA)
    assert pointer in told
    assert "not marked nonsensitive" in told


@pytest.mark.parametrize("schema", [None, "", b"", [], 5])
def test_without_a_schema_nothing_may_be_patched(schema: Any, refusal: Any) -> None:
    assert "no schema" in refusal(check_overlay, {"tuning": {"batch": 1}}, schema)


@pytest.mark.parametrize("schema", [{}, {"properties": 5}, {"properties": {"tuning": 5}}, {"nonsensitive": "true"}])
def test_a_schema_that_says_nothing_allows_nothing(schema: Any, refusal: Any) -> None:
    assert "/tuning" in refusal(check_overlay, {"tuning": {"batch": 1}}, schema)


def test_an_absent_and_a_null_overlay_are_none(sealed: dict[str, Any], document: dict[str, Any], key: Any) -> None:
    for metadata in (sealed["sops"], {**sealed["sops"], "overlay": None}):
        assert open_sealed({**sealed, "sops": metadata}, environment=key.environment) == document


@pytest.mark.parametrize(
    ("base", "patch", "result"),
    [
        ({"a": 1}, {}, {"a": 1}),
        ({"a": 1, "b": 2}, {"a": None, "c": 3}, {"b": 2, "c": 3}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None, "d": [1]}}, {"a": {"c": 2, "d": [1]}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": "x"}, {"a": {"b": {"c": None}}}, {"a": {"b": {}}}),
        ({}, {"a": {"b": None}}, {"a": {}}),
    ],
)
def test_patches_are_merged_by_rfc_7396(base: Any, patch: Any, result: Any) -> None:
    assert merged(base, patch) == result


# On triggers: row 39.


@pytest.fixture
def full(document: dict[str, Any], key: Any, like_sops: Any) -> dict[str, Any]:
    """A document whose plaintext is under its code, where an overlay is the only way to edit it."""
    return like_sops(document, key.public, encrypted_regex=ENCRYPTED_REGEX)


def test_an_overlay_changes_what_users_tune(full: dict[str, Any], key: Any, document: dict[str, Any]) -> None:
    patch = {
        "interval": "15m",
        "config": {
            "startDownstream": {
                "timeout": "45s",
                "maxAttempts": 5,
                "payloadTemplate": "{}",
                "when": None,
                "headers": {},
            },
            "other": {"interval": "1m", "enabled": True},
        },
    }
    opened = open_sealed({**full, "sops": {**full["sops"], "overlay": patch}}, environment=key.environment)
    first = document["config"]["startDownstream"]
    del first["when"]
    assert opened["config"]["startDownstream"] == {**first, "timeout": "45s", "maxAttempts": 5, "payloadTemplate": "{}"}
    assert opened["config"]["other"] == {**document["config"]["other"], "interval": "1m", "enabled": True}
    assert opened["interval"] == "15m"


@pytest.mark.parametrize(
    ("patch", "pointer"),
    [
        ({"config": {"other": {"url": "https://evil.example.com"}}}, "/config/other/url"),
        ({"config": {"other": {"method": "PUT"}}}, "/config/other/method"),
        ({"config": {"other": {"headers": {"Authorization": "x"}}}}, "/config/other/headers/Authorization"),
        ({"config": {"other": {"headers": None}}}, "/config/other/headers"),
        ({"config": {"other": {"connection": None}}}, "/config/other/connection"),
        ({"config": {"other": {"signing": {"secrets": ["x"]}}}}, "/config/other/signing/secrets"),
        ({"config": {"other": {"exposeHeaders": ["Authorization"]}}}, "/config/other/exposeHeaders"),
        ({"config": {"other": {"expose_headers": ["Authorization"]}}}, "/config/other/expose_headers"),
        ({"config": {"other": {"allowedHosts": ["*"]}}}, "/config/other/allowedHosts"),
        ({"config": {"other": {"preset": "slack"}}}, "/config/other/preset"),
        ({"config": {"other": {"with": {"token": "x"}}}}, "/config/other/with/token"),
        ({"config": {"other": {"with": {}}}}, "/config/other/with"),
        ({"config": {"other": {"success": {"status": [404]}}}}, "/config/other/success/status"),
        ({"config": {"other": {"url": {}}}}, "/config/other/url"),
        ({"config": {"other": {"unknown": 1}}}, "/config/other/unknown"),
        ({"config": {"other": None}}, "/config/other"),
        ({"config": {"new": {"timeout": "5s"}}}, "/config/new"),
        ({"config": {"new": {}}}, "/config/new"),
        ({"config": None}, "/config"),
        ({"config": []}, "/config"),
        ({"sops": {}}, "/sops"),
        ([], "''"),
    ],
)
def test_an_overlay_of_what_is_sealed_is_refused(
    patch: Any, pointer: str, full: dict[str, Any], key: Any, refusal: Any
) -> None:
    document = {**full, "sops": {**full["sops"], "overlay": patch}}
    assert f"'{pointer}'" in refusal(open_sealed, document, environment=key.environment) or pointer == "''"
    refusal(open_sealed, document, environment=key.environment)


def test_an_overlay_in_another_spelling_is_refused_rather_than_guessed(
    full: dict[str, Any], key: Any, refusal: Any
) -> None:
    full["sops"]["overlay"] = {"config": {"startDownstream": {"max_attempts": 9}}}
    check_messages(refusal(open_sealed, full, environment=key.environment))


def test_sealing_again_folds_the_overlay_in(full: dict[str, Any], key: Any) -> None:
    full["sops"]["overlay"] = {"interval": "15m"}
    again = reseal(full, environment=key.environment)
    assert "overlay" not in again["sops"]
    assert open_sealed(again, environment=key.environment)["interval"] == "15m"
