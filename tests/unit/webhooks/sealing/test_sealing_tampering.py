"""A sealed document that somebody without a key changed is refused, unless the change is one that is allowed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from airflow_provider_rfr.documents import leaves
from airflow_provider_rfr.exceptions import SealError
from airflow_provider_rfr.webhooks.sealing import _EDITABLE, _SEALED, ENCRYPTED_REGEX, open_document, open_sealed, seal
from tests.profile import examples
from tests.unit.messages import check_messages

EVIL = "https://evil.example.com/"


# What stays editable: research 4.4, scenario row 35.


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("payloadTemplate", '{"other": "{{commit_id}}"}'),
        ("payload", {"other": ["{{commit_id}}", None, 1.5]}),
        ("timeout", "90s"),
        ("maxAttempts", 9),
        ("retry", {"schedule": "standard", "maxElapsed": "2d"}),
        ("interval", "10m"),
        ("when", {"collections": ["*"], "minDocuments": 5}),
        ("onFailure", "block"),
        ("ordering", "strict"),
        ("enabled", False),
    ],
)
def test_what_users_tune_is_edited_in_place(field: str, value: Any, changed: Any, opens: Any) -> None:
    opened = opens(changed("config", "startDownstream", field, value))
    assert opened["config"]["startDownstream"][field] == value


def test_the_interval_of_the_block_is_edited_in_place(changed: Any, opens: Any) -> None:
    assert opens(changed("interval", "15m"))["interval"] == "15m"


def test_what_users_tune_may_be_removed_and_reordered(sealed: Any, opens: Any, document: Any) -> None:
    first = sealed["config"]["startDownstream"]
    del first["timeout"], first["when"], sealed["interval"]
    sealed["config"]["startDownstream"] = {"enabled": True, **first}
    opened = opens(sealed)["config"]["startDownstream"]
    assert opened["url"] == document["config"]["startDownstream"]["url"]
    assert "timeout" not in opened


# What does not. One place of each form of a field: text, a map, a list, lists in a map, any JSON.

SEALED_PLACES = [
    ("startDownstream", "url"),
    ("startDownstream", "headers", "X-Team"),
    ("startDownstream", "allowedHosts", 1),
    ("startDownstream", "signing", "secrets", 1),
    ("startDownstream", "success", "status", 0),
    ("other", "with", "token"),
]


def place(where: tuple[Any, ...]) -> str:
    return "/config/" + "/".join(map(str, where))


def value_at(document: Any, where: tuple[Any, ...]) -> Any:
    for part in where:
        document = document[part]
    return document


@pytest.mark.parametrize(("source", "where"), [*pairwise((*SEALED_PLACES, SEALED_PLACES[0]))], ids=place)
def test_nothing_is_taken_in_the_place_of_a_sealed_value_but_that_value(
    where: Any, source: Any, sealed: Any, changed: Any, opens: Any, refusal: Any
) -> None:
    moved = value_at(sealed["config"], source)
    opens(changed("config", *source, moved))
    for value in (moved, EVIL):
        assert place(where) in refusal(opens, changed("config", *where, value))


@pytest.mark.parametrize("value", [5, True, None, "", "ENC[]", "ENC[AES256_GCM,data:,iv:,tag:,type:str]"])
def test_nothing_but_a_sealed_value_is_taken_in_its_place(value: Any, changed: Any, opens: Any, refusal: Any) -> None:
    for where in (("startDownstream", "method"), ("startDownstream", "success", "equals")):
        assert place(where) in refusal(opens, changed("config", *where, value))


@pytest.mark.parametrize("where", [("startDownstream", "url"), ("startDownstream", "signing", "secrets", 1)], ids=place)
def test_a_sealed_value_of_another_document_for_the_same_key_is_refused(
    where: Any, document: Any, recipients: Any, changed: Any, opens: Any, refusal: Any
) -> None:
    moved = value_at(seal(document, recipients)["config"], where)
    check_messages(refusal(opens, changed("config", *where, moved)))


@pytest.mark.parametrize("part", ["data", "iv", "tag"])
def test_a_changed_bit_is_refused(part: str, sealed: Any, changed: Any, opens: Any, refusal: Any) -> None:
    text = sealed["config"]["other"]["connection"]
    at = text.index(f"{part}:") + len(part) + 1
    other = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
    assert "/config/other/connection" in refusal(opens, changed("config", "other", "connection", other))


@pytest.mark.parametrize("cut", ["tag:AAAA", "tag:", "iv:AAAA", "iv:"])
def test_a_short_tag_or_nonce_is_refused(cut: str, sealed: Any, changed: Any, opens: Any, refusal: Any) -> None:
    parts = sealed["config"]["other"]["connection"].split(",")
    name = cut.split(":")[0]
    text = ",".join(cut if part.startswith(f"{name}:") else part for part in parts)
    refusal(opens, changed("config", "other", "connection", text))


@pytest.mark.parametrize("kind", ["int", "float", "bool", "bytes", "unknown"])
def test_text_that_was_made_another_type_is_refused(
    kind: str, document: Any, recipients: Any, opens: Any, refusal: Any
) -> None:
    for text in ("12", "True", "1.5", "words"):
        document["config"]["other"]["connection"] = text
        sealed = seal(document, recipients)
        other = sealed["config"]["other"]
        other["connection"] = other["connection"].replace("type:str", f"type:{kind}")
        assert "/config/other/connection" in refusal(opens, sealed)


def first(sealed: Any) -> Any:
    return sealed["config"]["startDownstream"]


def set_secrets(arrange: Callable[[str, str], list[Any]]) -> Callable[[Any], None]:
    return lambda sealed: first(sealed)["signing"].update(secrets=arrange(*first(sealed)["signing"]["secrets"]))


def rename_header(sealed: Any) -> None:
    headers = first(sealed)["headers"]
    first(sealed)["headers"] = {"X-Other": headers["Authorization"], "X-Team": headers["X-Team"]}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda sealed: first(sealed).pop("method"), "does not match"),
        (lambda sealed: first(sealed)["headers"].pop("X-Team"), "does not match"),
        (lambda sealed: first(sealed)["success"]["status"].pop(0), "does not match"),
        (lambda sealed: sealed["config"]["other"].pop("connection"), "does not match"),
        (lambda sealed: sealed["config"].pop("other"), "does not match"),
        (lambda sealed: sealed["config"].update(renamed=sealed["config"].pop("other")), "/config/renamed/connection"),
        (lambda sealed: sealed["config"].update(copy=sealed["config"]["other"]), "/config/copy/connection"),
        (lambda sealed: sealed["config"].update(evil={"url": EVIL, "payload": 1}), "/config/evil/url: plaintext"),
        (lambda sealed: first(sealed).update(connection="admin"), "/connection: plaintext"),
        (rename_header, "/headers/X-Other"),
        (lambda sealed: first(sealed)["headers"].update({"X-Other": "v"}), "/headers/X-Other"),
        (lambda sealed: first(sealed)["headers"].update({"X-Other": ""}), "/headers/X-Other"),
        (set_secrets(lambda one, two: [two, one]), "does not match"),
        (set_secrets(lambda one, two: [one, one, two]), "does not match"),
        (set_secrets(lambda one, two: [[one], two]), "the wrong form"),
    ],
)
def test_nothing_sealed_can_be_removed_renamed_copied_or_added(
    change: Any, problem: str, sealed: Any, opens: Any, refusal: Any
) -> None:
    change(sealed)
    assert problem in refusal(opens, sealed)


def test_triggers_can_not_change_names(sealed: Any, opens: Any, refusal: Any) -> None:
    config = sealed["config"]
    swapped = {"startDownstream": config["other"], "other": config["startDownstream"]}
    check_messages(refusal(opens, {**sealed, "config": swapped}))


def test_a_trigger_can_not_be_removed_or_added(changed: Any, opens: Any, refusal: Any) -> None:
    check_messages(refusal(opens, changed("config", "evil", {"payloadTemplate": "{}"})))


@pytest.mark.parametrize("field", ["url", "headers", "allowedHosts", "signing"])
def test_a_sealed_value_can_not_be_wrapped_although_its_path_stays(
    field: str, sealed: Any, changed: Any, opens: Any, refusal: Any
) -> None:
    check_messages(refusal(opens, changed("config", "startDownstream", field, [first(sealed)[field]])))


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
    ("name", "value", "problem"),
    [
        ("lastmodified", "2031-01-01T00:00:00Z", "lastmodified was changed"),
        ("lastmodified", None, "missing or is not text"),
        ("mac", None, "missing or is not text"),
        ("mac", "ENC[AES256_GCM,data:AAAA,iv:AAAA,tag:AAAA,type:str]", "can't be opened"),
        ("mac_only_encrypted", False, "does not match"),
        ("mac_only_encrypted", "true", "must be a boolean"),
        ("encrypted_regex", "^(headers)$", "does not match"),
        ("encrypted_regex", "^(headers|payloadTemplate)$", "plaintext where a sealed value is due"),
        ("encrypted_regex", "(a+)+$", "not supported"),
        ("encrypted_regex", ["url"], "must be text"),
        ("encrypted_suffix", "_sops", "only one of"),
        ("encrypted_comment_regex", "x", "only one of"),
        ("age", [], "no key source"),
        ("age", "age1", "must be a list of mappings"),
        ("age", [{"recipient": "age1x"}], "no key of this machine"),
        ("age", [{"recipient": 5, "enc": 5}], "no key of this machine"),
    ],
)
def test_changed_metadata_are_refused(
    name: str, value: Any, problem: str, changed: Any, opens: Any, refusal: Any
) -> None:
    assert problem in refusal(opens, changed("sops", name, value))


def test_a_document_whose_metadata_are_gone_is_not_taken_for_a_sealed_one(
    sealed: Any, opens: Any, refusal: Any, recipients: Any
) -> None:
    for metadata in (None, "sops"):
        assert "not sealed" in refusal(opens, {**sealed, "sops": metadata})
    del sealed["sops"]
    assert "not sealed" in refusal(opens, sealed)
    check_messages(refusal(seal, sealed, recipients))


def test_a_code_of_the_same_document_sealed_another_day_is_refused(
    sealed: Any, document: Any, recipients: Any, changed: Any, opens: Any, refusal: Any
) -> None:
    other = seal(document, recipients)
    assert "can't be opened" in refusal(opens, changed("sops", "mac", other["sops"]["mac"]))


def test_whoever_seals_a_forged_document_has_none_of_the_old_secrets_in_it(
    sealed: Any, recipients: Any, opens: Any, refusal: Any
) -> None:
    """Anybody may seal for a public key: a whole document can be replaced, a part of it can not."""
    forged = seal({"config": {"startDownstream": {"url": EVIL, "payload": {}}}}, recipients)
    assert opens(forged)["config"]["startDownstream"]["url"] == EVIL
    forged["config"]["startDownstream"]["headers"] = sealed["config"]["startDownstream"]["headers"]
    assert "/headers/Authorization" in refusal(opens, forged)


def test_a_sealed_value_that_the_documents_own_rule_leaves_alone_is_not_taken_for_a_url(
    sealed: Any, document: Any, key: Any, like_sops: Any, opens: Any, refusal: Any
) -> None:
    endpoint = {"url": first(sealed)["url"], "headers": first(document)["headers"]}
    for mac_only in (True, False):
        rule = {"encrypted_regex": "^(headers)$", "mac_only_encrypted": mac_only}
        other = like_sops({"config": {"startDownstream": endpoint}}, key.public, **rule)
        check_messages(refusal(opens, other))


# Documents whose code covers plaintext too.


@pytest.fixture
def full(document: dict[str, Any], key: Any, like_sops: Any) -> dict[str, Any]:
    return like_sops(document, key.public, encrypted_regex=ENCRYPTED_REGEX)


@pytest.mark.parametrize(
    "change",
    [
        lambda full: first(full).update(timeout="31s"),
        lambda full: first(full).update(timeout=""),
        lambda full: first(full).update(timeout=None),
        lambda full: first(full).update(ordering="none"),
        lambda full: full.update(interval="6m"),
        lambda full: full.update(config=dict(reversed(full["config"].items()))),
        lambda full: full["sops"].update(mac_only_encrypted=True),
    ],
)
def test_nothing_under_the_code_can_be_changed_removed_added_or_reordered(
    change: Any, full: Any, opens: Any, refusal: Any
) -> None:
    opens(full)
    change(full)
    assert "does not match" in refusal(opens, full)


# Whatever else somebody without a key does: what was sealed is as it was, or nothing is opened.

NAMES = st.sampled_from(
    [*_SEALED, *_EDITABLE, "config", "sops", "triggers", "startDownstream", "other", "secrets", "A", "overlay", "age"]
)
PLAIN = st.sampled_from([None, "", "POST", "https://evil.example.com", 5, True, [], {}, ["x"], {"url": "x"}, 0.5])
CHOICE = st.integers(0, 10**6)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["set", "copy", "swap", "delete", "rename", "wrap", "add", "reverse"]),
        CHOICE,
        CHOICE,
        NAMES,
        PLAIN,
    ),
    min_size=1,
    max_size=4,
)


def holders(node: Any) -> list[tuple[Any, Any]]:
    """Every place: what holds it, and its key or index there."""
    items = list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []
    return [place for key, value in items for place in ((node, key), *holders(value))]


def mutate(document: dict[str, Any], step: tuple[Any, ...]) -> None:
    action, first, second, name, plain = copy.deepcopy(step)  # a drawn list would be shared by all examples
    places = holders(document)
    if not places:
        return
    (holder, key), (other, twin) = places[first % len(places)], places[second % len(places)]
    if action == "set":
        holder[key] = plain
    elif action == "copy":
        holder[key] = copy.deepcopy(other[twin])
    elif action == "swap":
        one, two = copy.deepcopy(holder[key]), copy.deepcopy(other[twin])
        other[twin], holder[key] = one, two
    elif action == "delete":
        del holder[key]
    elif action == "wrap":
        holder[key] = [holder[key]] if first % 2 else {name: holder[key]}
    elif isinstance(holder, dict):
        items = [(name if action == "rename" and place == key else place, value) for place, value in holder.items()]
        items += [(name, plain)] if action == "add" else []
        holder.clear()
        holder.update(reversed(items) if action == "reverse" else items)


def sealed_values(block: dict[str, Any]) -> list[Any]:
    """Places and values; SOPS binds values to no place of a list, which counts where a field may be any JSON."""
    values = []
    for name, endpoint in block["config"].items():
        for field, content in endpoint.items():
            for place, value in leaves(content, (name, field)) if field in _SEALED else ():
                any_json = _SEALED[field].depth is None
                bound = tuple(part for part in place if isinstance(part, str) or not any_json)
                values.append((bound, type(value), value))
    return values


@given(STEPS)
@examples(600, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_mutation_changes_what_was_sealed(
    sealed: Any, document: Any, key: Any, steps: list[tuple[Any, ...]]
) -> None:
    mutated = copy.deepcopy(sealed)
    for step in steps:
        mutate(mutated, step)
    try:
        opened = open_sealed(mutated, environment=key.environment)
    except SealError:
        return
    assert sealed_values(opened.get("triggers", opened)) == sealed_values(document)
