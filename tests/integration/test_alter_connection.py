"""Probes against real upstreams, and an alteration whose process is killed at each of its steps."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy.engine import make_url

from airflow_provider_rfr.connections.airflow.lookup import masked
from airflow_provider_rfr.connections.types import Definition
from airflow_provider_rfr.exceptions import ConnectionValidationError
from airflow_provider_rfr.hooks.connections import check_use, run_test, upstream_identity
from airflow_provider_rfr.sample_api import SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes
from airflow_provider_rfr.store.connections import TaskRef, Use
from tests.integration.conftest import SHOP, Lake, run_python
from tests.integration.postgres import PostgresServer
from tests.unit.connections.worlds import Bench
from tests.unit.triggers.lake import publish

pytestmark = pytest.mark.test

KEY = "canary-88d1f0-key"


@pytest.fixture(scope="module")
def api() -> Iterator[SampleApi]:
    with SampleApi(Sizes(records=50, partitions=2), api_key=KEY) as api:
        yield api


def connection(api: SampleApi, **fields: Any) -> Definition:
    return Definition("shop", "rfr_api", host=api.base_url, password=KEY, **fields)


def use(**check: Any) -> Use:
    return Use(TaskRef("d", "r", "t"), "refresh", "running", 1, (), details={"check": check})


def test_an_api_is_tried_with_the_new_settings_before_they_are_stored(api: SampleApi) -> None:
    good = connection(api)
    run_test(good)
    with pytest.raises(ConnectionValidationError, match="401"):
        run_test(replace(good, password="wrong-canary"))
    with pytest.raises(ConnectionValidationError, match=r"at http://127\.0\.0\.1:9 \(Connection refused"):
        run_test(replace(good, host="http://127.0.0.1:9"))


def test_an_error_shows_no_part_of_a_secret_in_any_of_its_forms() -> None:
    definition = Definition(
        "shop", "generic", password="a/b c", extra={"secrets": {"list": ["one-secret"]}, "token": '{"pin": "987654"}'}
    )
    message = "no a/b c, no a/b%20c, no a%2Fb%20c, no one-secret, no 987654"
    assert masked(message, definition) == "no ***, no ***, no ***, no ***, no ***"


def test_a_hook_that_cant_even_be_made_is_an_error_of_the_connection() -> None:
    with pytest.raises(ConnectionValidationError, match="no base URL|must be|is no"):
        run_test(Definition("shop", "rfr_api", host="ftp://x"))


def test_what_uses_an_api_is_tried_by_its_first_page(api: SampleApi) -> None:
    source = {"file": str(SHOP), "config": {"partitions": 2, "page_size": 5}}
    noted = use(shop={"source": source, "stream": "items"})
    before = api.counts()["pages"]
    check_use({}.get, connection(api), noted)
    assert api.counts()["pages"] == before + 1
    with pytest.raises(ConnectionValidationError) as caught:
        check_use({}.get, connection(api, extra={}).having("password", "wrong-canary"), noted)
    assert "401" in str(caught.value)
    assert "wrong-canary" not in str(caught.value)


def test_a_wrong_primary_key_is_no_fault_of_the_connection(api: SampleApi) -> None:
    definition = yaml.safe_load(SHOP.read_text())
    definition["streams"]["items"]["primary_key"] = "no_such_field"
    source = {"definition": definition, "config": {"partitions": 2, "page_size": 5}}
    before = api.counts()["requests"]
    check_use({}.get, connection(api), use(shop={"source": source, "stream": "items"}))
    assert api.counts()["requests"] == before + 1


def test_an_api_is_known_again_by_what_it_says_of_itself(api: SampleApi) -> None:
    shop = connection(api, extra={"identity_path": "/customers?page_size=1"})
    assert upstream_identity(shop) == upstream_identity(replace(shop, login=None))
    with SampleApi(Sizes(customers=3), api_key=KEY) as other:
        assert upstream_identity(replace(shop, host=other.base_url)) != upstream_identity(shop)
    assert upstream_identity(connection(api)) is None
    with pytest.raises(ConnectionValidationError):
        upstream_identity(replace(shop, extra={"identity_path": "/nowhere"}))


def test_a_postgres_is_known_again_by_its_system_whatever_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PostgresServer() as server:
        identities = []
        for _ in range(2):
            url = make_url(server.new_database())
            pg = Definition("pg", "postgres", url.host, url.port, url.username, str(url.password), url.database)
            identities.append(upstream_identity(pg))
        assert identities[0] == identities[1]
        assert identities[0] is not None
        with pytest.raises(ConnectionValidationError) as caught:
            upstream_identity(replace(pg, port=9))
        assert str(url.password) not in str(caught.value)
        assert upstream_identity(replace(pg, port=9, extra={"ssh_conn_id": "bastion"})) is None
        with pytest.raises(ConnectionValidationError, match="SSL"):
            upstream_identity(replace(pg, extra={"sslmode": "require"}))
        (tmp_path / "services").write_text(
            f"[shop]\nhost={url.host}\nport={url.port}\nuser={url.username}\ndbname={url.database}\n"
        )
        monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
        by_service = Definition("pg", "postgres", password=str(url.password), extra={"service": "shop"})
        assert upstream_identity(by_service) == identities[0]


def test_a_catalog_without_the_tables_of_a_refresh_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    lakes = [Lake(tmp_path / "a"), Lake(tmp_path / "b")]
    from airflow_provider_rfr.lake.catalog import open_catalog

    publish(open_catalog(lakes[0].settings), "raw.orders")
    first, second = (
        Definition("lake", "rfr_lake", lake.properties["uri"], extra={"warehouse": lake.properties["warehouse"]})
        for lake in lakes
    )
    noted = use(lake={"tables": ["raw.orders", "raw.never"]})
    check_use({first.name: first}.get, first, noted)
    with pytest.raises(ConnectionValidationError, match=r"raw\.orders"):
        check_use({first.name: first}.get, second, noted)


PROGRAM = """
import os, signal, sys
from pathlib import Path
from airflow_provider_rfr.connections.types import Definition
from tests.unit.connections.worlds import Bench

