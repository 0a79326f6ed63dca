"""What is sealed is opened again, in every form that a document may have."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from airflow_provider_rfr.documents import read_yaml
from airflow_provider_rfr.webhooks._sops import open_tree, rule_of, seal_tree
from airflow_provider_rfr.webhooks.sealing import (
    ENCRYPTED_REGEX,
    _read_json,
    _write_yaml,
    open_sealed,
    plain_copy,
    read_file,
    reseal,
    reseal_file,
    seal,
    seal_file,
)
from tests.profile import examples
from tests.unit.messages import raises

FIXTURE = Path(__file__).with_name("sealed_for_ever.yaml")
FIXTURE_KEY = "AGE-SECRET-KEY-10HR00PN4TNV8VQNDKTLWQ3N5X2ZT54JKCHC0SRE7SPGWRPQZQS4SLUH8UM"

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text
    | st.sampled_from(
        ["", "no", "1e3", "0o7", "~", "2026-01-01", "a\nb\n", " lead\n", "\n\n", "tail \n", "12:30", "=", "<<"]
    )
)
trees = st.recursive(
    scalars, lambda below: st.lists(below, max_size=4) | st.dictionaries(text, below, max_size=4), max_leaves=20
)
documents = st.dictionaries(text, trees, max_size=5)
rules = st.sampled_from(
    [
        {},
        {"mac_only_encrypted": True},
        {"encrypted_regex": "^(a|url)$"},
        {"encrypted_regex": "^(a|url)$", "mac_only_encrypted": True},
        {"unencrypted_regex": "e"},
        {"encrypted_suffix": "a"},
    ]
)


def as_printed(value: Any) -> Any:
    """Whole numbers without a point, as the sops program prints them."""
    if isinstance(value, dict):
        return {key: as_printed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_printed(item) for item in value]
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53 and str(value) != "-0.0"
    return int(value) if whole else value


@given(documents, rules)
@examples(200)
def test_any_json_comes_back_from_any_rule(document: Any, rule: dict[str, Any]) -> None:
    tree, code = seal_tree(plain_copy(document), bytes(32), rule_of(rule))
    opened, again = open_tree(plain_copy(tree), bytes(32), rule_of(rule))
    assert opened == document
    assert json.dumps(as_printed(opened)) == json.dumps(as_printed(document))
    assert again == code


@given(st.dictionaries(text, trees, max_size=4), st.lists(text.filter(bool), min_size=1, max_size=3))
@examples(50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_payload_and_any_header_come_back(
    document: Any, key: Any, payload: dict[str, Any], values: list[str]
) -> None:
    document["config"]["other"]["payload"] = payload
    document["config"]["startDownstream"]["headers"] = {f"X-{n}": f"x{value}" for n, value in enumerate(values)}
    sealed = seal(document, [key.public])
    for again in (
        sealed,
        read_yaml(_write_yaml(sealed), explicit=True),
        _read_json(json.dumps(sealed, ensure_ascii=False)),
    ):
        assert open_sealed(again, environment=key.environment) == document


@given(documents)
@examples(150)
def test_text_of_a_document_reads_back_as_the_document_by_any_reader(document: Any) -> None:
    written = _write_yaml(document)
    assert read_yaml(written, explicit=True) == document
    assert yaml.safe_load(written) == document
    assert _read_json(json.dumps(document, ensure_ascii=False)) == document


def test_a_document_is_opened_as_it_was(document: Any, sealed: Any, opens: Any) -> None:
    opened = opens(sealed)
    assert opened == document
    assert list(opened["config"]["startDownstream"]) == list(document["config"]["startDownstream"])
    assert isinstance(opened["config"]["other"]["with"]["jobId"], int)
    assert opened["config"]["startDownstream"]["success"]["equals"] is True


def test_what_decides_over_secrets_is_sealed_and_the_rest_is_readable(sealed: Any) -> None:
    first, other = sealed["config"]["startDownstream"], sealed["config"]["other"]
    for hidden in (first["url"], first["method"], *first["headers"].values(), *first["signing"]["secrets"]):
        assert hidden.startswith("ENC[AES256_GCM,data:")
    for hidden in (*first["success"]["status"], *first["allowedHosts"], *other["with"].values(), other["connection"]):
        assert hidden.startswith("ENC[AES256_GCM,data:")
    assert first["payloadTemplate"] == '{"run": "{{run_id}}"}'
    assert (sealed["interval"], first["timeout"], other["enabled"]) == ("5m", "30s", False)
    assert sealed["sops"]["mac_only_encrypted"] is True


def test_equal_values_are_sealed_to_other_text(document: Any, recipients: Any) -> None:
    document["config"]["startDownstream"]["signing"] = {"secrets": ["same", "same"]}
    one, two = seal(document, recipients), seal(document, recipients)
    assert one["config"]["other"]["connection"] != two["config"]["other"]["connection"]
    assert one["sops"]["mac"] != two["sops"]["mac"]
    assert one["sops"]["age"] != two["sops"]["age"]
    secrets = one["config"]["startDownstream"]["signing"]["secrets"]
    assert secrets[0] != secrets[1]


def test_each_recipient_can_open_it(document: Any, key: Any, other_key: Any) -> None:
    sealed = seal(document, [key.public, other_key.public, key.public])
    assert len(sealed["sops"]["age"]) == 2
    for identity in (key, other_key):
        assert open_sealed(sealed, environment=identity.environment) == document


def test_a_list_of_triggers_is_sealed_under_the_names_that_its_entries_have(
    document: Any, recipients: Any, opens: Any
) -> None:
    endpoints = list(document["config"].values())
    sealed = seal({"config": endpoints}, recipients)
    assert opens(sealed) == {"config": {"trigger0": endpoints[0], "trigger1": endpoints[1]}}


def test_a_block_below_triggers_is_sealed_there_and_its_neighbours_are_left(
    document: Any, recipients: Any, opens: Any
) -> None:
    sealed = seal({"dag": "shop", "triggers": document}, recipients)
    assert "sops" not in sealed
    assert opens(sealed) == {"dag": "shop", "triggers": document}
    assert opens(sealed["triggers"]) == document


def test_a_file_that_the_sops_program_sealed_as_a_whole_is_opened(
    document: Any, key: Any, like_sops: Any, opens: Any
) -> None:
    rule = {"encrypted_regex": ENCRYPTED_REGEX, "mac_only_encrypted": True}
    assert opens(like_sops({"triggers": document}, key.public, **rule)) == {"triggers": document}
    assert opens(like_sops(document, key.public)) == document


def test_both_spellings_of_a_field_and_a_payloads_own_url_are_sealed(
    document: Any, recipients: Any, opens: Any
) -> None:
    first = document["config"]["startDownstream"]
    first["expose_headers"], first["allowed_hosts"] = first.pop("exposeHeaders"), first.pop("allowedHosts")
    document["config"]["other"]["payload"] = {"url": "{{run_id}}", "list": [{"method": ""}], "plain": 1}
    sealed = seal(document, recipients)
    assert all(text.startswith("ENC[") for text in sealed["config"]["startDownstream"]["expose_headers"])
    assert sealed["config"]["other"]["payload"]["url"].startswith("ENC[")
    assert sealed["config"]["other"]["payload"]["plain"] == 1
    assert opens(sealed) == document


@pytest.mark.parametrize("name", ["triggers.yml", "triggers.json"])
def test_a_file_is_sealed_as_text_that_opens_to_what_it_held(
    name: str, document: Any, key: Any, tmp_path: Path
) -> None:
    document["config"]["other"]["payloadTemplate"] = '{\n  "run": "{{run_id}}"\n}\n'
    del document["config"]["other"]["payload"]
    path = tmp_path / name
    path.write_text(json.dumps(document) if name.endswith("json") else yaml.safe_dump(document, sort_keys=False))
    written = seal_file(path, [key.public])
    path.write_text(written)
    assert open_sealed(read_file(path), environment=key.environment) == document
    assert ('  "run"' in written) is not name.endswith("json")
    assert seal_file(path, [key.public]) == written


def test_a_sealed_file_gets_other_recipients(
    document: Any, key: Any, other_key: Any, tmp_path: Path, refusal: Any
) -> None:
    path = tmp_path / "triggers.yaml"
    path.write_text(_write_yaml(seal(document, [key.public])))
    path.write_text(reseal_file(path, recipients=[other_key.public], environment=key.environment))
    assert open_sealed(read_file(path), environment=other_key.environment) == document
    refusal(open_sealed, read_file(path), environment=key.environment)


def test_sealing_again_keeps_recipients_and_takes_a_new_data_key(sealed: Any, key: Any) -> None:
    again = reseal(sealed, environment=key.environment)
    assert [item["recipient"] for item in again["sops"]["age"]] == [key.public]
    mixed = copy.deepcopy(again)
    mixed["sops"] = sealed["sops"]
    with raises(Exception):
        open_sealed(mixed, environment=key.environment)


def test_a_document_that_was_sealed_long_ago_is_opened_for_ever() -> None:
    opened = open_sealed(read_file(FIXTURE), environment={"SOPS_AGE_KEY": FIXTURE_KEY})
    assert opened == {
        "interval": "10m",
        "config": {
            "onCommit": {
                "url": "https://hooks.example.com/services/T0/B0/secret",
                "method": "POST",
                "headers": {"Authorization": "Bearer dödö-☃", "X-Empty-List": "1"},
                "payloadTemplate": '{\n  "run": "{{run_id}}"\n}\n',
                "timeout": "45s",
                "maxAttempts": 5,
                "success": {"status": ["2xx", 409], "pointer": "/a", "equals": {"b": [True, 1.5, "x", 0]}},
                "signing": {"secrets": ["whsec_one", "whsec_two"]},
                "exposeHeaders": [],
            },
            "job": {
                "connection": "databricks",
                "preset": "databricks",
                "with": {"jobId": 12},
                "payload": {"url": "{{run_id}}"},
            },
        },
    }


@pytest.mark.skipif(shutil.which("age") is None, reason="the age program is not installed")
def test_the_age_program_opens_our_envelopes_and_we_open_its(document: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    subprocess.run(["age-keygen", "-o", keys], check=True, capture_output=True, timeout=60)
    public = subprocess.run(
        ["age-keygen", "-y", keys], check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()
    environment = {"SOPS_AGE_KEY_FILE": str(keys)}
    sealed = seal(document, [public])
    [entry] = sealed["sops"]["age"]
    opening = ["age", "--decrypt", "--identity", str(keys)]
    data_key = subprocess.run(opening, input=entry["enc"].encode(), check=True, capture_output=True, timeout=60).stdout
    assert len(data_key) == 32
    closing = ["age", "--encrypt", "--armor", "--recipient", public]
    entry["enc"] = subprocess.run(closing, input=data_key, check=True, capture_output=True, timeout=60).stdout.decode()
    assert open_sealed(sealed, environment=environment) == document
