"""A sealed document that somebody without a key changed is refused, unless the change is one that is allowed."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest

from airflow_provider_rfr.webhooks.sealing import open_sealed, seal
from airflow_provider_rfr.webhooks.sealing._documents import ENCRYPTED_REGEX, open_document
from tests.unit.messages import check_messages

EVIL = "https://evil.example.com/"


@pytest.fixture
def opens(key: Any) -> Any:
    return lambda document: open_sealed(document, environment=key.environment)


# What stays editable: research 4.4, scenario row 35.


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("payloadTemplate", '{"other": "{{commit_id}}"}'),
        ("timeout", "90s"),
        ("maxAttempts", 9),
        ("interval", "2m"),
        ("when", {"collections": ["*"], "minDocuments": 5}),
        ("retry", {"schedule": "quick"}),
        ("onFailure", "ignore"),
        ("ordering", "strict"),
        ("enabled", False),
    ],
)
def test_what_users_tune_is_edited_in_place(field: str, value: Any, changed: Any, opens: Any) -> None:
    opened = opens(changed("config", "startDownstream", field, value))
    assert opened["config"]["startDownstream"][field] == value


def test_what_users_tune_may_be_removed_and_reordered(
    sealed: dict[str, Any], opens: Any, document: dict[str, Any]
) -> None:
    first = sealed["config"]["startDownstream"]
    del first["timeout"], first["when"], sealed["interval"]
    sealed["config"]["startDownstream"] = {"enabled": True, **first}
    opened = opens(sealed)["config"]["startDownstream"]
    assert opened["url"] == document["config"]["startDownstream"]["url"]
    assert "timeout" not in opened


# What does not.

SEALED_PLACES = [
    ("startDownstream", "url"),
    ("startDownstream", "method"),
    ("startDownstream", "headers", "Authorization"),
    ("startDownstream", "headers", "X-Team"),
    ("startDownstream", "success", "pointer"),
    ("startDownstream", "success", "equals"),
    ("startDownstream", "success", "status", 0),
    ("startDownstream", "signing", "secrets", 1),
    ("startDownstream", "exposeHeaders", 0),
    ("startDownstream", "allowedHosts", 1),
    ("other", "connection"),
    ("other", "preset"),
    ("other", "with", "token"),
]


def place(where: tuple[Any, ...]) -> str:
    return "/config/" + "/".join(map(str, where))


@pytest.mark.parametrize("where", SEALED_PLACES, ids=place)
def test_plaintext_in_the_place_of_a_sealed_value_is_refused(
    where: tuple[Any, ...], changed: Any, opens: Any, refusal: Any
) -> None:
    assert place(where) in refusal(opens, changed("config", *where, EVIL))


@pytest.mark.parametrize("value", ["POST", 5, True, None, "", "ENC[]", "ENC[AES256_GCM,data:,iv:,tag:,type:str]"])
def test_nothing_but_a_sealed_value_is_taken_in_its_place(value: Any, changed: Any, opens: Any, refusal: Any) -> None:
    for where in (("startDownstream", "method"), ("startDownstream", "success", "equals")):
        assert place(where) in refusal(opens, changed("config", *where, value))


@pytest.mark.parametrize(
    "where",
    [
        ("startDownstream", "method"),
        ("startDownstream", "headers", "X-Team"),
        ("startDownstream", "success", "status", 0),
        ("other", "connection"),
    ],
    ids=place,
)
def test_a_sealed_value_that_is_taken_away_is_missed(
    where: tuple[Any, ...], sealed: dict[str, Any], opens: Any, refusal: Any
) -> None:
    node: Any = sealed["config"]
    for part in where[:-1]:
        node = node[part]
    del node[where[-1]]
    message = refusal(opens, sealed)
    assert "does not match" in message or "must have one of url, connection, preset" in message


@pytest.mark.parametrize(("source", "where"), [*pairwise((*SEALED_PLACES, SEALED_PLACES[0]))], ids=place)
def test_a_sealed_value_is_refused_at_another_place(
    where: tuple[Any, ...], source: tuple[Any, ...], sealed: dict[str, Any], changed: Any, opens: Any, refusal: Any
) -> None:
    moved: Any = sealed["config"]
    for part in source:
        moved = moved[part]
    opens(changed("config", *source, moved))
    assert place(where) in refusal(opens, changed("config", *where, moved))


@pytest.mark.parametrize("where", [("startDownstream", "url"), ("startDownstream", "signing", "secrets", 1)], ids=place)
def test_a_sealed_value_of_another_document_for_the_same_key_is_refused(
    where: tuple[Any, ...], document: dict[str, Any], recipients: list[str], changed: Any, opens: Any, refusal: Any
) -> None:
    moved: Any = seal(document, recipients)["config"]
    for part in where:
        moved = moved[part]
    check_messages(refusal(opens, changed("config", *where, moved)))


@pytest.mark.parametrize("part", ["data", "iv", "tag"])
def test_a_changed_bit_is_refused(part: str, sealed: dict[str, Any], changed: Any, opens: Any, refusal: Any) -> None:
    text = sealed["config"]["other"]["connection"]
    at = text.index(f"{part}:") + len(part) + 1
    other = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
    assert "/config/other/connection" in refusal(opens, changed("config", "other", "connection", other))


@pytest.mark.parametrize("cut", ["tag:AAAA", "tag:", "iv:AAAA", "iv:"])
def test_a_short_tag_or_nonce_is_refused(
    cut: str, sealed: dict[str, Any], changed: Any, opens: Any, refusal: Any
) -> None:
    parts = sealed["config"]["other"]["connection"].split(",")
    name = cut.split(":")[0]
    text = ",".join(cut if part.startswith(f"{name}:") else part for part in parts)
    refusal(opens, changed("config", "other", "connection", text))


@pytest.mark.parametrize("kind", ["int", "float", "bool", "bytes", "comment", "time", "unknown"])
def test_text_that_was_made_another_type_is_refused(
    kind: str, document: dict[str, Any], recipients: list[str], opens: Any, refusal: Any
) -> None:
    for text in ("12", "True", "1.5", "words"):
        document["config"]["other"]["connection"] = text
        sealed = seal(document, recipients)
        other = sealed["config"]["other"]
        other["connection"] = other["connection"].replace("type:str", f"type:{kind}")
        assert "/config/other/connection" in refusal(opens, sealed)


def test_triggers_can_not_change_names(sealed: dict[str, Any], opens: Any, refusal: Any) -> None:
    config = sealed["config"]
    sealed["config"] = {"startDownstream": config["other"], "other": config["startDownstream"]}
    check_messages(refusal(opens, sealed))
    sealed["config"] = {"renamed": config["startDownstream"], "other": config["other"]}
    assert "/config/renamed/url" in refusal(opens, sealed)


def test_a_trigger_can_not_be_copied_under_another_name(sealed: dict[str, Any], opens: Any, refusal: Any) -> None:
    sealed["config"]["copy"] = copy.deepcopy(sealed["config"]["other"])
    assert "/config/copy/connection" in refusal(opens, sealed)


def test_a_trigger_can_not_be_removed_or_added(sealed: dict[str, Any], changed: Any, opens: Any, refusal: Any) -> None:
    added = changed("config", "evil", {"url": EVIL, "payloadTemplate": "{}"})
    assert "/config/evil/url: plaintext" in refusal(opens, added)
    bare = changed("config", "evil", {"payloadTemplate": "{}"})
    check_messages(refusal(opens, bare))
    del sealed["config"]["other"]
    assert "does not match" in refusal(opens, sealed)


def test_a_header_can_not_be_renamed_or_added(sealed: dict[str, Any], opens: Any, refusal: Any) -> None:
    headers = sealed["config"]["startDownstream"]["headers"]
    renamed = copy.deepcopy(sealed)
    renamed["config"]["startDownstream"]["headers"] = {"X-Other": headers["Authorization"], "X-Team": headers["X-Team"]}
    assert "/headers/X-Other" in refusal(opens, renamed)
    for value in ("v", "", None):
        added = copy.deepcopy(sealed)
        added["config"]["startDownstream"]["headers"]["X-Other"] = value
        assert "/headers/X-Other" in refusal(opens, added)


def test_a_connection_can_not_be_put_beside_a_sealed_url(changed: Any, opens: Any, refusal: Any) -> None:
    assert "/connection: plaintext" in refusal(opens, changed("config", "startDownstream", "connection", "admin"))


def test_entries_of_a_list_can_not_be_swapped_doubled_or_nested(
    sealed: dict[str, Any], changed: Any, opens: Any, refusal: Any
) -> None:
    one, two = sealed["config"]["startDownstream"]["signing"]["secrets"]
    where = ("config", "startDownstream", "signing", "secrets")
    for order in ([two, one], [one, one, two], [one, two, two]):
        assert "does not match" in refusal(opens, changed(*where, order))
    assert "the wrong form" in refusal(opens, changed(*where, [[one], two]))


@pytest.mark.parametrize("field", ["url", "method", "headers", "exposeHeaders", "allowedHosts", "signing"])
def test_a_sealed_value_can_not_be_wrapped_although_its_path_stays(
    field: str, sealed: dict[str, Any], changed: Any, opens: Any, refusal: Any
) -> None:
    value = sealed["config"]["startDownstream"][field]
    check_messages(refusal(opens, changed("config", "startDownstream", field, [value])))


def test_sealed_values_of_a_list_of_triggers_could_be_regrouped_so_such_lists_are_refused(
    key: Any, like_sops: Any, opens: Any, refusal: Any
) -> None:
    """The code hashes values in their order, and paths have no place of a list: the second is as valid as the first."""
    rule = {"encrypted_regex": ENCRYPTED_REGEX, "mac_only_encrypted": True}
    endpoints = [{"url": "https://a"}, {"headers": {"A": "secret of b"}, "url": "https://b"}]
    document = {"config": [{"url": "https://a", "headers": {"A": "secret of a"}}, {"url": "https://b"}]}
    sealed = like_sops(document, key.public, **rule)
    one, two = sealed["config"]
    regrouped = [{"url": one["url"]}, {"headers": one["headers"], "url": two["url"]}]
    assert open_document({**sealed, "config": regrouped}, key.environment) == {
        "config": [{"url": "https://a"}, {"headers": {"A": "secret of a"}, "url": "https://b"}]
    }
    for config in (sealed["config"], regrouped):
        check_messages(refusal(opens, {**sealed, "config": config}))
    single = like_sops({"config": endpoints[1:]}, key.public, **rule)
    assert opens(single) == {"config": endpoints[1:]}


# Its metadata.


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("lastmodified", "2031-01-01T00:00:00Z", "lastmodified was changed"),
        ("lastmodified", None, "missing or is not text"),
        ("lastmodified", 5, "missing or is not text"),
        ("mac", "", "can't be opened"),
        ("mac", None, "missing or is not text"),
        ("mac", "ENC[AES256_GCM,data:AAAA,iv:AAAA,tag:AAAA,type:str]", "can't be opened"),
        ("mac_only_encrypted", False, "does not match"),
        ("mac_only_encrypted", None, "does not match"),
        ("mac_only_encrypted", "true", "must be a boolean"),
        ("encrypted_regex", "^(headers)$", "does not match"),
        ("encrypted_regex", "^(headers|payloadTemplate)$", "plaintext where a sealed value is due"),
        ("encrypted_regex", "(a+)+$", "not supported"),
        ("encrypted_regex", "", "can't be opened|not match|plaintext"),
        ("encrypted_regex", ["url"], "must be text"),
        ("encrypted_suffix", "_sops", "only one of"),
        ("unencrypted_suffix", "_plain", "only one of"),
        ("unencrypted_regex", "^(url)$", "only one of"),
        ("encrypted_comment_regex", "x", "only one of"),
        ("age", [], "no key source"),
        ("age", "age1", "must be a list of mappings"),
        ("age", [{"recipient": "age1x"}], "no key of this machine"),
        ("age", [{"recipient": 5, "enc": 5}], "no key of this machine"),
    ],
)
def test_changed_metadata_are_refused(name: str, value: Any, said: str, changed: Any, opens: Any, refusal: Any) -> None:
    assert any(phrase in refusal(opens, changed("sops", name, value)) for phrase in said.split("|"))


@pytest.mark.parametrize("metadata", [None, "sops", 5, []])
def test_a_document_whose_metadata_are_gone_is_not_taken_for_a_sealed_one(
    metadata: Any, changed: Any, sealed: dict[str, Any], opens: Any, refusal: Any, recipients: list[str]
) -> None:
    gone = {**sealed, "sops": metadata}
    assert "not sealed" in refusal(opens, gone)
    del gone["sops"]
    assert "not sealed" in refusal(opens, gone)
    check_messages(refusal(seal, gone, recipients))


def test_a_code_of_the_same_document_sealed_another_day_is_refused(
    sealed: dict[str, Any], document: dict[str, Any], recipients: list[str], changed: Any, opens: Any, refusal: Any
) -> None:
    other = seal(document, recipients)
    assert "can't be opened" in refusal(opens, changed("sops", "mac", other["sops"]["mac"]))


def test_whoever_seals_a_forged_document_has_none_of_the_old_secrets_in_it(
    sealed: dict[str, Any], recipients: list[str], opens: Any, refusal: Any
) -> None:
    """Anybody may seal for a public key: a whole document can be replaced, a part of it can not."""
    forged = seal({"config": {"startDownstream": {"url": EVIL, "payload": {}}}}, recipients)
    assert opens(forged)["config"]["startDownstream"]["url"] == EVIL
    forged["config"]["startDownstream"]["headers"] = sealed["config"]["startDownstream"]["headers"]
    assert "/headers/Authorization" in refusal(opens, forged)


def test_a_sealed_value_that_the_documents_own_rule_leaves_alone_is_not_taken_for_a_url(
    sealed: dict[str, Any], document: dict[str, Any], key: Any, like_sops: Any, opens: Any, refusal: Any
) -> None:
    first = document["config"]["startDownstream"]
    endpoint = {"url": sealed["config"]["startDownstream"]["url"], "headers": first["headers"]}
    for mac_only in (True, False):
        rule = {"encrypted_regex": "^(headers)$", "mac_only_encrypted": mac_only}
        other = like_sops({"config": {"startDownstream": endpoint}}, key.public, **rule)
        check_messages(refusal(opens, other))


# Documents whose code covers plaintext too.


@pytest.fixture
def full(document: dict[str, Any], key: Any, like_sops: Any) -> dict[str, Any]:
    return like_sops(document, key.public, encrypted_regex=ENCRYPTED_REGEX)


def test_plaintext_under_the_code_can_not_be_changed_removed_or_added(
    full: dict[str, Any], opens: Any, refusal: Any
) -> None:
    opens(full)
    for change in ({"timeout": "31s"}, {"timeout": ""}, {"timeout": None}, {"maxAttempts": 4}, {"ordering": "none"}):
        first = {**full["config"]["startDownstream"], **change}
        assert "does not match" in refusal(opens, {**full, "config": {**full["config"], "startDownstream": first}})
    assert "does not match" in refusal(opens, {**full, "interval": "6m"})


def test_the_code_can_not_be_narrowed_to_sealed_values(full: dict[str, Any], opens: Any, refusal: Any) -> None:
    full["sops"]["mac_only_encrypted"] = True
    assert "does not match" in refusal(opens, full)


def test_values_under_the_code_can_not_change_places_in_its_order(
    full: dict[str, Any], opens: Any, refusal: Any
) -> None:
    config = full["config"]
    assert "does not match" in refusal(opens, {**full, "config": dict(reversed(config.items()))})
