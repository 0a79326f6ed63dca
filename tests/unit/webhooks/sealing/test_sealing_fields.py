"""Which fields have to be sealed, and what can't be sealed at all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.hooks.webhooks import check_triggers
from airflow_provider_rfr.webhooks._sops import rule_of
from airflow_provider_rfr.webhooks.block import Endpoint, TriggerBlock
from airflow_provider_rfr.webhooks.sealing import (
    _BLOCK_FIELDS,
    _EDITABLE,
    _SEALED,
    ENCRYPTED_REGEX,
    check_sealed,
    open_sealed,
    seal,
)
from tests.unit.messages import check_messages


def test_every_field_of_an_endpoint_is_either_sealed_or_editable() -> None:
    assert set(Endpoint.spellings()) == {*_SEALED, *_EDITABLE}
    assert set(TriggerBlock.spellings()) == set(_BLOCK_FIELDS)
    assert not set(_SEALED) & set(_EDITABLE)


def test_a_sealed_document_is_checked_without_a_key(sealed: Any) -> None:
    check_sealed(sealed)
    check_sealed({"triggers": sealed, "dag": "x"})


def test_a_document_that_is_sealed_already_is_left_as_it_is(sealed: Any, recipients: Any) -> None:
    assert seal(sealed, recipients) == sealed


def test_a_sealed_document_with_new_plaintext_is_not_taken_for_sealed(
    changed: Any, recipients: Any, refusal: Any
) -> None:
    document = changed("config", "other", "connection", "plain")
    assert "/config/other/connection: plaintext where a sealed value is due" in refusal(seal, document, recipients)


def test_all_that_is_wrong_is_told_at_once(changed: Any, refusal: Any) -> None:
    document = changed("config", "other", {"url": "https://x", "metod": "PUT", "headers": {"A": "x", "B:C": ""}})
    document["extra"] = 1
    message = refusal(check_sealed, document)
    for part in (
        "/extra: unknown field",
        "/config/other/url: plaintext",
        "/config/other/metod: unknown field; did you mean method?",
        "/config/other/headers/A: plaintext",
        "/config/other/headers/B:C: SOPS does not seal empty values",
    ):
        assert part in message


def test_many_problems_are_cut(changed: Any, refusal: Any) -> None:
    document = changed("config", {f"t{number}": {"url": "x"} for number in range(50)})
    check_messages(refusal(check_sealed, document))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("headers", {"A": ""}, "an empty value can't be sealed"),
        ("headers", {"A": 5}, "must be text"),
        ("headers", {"A:B": "v"}, "a colon separates"),
        ("headers", {"A": {"B": "v"}}, "the wrong form"),
        ("headers", ["v"], "the wrong form"),
        ("url", None, "an empty value"),
        ("url", {"a": "b"}, "the wrong form"),
        ("signing", {"secrets": [["x"]]}, "the wrong form"),
        ("exposeHeaders", "Authorization", "the wrong form"),
        ("expose_headers", [], "is given in two spellings"),
        ("URL", "x", "unknown field; did you mean url?"),
        ("sops", {"mac": "x"}, "unknown field"),
        ("url", "ENC[AES256_GCM,data:AAAA,iv:AAAA,tag:AAAA,type:str]", "a sealed value of another document"),
    ],
)
def test_what_no_seal_would_bind_is_refused_before_sealing(
    field: str, value: Any, said: str, document: Any, recipients: Any, refusal: Any
) -> None:
    document["config"]["startDownstream"][field] = value
    message = refusal(seal, document, recipients)
    assert f"/config/startDownstream/{field}" in message
    assert said in message


@pytest.mark.parametrize("name", ["url", "expose_headers"])
def test_a_trigger_with_the_name_of_a_sealed_field_is_refused(name: str, recipients: Any, refusal: Any) -> None:
    document = {"config": {name: {"url": "https://x", "payload": {}}}}
    assert f"can't be named {name}" in refusal(seal, document, recipients)


def test_a_trigger_with_a_colon_in_its_name_is_refused(recipients: Any, refusal: Any) -> None:
    """Two names and a colon make the path of another place."""
    assert "a colon separates" in refusal(seal, {"config": {"a:b": {"url": "https://x"}}}, recipients)


@pytest.mark.parametrize(
    "document",
    [
        *({}, [], None, "text", {"triggers": None}, {"triggers": []}),
        *({"config": None}, {"config": {"a": None}}, {"config": [5]}, {"config": {}, "unknown": 1}),
        {"triggers": {"config": {}}, "config": {}},
        {"triggers": {"config": {}, "sops": {"a": 1}}, "sops": {"a": 1}},
    ],
)
def test_what_is_no_triggers_block_is_refused(document: Any, recipients: Any, refusal: Any) -> None:
    refusal(seal, document, recipients)
    refusal(check_sealed, document)
    refusal(open_sealed, document, environment={})


def test_empty_maps_and_lists_mean_what_their_absence_means_and_are_kept(document: Any, key: Any) -> None:
    document["config"]["startDownstream"] |= {"headers": {}, "exposeHeaders": [], "allowedHosts": [], "signing": {}}
    assert open_sealed(seal(document, [key.public]), environment=key.environment) == document


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("^(url|headers)$", ["url", "headers"], ["url\n", "xurl", "urls", "URL", "url|headers", ""]),
        ("^(url", [], []),
        ("url", ["url", "curly"], ["u"]),
        ("^url", ["url", "urls"], ["xurl"]),
        ("url$", ["url", "xurl"], ["urls"]),
        (r"^(a\.b|c\-d)$", ["a.b", "c-d"], ["axb"]),
        ("^(a.b)$", [], []),
        ("(?i)^url$", [], []),
        ("", [], []),
    ],
)
def test_rules_are_names_and_never_run_as_expressions(
    pattern: str, matching: list[str], other: list[str], refusal: Any
) -> None:
    rule = {"encrypted_regex": pattern}
    if not matching and pattern:
        assert "not supported" in refusal(rule_of, rule)
    for key in matching:
        assert rule_of(rule).selects(("config", key, "x"))
    for key in other:
        assert not rule_of(rule).selects(("config", key))


def test_the_configuration_reads_a_sealed_block_and_opens_it_later(document: Any, recipients: Any, opens: Any) -> None:
    """It hands the document back as it was read: field names and their order are what was sealed."""
    first = document["config"]["startDownstream"]
    first["signing"]["secrets"] = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]
    first["allowed_hosts"] = first.pop("allowedHosts")
    block = check_triggers(seal({"triggers": document}, recipients))
    assert block.is_sealed
    check_sealed(block.dump())
    opened = block.opened(opens)
    assert opened.dump() == check_triggers(document).dump()
    shown = f"{block.dump()}{block!r}{opened!r}{opened.endpoints}"
    assert not [secret for secret in ("canary-url", "canary-header", "canary-second", "whsec_") if secret in shown]


def test_the_documentation_has_a_reason_for_every_field() -> None:
    page = Path(__file__).resolve().parents[4].joinpath("docs", "webhooks_sealing.md").read_text(encoding="utf-8")
    rows = {row.split("|")[1]: row.split("|")[2].strip() for row in page.splitlines() if row.startswith("| `")}
    assert ENCRYPTED_REGEX in page
    states = {name: state for names, state in rows.items() for name in re.findall("`([A-Za-z]+)`", names)}
    assert states == {**dict.fromkeys(_SEALED, "sealed"), **dict.fromkeys(_EDITABLE, "editable")}


def test_an_overlay_which_nothing_would_apply_is_refused(sealed: Any, document: Any, key: Any, refusal: Any) -> None:
    sealed["sops"]["overlay"] = None
    assert open_sealed(sealed, environment=key.environment) == document
    for overlay in ({"interval": "15m"}, {}):
        sealed["sops"]["overlay"] = overlay
        check_messages(refusal(open_sealed, sealed, environment=key.environment))
