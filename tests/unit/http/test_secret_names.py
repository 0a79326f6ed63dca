"""One answer to whether a name is a secret's, for connections, sources, refreshes, deploys and webhooks."""

from __future__ import annotations

import pytest

from airflow_provider_rfr.builtins.desired import _masked
from airflow_provider_rfr.http.redaction import Masker, Redactor, is_secret, is_secret_extra, secrets_in
from airflow_provider_rfr.refresh.errors import redact

SECRETS = (
    "password",
    "passwd",
    "pwd",
    "client_secret",
    "api_key",
    "X-Api-Key",
    "apikey",
    "passphrase",
    "private_key",
    "private_key_content",
    "s3.access-key-id",
    "s3.secret-access-key",
    "accessKey",
    "adls.account-key",
    "adls.sas-token",
    "sas",
    "dsn",
    "connection_string",
    "keyfile_dict",
    "Authorization",
    "bearer",
    "Cookie",
    "X-Signature",
    "credential",
    "pat",
    "github_pat",
)


@pytest.mark.parametrize("name", SECRETS)
def test_what_is_secret_by_its_name_is_so_everywhere(name: str) -> None:
    assert is_secret(name) and is_secret(name.upper())
    message = "the catalog said canary-81c2 to that"
    secrets = secrets_in({name: "canary-81c2", "warehouse": "s3://lake"})
    assert redact(message, secrets) == Redactor(secrets).text(message) == "the catalog said *** to that"
    assert _masked({name: "canary-81c2"}) == {name: "***"}
    assert "canary-81c2" not in Masker(()).kept(f"{name}: canary-81c2".encode())


@pytest.mark.parametrize(
    "name",
    ["warehouse", "uri", "s3.endpoint", "region", "key", "keys", "primary_key", "token_url", "kansas", "path", "patch"],
)
def test_other_names_are_not(name: str) -> None:
    assert not is_secret(name)


def test_a_connection_keeps_its_key_in_a_field_that_is_only_called_so() -> None:
    assert is_secret_extra("key") and is_secret_extra("extra.deep.KEY") and is_secret_extra("pat")
    assert not is_secret_extra("primary_key") and not is_secret_extra("key_file") and not is_secret_extra("keys")


def test_passwords_in_addresses_are_secret_as_they_are_written_and_as_they_are_meant() -> None:
    found = secrets_in({"uri": "postgresql://rfr:p%40ssword@db/lake", "short.password": "abc"})
    assert found == ("p%40ssword", "p@ssword")
