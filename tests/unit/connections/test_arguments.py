"""The same statement from Python, and where secrets are read from."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_rfr.connections import Parameter, SecretReference, parse_statement
from airflow_provider_rfr.connections.airflow.lookup import not_allowed, read_secret
from airflow_provider_rfr.connections.statement import Statement
from airflow_provider_rfr.exceptions import AlterationRefusedError, ConfigurationError, StatementError
from airflow_provider_rfr.operators import AlterConnectionOperator, connections
from airflow_provider_rfr.operators.connections import plain_texts, statement_from
from tests.unit.connections.worlds import CANARY
from tests.unit.messages import raises


@pytest.fixture
def masked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the operator has masked."""
    texts: list[Any] = []
    monkeypatch.setattr(connections, "mask_secrets", texts.extend)
    return texts


def render(arguments: dict[str, Any]) -> None:
    """Render an operator whose templates become these arguments."""
    operator = AlterConnectionOperator(task_id="alter", **dict.fromkeys(arguments, "{{ x }}"))
    for name, value in arguments.items():
        setattr(operator, name, value)
    operator.render_template_fields({})


def told(statement: Statement) -> Any:
    actions = [(action.kind, action.option, action.value) for action in statement.actions]
    return statement.connection, actions, statement.settings


def test_python_and_text_say_the_same() -> None:
    text = (
        "ALTER CONNECTION pg SET (host = 'db2', extra.sslmode = 'require', extra.a.b = 1, password = SECRET 'env:PW',"
        " login = :who), DROP (schema), RESET (port) WITH (DRY_RUN = true, DRAIN_TIMEOUT = '2m')"
    )
    made = statement_from(
        connection="pg",
        set={
            "host": "db2",
            "extra": {"sslmode": "require", "a": {"b": 1}},
            "password": "SECRET 'env:PW'",
            "login": ":who",
        },
        drop="schema",
        reset=["port"],
        dry_run="True",
        drain_timeout=timedelta(minutes=2),
    )
    assert told(made) == told(parse_statement(text))
    assert made.set["password"] == SecretReference("env", "PW")
    assert made.set["login"] == Parameter("who")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"connection": None}, "connection"),
        ({"connection": 42}, "connection"),
        ({"connection": "c", "set": "host"}, "set"),
        ({"connection": "c", "set": ["host"]}, "set"),
        ({"connection": "c", "reset": [1]}, "reset"),
        ({"connection": "c", "drop": 5}, "drop"),
        ({"connection": "c", "drain_timeout": float("inf")}, "drain_timeout"),
        ({"statement": "ALTER CONNECTION c DROP (host)", "if_exists": "perhaps"}, "if_exists"),
        ({"connection": "c", "validate": "perhaps"}, "validate"),
        ({"connection": "c", "drain_timeout": "soon"}, "drain_timeout"),
        ({"connection": "c", "statement": "ALTER CONNECTION c DROP (host)", "drop": ["port"]}, "statement"),
    ],
)
def test_a_wrong_argument_is_told_while_the_dag_is_parsed(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        AlterConnectionOperator(task_id="alter", **arguments)
    assert caught.value.field == field


def test_a_wrong_statement_is_told_while_the_dag_is_parsed_and_a_template_is_not() -> None:
    with pytest.raises(StatementError):
        AlterConnectionOperator(task_id="alter", statement="ALTER CONNECTION")
    AlterConnectionOperator(task_id="alter", statement="{{ params.statement }}", set="{{ params.set }}")


@pytest.mark.parametrize("text", ["DROP CONNECTION c", "COMMENT ON CONNECTION c IS 'mine'"])
def test_the_operator_takes_every_statement(text: str) -> None:
    operator = AlterConnectionOperator(task_id="alter", statement=text, if_exists=True)
    assert operator._statement == replace(parse_statement(text), if_exists=True)


def test_values_are_taken_whole_or_not_at_all() -> None:
    found = statement_from(
        connection="c",
        set={
            "HOST": "SECRET 'env:A', port = 1",
            "extra": {"s3.region": "eu", "empty": {}, "deep": {"a.b": 1}},
        },
        drop=["Schema"],
    )
    assert [(action.option, action.value) for action in found.actions] == [
        ("host", "SECRET 'env:A', port = 1"),
        ('extra."s3.region"', "eu"),
        ("extra.empty", {}),
        ('extra.deep."a.b"', 1),
        ("schema", None),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        {"statement": f"ALTER CONNECTION c SET (password = '{CANARY}'"},
        {"statement": f"ALTER CONNECTION c SET (host = 'h', password '{CANARY}"},
        {"statement": f"ALTER CONNECTION c SET (password = {CANARY})"},
        {"connection": "c", "set": f'{{"host": "h", "password": "{CANARY}"'},
        {"statement": "not a statement", "set": {"password": CANARY}},
    ],
)
def test_what_cant_be_read_fails_before_airflow_stores_what_was_rendered(arguments: dict[str, Any]) -> None:
    with pytest.raises(AirflowFailException) as caught:
        render(arguments)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"statement": f"ALTER CONNECTION c SET (password = '{CANARY}', password = SECRET 'env:X')"},
        {"connection": "c", "set": {"extra": {"properties": {"s3.key": CANARY}}}},
    ],
)
def test_a_plain_secret_is_masked_before_airflow_stores_what_was_rendered(
    arguments: dict[str, Any], masked: list[Any]
) -> None:
    render(arguments)
    assert masked == [CANARY]


