"""Which names are those of secrets, everywhere, and what is kept of an answer."""

from __future__ import annotations

import base64
import html
import json
import re
from urllib.parse import quote

import pytest

from airflow_provider_rfr.builtins.desired import _masked
from airflow_provider_rfr.http.redaction import (
    _MOST_KEPT,
    Masker,
    Redactor,
    is_secret,
    is_secret_extra,
    names_login,
    redact,
    secrets_in,
    secrets_of_url,
    without_credentials,
)
from airflow_provider_rfr.webhooks.block import parse_triggers
from airflow_provider_rfr.webhooks.calls import ConnectionSettings, resolve
from tests.soon import assert_grows_in_proportion

SECRET = 'Tr0ub4dor&3/"x y'


SPELLINGS = [quote(SECRET, safe=""), json.dumps({"h": SECRET}), base64.b64encode(SECRET.encode()).decode()]


@pytest.mark.parametrize("echo", [SECRET, *SPELLINGS, f"a{SECRET}b{SECRET}"])
def test_a_secret_is_masked_in_every_spelling(echo: str) -> None:
    kept = Masker([SECRET]).kept(echo.encode())
    assert "***" in kept
    assert "Tr0ub4dor" not in kept
    assert "VHIwdWI0ZG9y" not in kept


AWKWARD = "tök=n/a+b&<c>'d\"e\\f=="


@pytest.mark.parametrize(
    "echo",
    [
        re.sub("%..", lambda found: found[0].lower(), quote(AWKWARD, safe="")),
        quote(AWKWARD, safe="!'()*~"),
        html.escape(AWKWARD),
        html.escape(AWKWARD).replace("&#x27;", "&#39;"),
        html.escape(AWKWARD).replace("&#x27;", "&#39;").replace("&quot;", "&#34;"),
        r"tök=n/a+b\u0026\u003cc\u003e'd\"e\\f==",
        r"tök\u003dn/a+b\u0026\u003cc\u003e\u0027d\"e\\f\u003d\u003d",
        r"t\u00f6k=n/a\u002Bb\u0026\u003Cc\u003E\u0027d\u0022e\\f==",
        r"t\u00f6k=n\/a+b&<c>'d\"e\\f==",
        json.dumps(json.dumps(AWKWARD)),
        base64.urlsafe_b64encode(AWKWARD.encode()).decode(),
    ],
    ids=["small hex", "script", "page", "page 39", "page 34", "go", "gson", "net", "php", "json in json", "base64"],
)
def test_an_awkward_secret_is_masked_as_the_usual_libraries_write_it(echo: str) -> None:
    kept = Masker([f"Bearer {AWKWARD}"]).kept(f"you sent {echo} today".encode())
    assert kept.startswith("you sent ")
    assert kept.endswith(" today")
    assert set(kept.removeprefix("you sent ").removesuffix(" today")) <= set('*"\\=')


def test_the_parts_of_a_header_are_secrets_too() -> None:
    login = base64.b64encode(b"robot:hunter22").decode()
    masker = Masker(["Bearer abc.def.ghi", f"Basic {login}"])
    kept = masker.kept(f"got abc.def.ghi and {login} of robot:hunter22, hunter22; Bearer".encode())
    for secret in ("abc.def", login, "hunter22"):
        assert secret not in kept
    assert kept.endswith("Bearer")


def test_what_names_itself_a_secret_is_masked_though_nobody_knew_it() -> None:
    kept = Masker([]).kept(
        b'{"access_token": "eyJhbGciOi", "user": "x", "X-Api-Key":"k1"} Authorization: Bearer zzz9 password=pw1&a=b'
    )
    for secret in ("eyJhbGciOi", "k1", "zzz9", "pw1"):
        assert secret not in kept
    assert '"user": "x"' in kept
    assert "a=b" in kept


def test_no_half_of_a_secret_is_left_at_the_end() -> None:
    secret = "S" * 50
    for offset in range(_MOST_KEPT - 60, _MOST_KEPT + 5, 7):
        kept = Masker([secret]).kept(b"." * offset + secret.encode() + b"tail")
        assert "SSSS" not in kept
        assert len(kept.encode()) <= _MOST_KEPT