folder, victim, when = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
api = Definition("api", "rfr_api", host="http://one")
bench = Bench(folder, api)
bench.run("load", "api")

def keep():
    (folder / "host").write_text(bench.shelf.connections["api"].host)

def dying(work):
    def run(*arguments):
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        found = work(*arguments)
        keep()
        os.kill(os.getpid(), signal.SIGKILL)
        return found
    return run

keep()
if victim == "commit":
    bench.shelf.commit = dying(bench.shelf.commit)
else:
    from airflow_provider_rfr.connections import alteration
    keep_host = bench.shelf.commit
    bench.shelf.commit = lambda *arguments: (keep_host(*arguments), keep())[0]
    setattr(alteration, victim, dying(getattr(alteration, victim)))
bench.alter("ALTER CONNECTION api SET (host = 'http://two') WITH (DRAIN_TIMEOUT = 0)")
"""


@pytest.mark.parametrize(
    ("victim", "when", "stored", "demanded"),
    [
        ("_validate", "after", False, False),
        ("commit", "before", False, False),
        ("commit", "after", True, False),
        ("_conclude", "before", True, False),
        ("_conclude", "after", True, True),
        ("_restart", "before", True, True),
    ],
)
def test_who_is_killed_leaves_everything_or_nothing_and_the_same_statement_finishes_it(
    tmp_path: Path, victim: str, when: str, stored: bool, demanded: bool
) -> None:
    run_python("-c", PROGRAM, tmp_path, victim, when, expect=-signal.SIGKILL)
    host = (tmp_path / "host").read_text()
    assert host == ("http://two" if stored else "http://one")
    bench = Bench(tmp_path, Definition("api", "rfr_api", host=host))
    assert bench.use("load").is_stale is demanded
    bench.shelf.states["load/run/refresh/-1"] = "running"
    bench.obey("load")
    # The dead one's lock ends with its lease, which nobody here has the time to wait for.
    bench.lose_leases()
    outcome = bench.alter("ALTER CONNECTION api SET (host = 'http://two')")
    assert bench.shelf.connections["api"].host == "http://two"
    assert json.dumps(outcome.to_json()).count('"restarted"') == 2
    assert bench.use("load").token == 2
    from tests.unit.connections.test_alteration import places

    assert places(bench) == ["http://one"]
