"""Documents whose key is not age: opened by a program named ``sops``, here a small one of our own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.webhooks import _sops
from airflow_provider_rfr.webhooks._sops import program
from airflow_provider_rfr.webhooks.sealing import open_sealed, reseal
from tests.unit.messages import check_messages

KMS = {"arn": "arn:aws:kms:eu-west-1:1:key/k", "enc": "x", "created_at": "2026-01-01T00:00:00Z"}
VAULT = {"vault_address": "https://vault.example.com:8200", "engine_path": "transit", "key_name": "k", "enc": "x"}

SOPS = """#!{python}
import json, os, sys, time
document = json.load(sys.stdin)
with open({record!r}, "w") as file:
    json.dump({{"arguments": sys.argv[1:], "environment": dict(os.environ), "document": document}}, file)
print("gpg: canary-of-stderr {secret}", file=sys.stderr)
{body}
"""
ANSWER = "print(open({answer!r}).read())"


class Sops:
    """A program that keeps how it was called."""

    def __init__(self, folder: Path, plain: Any) -> None:
        self.folder, self.record, self.answer = folder, folder / "called.json", folder / "plain.json"
        self.answer.write_text(json.dumps(plain))
        self.says(ANSWER.format(answer=str(self.answer)))

    def says(self, body: str) -> None:
        path = self.folder / "sops"
        path.write_text(SOPS.format(python=sys.executable, record=str(self.record), secret="canary-url-7Qz", body=body))
        path.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.folder}:{os.environ['PATH']}", "HOME": str(self.folder)}

    @property
    def called(self) -> Any:
        return json.loads(self.record.read_text()) if self.record.exists() else None


@pytest.fixture
def sops(tmp_path: Path, document: dict[str, Any]) -> Sops:
    return Sops(tmp_path, document)


@pytest.fixture
def foreign(sealed: dict[str, Any]) -> dict[str, Any]:
    metadata = {name: value for name, value in sealed["sops"].items() if name != "age"}
    return {**sealed, "sops": {**metadata, "kms": [KMS]}}


def test_the_program_gets_the_document_on_its_input_and_its_answer_counts(
    foreign: Any, sops: Sops, document: Any
) -> None:
    opened = open_sealed(foreign, environment=sops.environment)
    assert opened == document
    assert sops.called["arguments"] == ["--decrypt", "--input-type", "json", "--output-type", "json", "/dev/stdin"]
    call = sops.called["document"]
    assert call["config"] == foreign["config"]
    assert list(call["config"]["startDownstream"]) == list(foreign["config"]["startDownstream"])


def test_the_program_sees_only_what_its_key_source_needs(foreign: Any, sops: Sops) -> None:
    needed = {"AWS_REGION": "eu-west-1", "AWS_SECRET_ACCESS_KEY": "s", "https_proxy": "http://proxy"}
    others = ("VAULT_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS", "AZURE_CLIENT_SECRET", "SOPS_AGE_KEY", "PYTHONPATH")
    airflow = ("AIRFLOW__CORE__FERNET_KEY", "AIRFLOW_CONN_X", "LD_PRELOAD")
    environment = {**sops.environment, **needed, **dict.fromkeys((*others, *airflow), "s")}
    open_sealed(foreign, environment=environment)
    assert set(sops.called["environment"]) - {"LC_CTYPE"} == {"PATH", "HOME", *needed}


def test_age_is_tried_before_the_program_is(sealed: Any, sops: Sops, key: Any, document: Any) -> None:
    sealed["sops"]["kms"] = [KMS]
    assert open_sealed(sealed, environment={**sops.environment, **key.environment}) == document
    assert sops.called is None
    assert open_sealed(sealed, environment=sops.environment) == document
    assert sops.called is not None


def test_a_document_for_age_alone_never_reaches_the_program(sealed: Any, sops: Sops, refusal: Any) -> None:
    refusal(open_sealed, sealed, environment=sops.environment)
    assert sops.called is None


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"kms": [KMS]}, "kms arn:aws:kms:eu-west-1:1:key/k"),
        ({"azure_kv": [{"vault_url": "https://v", "name": "n"}]}, "azure_kv https://v n"),
        ({"kms": [{}]}, "kms (no name)"),
        ({"age": [{"recipient": "age1yubikey1qq"}]}, "age age1yubikey1qq"),
        ({"pgp": [{"fp": "A\n\x1b[2J" + "B" * 500}]}, "pgp A\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}[2JBBB"),
    ],
)
def test_without_the_program_key_sources_and_what_is_missing_are_listed(
    metadata: Any, named: str, foreign: Any, refusal: Any
) -> None:
    del foreign["sops"]["kms"]
    foreign["sops"].update(metadata)
    message = refusal(open_sealed, foreign, environment={"PATH": "/nowhere"})
    assert f"It was sealed for: {named}" in message
    assert "the sops program (3.9 or newer) is needed; there is none in PATH" in message
    assert len(message) < 1000


def test_keys_that_are_shared_between_groups_are_for_the_program(
    foreign: Any, sealed: Any, sops: Sops, key: Any, document: Any, refusal: Any
) -> None:
    foreign["sops"] |= {"kms": [], "shamir_threshold": 2}
    foreign["sops"]["key_groups"] = [{"age": sealed["sops"]["age"]}, {"pgp": [{"fp": "ABCD"}]}]
    message = refusal(open_sealed, foreign, environment=key.environment)
    assert "For age, pgp and for keys shared between groups the sops program" in message
    assert open_sealed(foreign, environment={**sops.environment, **key.environment})["config"] == document["config"]
    assert sops.called["environment"]["SOPS_AGE_KEY"] == key.secret


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("sys.exit(1)", "status 1: run sops decrypt by hand"),
        ("print('canary-url-7Qz'); sys.exit(25)", "status 25: a value can't be opened"),
        ("print('[\"canary-url-7Qz\"]')", "something other than a JSON object"),
        ("pass", "something other than a JSON object"),
        ("sys.stdout.buffer.write(b'\\xff\\xfe{')", "something other than a JSON object"),
        ("os.kill(os.getpid(), 9)", "status -9"),
        ("print('canary-url-7Qz', flush=True); time.sleep(60)", "took longer"),
    ],
)
def test_what_the_program_says_is_never_repeated(
    body: str, problem: str, foreign: Any, sops: Sops, refusal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sops, "_SECONDS", 2)
    sops.says(body)
    assert problem in refusal(open_sealed, foreign, environment=sops.environment, secrets=("canary-of-stderr",))


def test_what_the_program_opened_is_checked_as_what_we_open(
    foreign: Any, sops: Sops, document: Any, refusal: Any
) -> None:
    document["config"]["startDownstream"] |= {"url": 5, "unknown": "x"}
    sops.answer.write_text(json.dumps(document))
    message = refusal(open_sealed, foreign, environment=sops.environment)
    assert "/config/startDownstream/url: must be text" in message
    assert "/config/startDownstream/unknown: unknown field" in message


def test_a_document_with_plaintext_urls_never_reaches_the_program(foreign: Any, sops: Sops, refusal: Any) -> None:
    foreign["config"]["startDownstream"]["url"] = "https://evil.example.com"
    check_messages(refusal(open_sealed, foreign, environment=sops.environment))
    assert sops.called is None


@pytest.mark.parametrize("address", ["", "https://vault.example.com:8201", "https://vault.example.com:8200.evil"])
def test_this_machines_vault_token_goes_to_no_vault_but_its_own(
    address: str, foreign: Any, sops: Sops, refusal: Any
) -> None:
    foreign["sops"] |= {"kms": [], "hc_vault": [VAULT]}
    environment = {**sops.environment, "VAULT_TOKEN": "s.canary"} | ({"VAULT_ADDR": address} if address else {})
    message = refusal(open_sealed, foreign, environment=environment, secrets=("s.canary",))
    assert "asks for the Vault at https://vault.example.com:8200" in message
    assert sops.called is None
    environment["VAULT_ADDR"] = "https://vault.example.com:8200/"
    open_sealed(foreign, environment=environment)
    assert sops.called["environment"]["VAULT_TOKEN"] == "s.canary"


def test_a_program_in_the_folder_that_one_happens_to_stand_in_is_not_run(
    foreign: Any, sops: Sops, refusal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sops.folder)
    for path in (".", "", "./"):
        assert program({"PATH": path}) is None
        refusal(open_sealed, foreign, environment={"PATH": path})
    assert program({}) is None
    assert sops.called is None
    assert program(sops.environment) == str(sops.folder / "sops")


def test_a_program_that_can_not_be_started_is_told(foreign: Any, sops: Sops, refusal: Any) -> None:
    (sops.folder / "sops").write_text("#!/no/such/interpreter\n")
    check_messages(refusal(open_sealed, foreign, environment=sops.environment))


def test_sealing_again_for_other_sources_wants_recipients(
    foreign: Any, sops: Sops, key: Any, document: Any, refusal: Any
) -> None:
    assert "give the recipients" in refusal(reseal, foreign, environment=sops.environment)
    again = reseal(foreign, recipients=[key.public], environment=sops.environment)
    assert "kms" not in again["sops"]
    assert open_sealed(again, environment=key.environment) == document