def test_what_is_kept_is_text_of_at_most_2_kb() -> None:
    assert len(Masker([]).kept("ü€😀".encode() * 5000).encode()) <= _MOST_KEPT
    assert Masker([]).kept(b"\xff\x00\x1b[31m").isprintable()


def test_secrets_of_an_address() -> None:
    url = "https://user:hunter22@hooks.example.com/services/T000/B000/XXXXXXXXXXXX?sig=abcd1234&v=1"
    assert {"user", "hunter22", "XXXXXXXXXXXX", "abcd1234"} <= set(secrets_of_url(url))
    masker = Masker(secrets_of_url(url))
    assert masker.mask("no route for /services/T000/B000/XXXXXXXXXXXX") == "no route for ***"
    assert repr(masker) == "Masker()"


@pytest.mark.parametrize(
    ("before", "repeated", "after"),
    [
        *((b"", repeated, b"") for repeated in (b"a", b"token", b'token:"', b"token ", b"\xff", b"Tr0ub4do")),
        (b"token", b" ", b""),
        (b"", b"a-", b"="),
    ],
)
def test_a_longer_answer_takes_no_more_to_mask_than_its_length_says(
    before: bytes, repeated: bytes, after: bytes
) -> None:
    masker = Masker([SECRET, *(f"{n}Tr0ub4dor{n}" * 20 for n in range(30))])

    def mask(times: int) -> None:
        assert len(masker.kept(before + repeated * times + after).encode()) <= _MOST_KEPT

    most = 65536 // len(repeated)
    assert_grows_in_proportion(mask, small=most // 100, large=most)


def test_a_long_secret_is_masked_wherever_it_stands() -> None:
    secret = "".join(chr(65 + n % 26) + str(n) for n in range(800))
    for before in (0, 1000, 2000, 2047, 3000, 60_000):
        for copies in (1, 3):
            kept = Masker([secret]).kept(b"." * before + secret.encode() * copies + b"tail" * 1000)
            assert secret[:12] not in kept
            assert secret[-12:] not in kept


def test_words_that_an_answer_has_to_tell_stay_visible() -> None:
    headers = {"User-Agent": "loader", "X-Team": "Data Platform canary77"}
    block = {"connection": "c", "preset": "airflow-dag-run", "with": {"dagId": "build_marts_2024"}, "headers": headers}
    endpoint = parse_triggers({"config": {"a": block}}).config["a"]
    settings = ConnectionSettings("https://airflow.example.com/services/k3y-of-team", "airflow", "hunter22")
    masker = resolve(endpoint, lambda name: settings).masker
    told = "Dag with dag_id: 'build_marts_2024' not found by airflow, services or loader of the Platform"
    assert masker.kept(told.encode()) == told
    assert masker.mask("Data Platform canary77, k3y-of-team, hunter22") == "***, ***, ***"


SECRETS = (
    "password passwd pwd client_secret api_key X-Api-Key apikey passphrase private_key private_key_content"
    " s3.access-key-id s3.secret-access-key accessKey adls.account-key adls.sas-token sas dsn connection_string"
    " keyfile_dict Authorization bearer Cookie X-Signature credential pat github_pat"
)


@pytest.mark.parametrize("name", SECRETS.split())
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


@pytest.mark.parametrize("mark", list("/#?: %"))
def test_a_database_s_password_may_have_any_character_but_an_at_sign(mark: str) -> None:
    address = f"postgresql+psycopg2://rfr:canary{mark}81c2@db/lake"
    assert f"canary{mark}81c2" in secrets_in({"uri": address})
    assert names_login(address)
    assert without_credentials(address) == "postgresql+psycopg2://rfr:***@db/lake"


@pytest.mark.parametrize(
    "address", ["http://rest:8181/users/me", "hdfs://name:8020/user/me@home", "sqlite:////data/me:you@home.db"]
)
def test_a_path_is_no_password(address: str) -> None:
    assert secrets_in({"uri": address}) == ()
    assert not names_login(address)