def test_a_mapped_task_is_masked_as_well(masked: list[Any]) -> None:
    """Airflow renders it without ``render_template_fields``."""
    text = f"ALTER CONNECTION c SET (password = '{CANARY}')"
    operator = AlterConnectionOperator(task_id="alter", statement="{{ text }}")
    operator._do_render_template_fields(
        parent=operator,
        template_fields=operator.template_fields,
        context={"text": text},
        jinja_env=operator.get_template_env(),
        seen_oids=set(),
    )
    assert (operator.statement, masked) == (text, [CANARY])


def test_a_number_may_be_a_secret() -> None:
    assert list(plain_texts(parse_statement("ALTER CONNECTION c SET (password = 123456)"), None)) == ["123456"]
    assert list(plain_texts(statement_from(connection="c", set={"extra.pin_token": 98765}), "rfr_api")) == ["98765"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"connection": "c", "set": {"password": CANARY}},
        {"connection": "c", "set": {"extra": {"api_key": CANARY}}},
        {"connection": "c", "set": {"extra": {"key": CANARY}}},
        {"statement": f"ALTER CONNECTION c SET (password = '{CANARY}')"},
    ],
)
def test_a_plain_secret_is_refused_and_masked_and_parameters_may_hold_one(arguments: dict[str, Any]) -> None:
    with raises(AlterationRefusedError) as caught:
        AlterConnectionOperator(task_id="alter", **arguments)
    assert CANARY not in str(caught.value)
    assert list(plain_texts(statement_from(**arguments), "rfr_api")) == [CANARY]
    operator = AlterConnectionOperator(
        task_id="alter", connection="c", set={"password": ":new"}, parameters={"new": CANARY}
    )
    assert CANARY not in str([getattr(operator, name) for name in operator.template_fields])


@pytest.mark.parametrize(
    ("conn_type", "changes", "texts"),
    [
        ("http", {"host": f"https://hooks.example.com/{CANARY}"}, [f"/{CANARY}", CANARY]),
        ("http", {"host": "https://hooks.example.com", "extra": {"verify": "/ca.pem"}}, []),
        ("rfr_http", {"base_url": f"hooks.example.com/x?sig={CANARY}"}, [f"sig={CANARY}", CANARY]),
        ("generic", {"extra": {"X-Key": CANARY}}, [CANARY]),
        (None, {"extra": {"X-Key": CANARY}}, [CANARY]),
        ("aws", {"extra": {"region_name": "us-east-1"}}, []),
        ("rfr_api", {"host": "https://api.example.com/version-1"}, []),
    ],
)
def test_addresses_and_headers_of_http_connections_are_masked_in_rendered_fields(
    conn_type: str | None, changes: dict[str, Any], texts: list[str]
) -> None:
    assert list(plain_texts(statement_from(connection="c", set=changes), conn_type)) == texts


def test_rendering_asks_for_the_connection_s_type(masked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"extra.region": "us-east-1"}
    for name, conn_type in (("AWS", "aws"), ("HOOK", "http")):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps({"conn_type": conn_type}))
        operator = AlterConnectionOperator(task_id="alter", connection=name.lower(), set=changes)
        operator.render_template_fields({})
    assert masked == ["us-east-1"]


def test_secrets_are_read_from_the_environment_variables_and_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "pw").write_text("from-file\n")
    (tmp_path / "outside").write_text(CANARY)
    monkeypatch.setenv("AIRFLOW__RFR__SECRET_FILES", str(tmp_path / "secrets"))
    monkeypatch.setenv("PG_PW", "from-environment")
    read = partial(read_secret, {"pw": "from-variable"}.get)
    found = [read(SecretReference(*place)) for place in (("env", "PG_PW"), ("variable", "pw"), ("file", "pw"))]
    assert found == ["from-environment", "from-variable", "from-file"]
    for missing in (("env", "NONE"), ("variable", "none"), ("file", "../outside"), ("vault", "x")):
        with pytest.raises(ConfigurationError):
            read(SecretReference(*missing))


def test_connections_are_given_no_setting_of_airflows_and_only_what_the_installation_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = SecretReference("env", "AIRFLOW__CORE__FERNET_KEY")
    connection = SecretReference("env", "AIRFLOW_CONN_PG")
    allowed, other = SecretReference("env", "RFR_PW"), SecretReference("env", "HOME")
    assert not_allowed([core, connection, allowed, other]) == [core, connection]
    monkeypatch.setenv("AIRFLOW__RFR__CONNECTION_SECRETS", "env:RFR_*, variable:*, env:AIRFLOW*")
    assert not_allowed([core, connection, allowed, other]) == [core, connection, other]
