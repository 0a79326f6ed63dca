"""The pages as people with different rights get them, from Airflow's own application."""

from __future__ import annotations

import html
import json
import re
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from airflow_provider_rfr.compat import AIRFLOW_V_3_2_PLUS
from airflow_provider_rfr.exceptions import CatalogError
from airflow_provider_rfr.lake import sample
from airflow_provider_rfr.lake.catalog import create_table
from airflow_provider_rfr.lake.expiry import TABLE_PROPERTIES
from airflow_provider_rfr.lake.ledger_table import LedgerTable
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.state import LedgerHeader, RefreshState
from airflow_provider_rfr.web import access, lakes, make_app
from tests.airflow_versions import needs_teams
from tests.soon import PATIENCE
from tests.unit.web.conftest import Login, assets, second_lake
from tests.unit.web.ledgers import CANARY, REFRESH, TASK, begun, copies, read_page
from tests.unit.web.managers import PickyManager

ADDRESSES = ("/rfr/", REFRESH, "/rfr/static/rfr.css")


def past(**changes: Any) -> str:
    """An earlier generation as a header has it, with something odd."""
    moment = "2026-11-24T10:00:00+00:00"
    fine = {"generation": 1, "outcome": "abandoned", "opened_at": moment, "ended_at": moment}
    return json.dumps([{**fine, **changes}])


def test_every_page_asks_who_is_there_and_leads_to_the_login(login: Login) -> None:
    stranger = login("")
    for path in make_app().openapi()["paths"].keys() - {"/static/{name}"}:
        answer = stranger.get(f"/rfr{path}?lake=a&ledger=b")
        assert answer.status_code == 401, path
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        [link] = re.findall(r'<a class="airflow button" href="([^"]+)">Log in</a>', answer.text)
        onward = stranger.get(html.unescape(link))
        assert onward.status_code == 307
        back = f"/rfr{path}?lake=a&ledger=b"
        # Airflow 3.1 does not quote it.
        assert (quote(back, safe="") if AIRFLOW_V_3_2_PLUS else back) in onward.headers["location"]


def test_a_session_that_another_secret_signed_leads_to_the_login(login: Login) -> None:
    owner = login("owner")
    owner.headers["Authorization"] = owner.headers["Authorization"][:-4] + "AAAA"
    answer = owner.get("/rfr/")
    assert answer.status_code == 401
    assert ">Log in</a>" in answer.text


def test_the_files_of_the_pages_are_sent_to_everybody_and_nothing_else_is(login: Login) -> None:
    stranger = login("")
    assert stranger.get("/rfr/static/rfr.css").headers["content-type"].startswith("text/css")
    assert stranger.get("/rfr/static/rfr.js").status_code == 200
    for name in ("__init__.py", "..%2f__init__.py", "%2e%2e%2f__init__.py"):
        assert stranger.get(f"/rfr/static/{name}").status_code == 404


def test_only_reading_is_possible(login: Login) -> None:
    owner = login("owner")
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert owner.request(method, "/rfr/").status_code == 405
    assert {method for path in make_app().openapi()["paths"].values() for method in path} == {"get"}


def test_the_list_says_what_is_read_and_the_page_of_one_says_more(login: Login, catalog: Catalog) -> None:
    ledger = begun(catalog, "raw.orders", **TASK)
    read_page(ledger)
    read_page(ledger, 1, complete=False)
    viewer = login("viewer")
    listed = viewer.get("/rfr/").text
    assert "raw.orders" in listed
    assert 'value="25"' in listed
    assert "/dags/shop/runs/monday/tasks/refresh" in listed
    one = viewer.get(REFRESH)
    assert one.status_code == 200
    assert "1 of 4" in one.text
    assert "<polyline" in one.text
    assert "Unfinished partitions" in one.text
    assert "The first publish creates the table." in one.text


def test_the_page_of_a_refresh_says_where_its_records_come_from_as_far_as_that_is_known(
    login: Login, catalog: Catalog
) -> None:
    source = {"stream": "orders", "host": "api.example:8443", "paging": "cursors", "primary_key": "tenant, id"}
    begun(catalog, "raw.orders", **TASK, **source)
    begun(catalog, "raw.unknown", **TASK)
    page = login("viewer").get(REFRESH).text
    for name, value in (("Host", "<code>api.example:8443</code>"), ("Paging", "cursors")):
        assert f"<dt>{name}</dt><dd>{value}</dd>" in page
    assert "<dt>Primary key</dt><dd><code>tenant, id</code></dd>" in page
    page = login("viewer").get(REFRESH.replace("orders", "unknown")).text
    assert "Generation" in page
    for name in ("Host", "Paging", "Primary key"):
        assert f"<dt>{name}</dt>" not in page


def test_an_error_of_a_hidden_dag_is_gone_when_another_dag_takes_over(login: Login, catalog: Catalog) -> None:
    begun(catalog, "raw.orders", **{**TASK, "dag_id": "hidden_dag"}).end("SourceError: hidden reason")
    taken = Ledger(LedgerTable.load(catalog, "raw.orders"))  # type: ignore[arg-type]
    taken.take_over("p", "k2", TASK)
    viewer = login("viewer")
    for path in ("/rfr/", REFRESH):
        text = viewer.get(path).text
        assert "raw.orders" in text
        assert "hidden reason" not in text


def test_an_error_stays_while_the_same_dag_tries_again(login: Login, catalog: Catalog) -> None:
    begun(catalog, "raw.orders", **TASK).end("SourceError: a reason")
    Ledger(LedgerTable.load(catalog, "raw.orders")).take_over("p", "k2", TASK)  # type: ignore[arg-type]
    assert "the previous attempt ended with SourceError: a reason" in login("viewer").get("/rfr/").text


def test_runs_of_a_hidden_dag_can_not_be_guessed(login: Login, catalog: Catalog) -> None:
    begun(catalog, "raw.orders", **{**TASK, "dag_id": "hidden_dag", "dag_run_id": "secret"}).end("SourceError: gone")
    begun(catalog, "raw.orders", **TASK)
    query = {"dag_id": "hidden_dag", "run_id": "secret"}
    assert "raw.orders" in login("owner").get("/rfr/", params=query).text
    assert "raw.orders" not in login("viewer").get("/rfr/", params=query).text


def test_what_is_wrong_with_an_address_is_a_page_too(login: Login) -> None:
    owner = login("owner")
    for answer, status in ((owner.get("/rfr/refresh"), 422), (owner.post("/rfr/"), 405), (owner.get("/rfr/x"), 404)):
        assert answer.status_code == status
        assert '<p class="problem">' in answer.text
    assert owner.post("/rfr/").headers["allow"] == "GET"


def test_a_lake_that_hangs_holds_few_threads_however_many_of_its_pages_are_asked_for(
    login: Login, pages: FastAPI, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(catalog, "raw.orders", **TASK)
    copies(catalog, "raw.orders", 40)
    viewer, may_answer = login("viewer"), threading.Event()
    names = re.findall(r"<a href=\"[^\"]*ledger=([^\"&#]+)\"", viewer.get("/rfr/").text)
    assert len(names) == 41

    def hangs(*_: Any) -> None:
        may_answer.wait(PATIENCE)

    for place in ("_LONG_WAIT_SECONDS", "_WAIT_SECONDS"):
        monkeypatch.setattr(lakes, place, 0.0)
    monkeypatch.setattr(pages.state.lakes, "catalog", hangs)
    try:
        said = [
            viewer.get("/rfr/refresh", params={"lake": "rfr_lake_default", "ledger": name}).text for name in names * 2
        ]
        threads = [thread for thread in threading.enumerate() if thread.name == "rfr-page"]
    finally:
        may_answer.set()
    assert 0 < len(threads) <= 20
    assert all("raw." in problem for problem in said)
    assert "too many other reads have not ended yet" in said[-1]


@pytest.mark.parametrize("index", ["²", "9" * 5000, "{MAP_INDEX}", "-1"])
def test_a_map_index_that_is_none_is_no_error(login: Login, catalog: Catalog, index: str) -> None:
    begun(catalog, "raw.orders", **TASK)
    query = {"dag_id": "shop", "run_id": "monday", "task_id": "refresh", "map_index": index}
    assert login("viewer").get("/rfr/", params=query).status_code == 303


def test_an_error_that_nobody_expected_is_guarded_too(
    login: Login, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object, **_values: object) -> bool:
        raise RuntimeError(f"token={CANARY}")

    begun(catalog, "raw.orders", **TASK)
    monkeypatch.setattr(PickyManager, "is_authorized_dag", broken)
    viewer = login("viewer")
    client = TestClient(viewer.app, "http://localhost", raise_server_exceptions=False)
    answer = client.get("/rfr/", headers={"Authorization": viewer.headers["Authorization"]})
    assert answer.status_code == 500
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert CANARY not in answer.text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rfr.committed-at", "2026-11-24T10:00:00"),
        ("rfr.opened-at", "0001-01-01T00:00:00+14:00"),
        ("rfr.records", "9" * 400),
        ("rfr.past", '[{"generation": 1}]'),
        ("rfr.past", '{"generation": 1}'),
        ("rfr.past", past(error=5)),
        ("rfr.past", past(dag_id=["shop"])),
        ("rfr.past", past(rows="many")),
        ("rfr.past", past(rows=10**400)),
        ("rfr.past", past(error="\ud800")),
        ("rfr.past", past(unknown=1)),
        ("rfr.past", past(changes={"inserted": "many"})),
        ("rfr.past", past(changes=[1])),
        ("rfr.changes", "[1]"),
        ("rfr.changes", '{"inserted": -1}'),
    ],
)
def test_a_header_that_is_broken_hides_no_other_table(
    login: Login, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, key: str, value: str
) -> None:
    begun(catalog, "raw.healthy", **TASK)
    ledger, to_summary = begun(catalog, "raw.broken", **TASK), LedgerHeader.to_summary
    with monkeypatch.context() as patch:
        patch.setattr(LedgerHeader, "to_summary", lambda header: {**to_summary(header), key: value})
        ledger.commit([])
    owner = login("owner")
    assert owner.get("/rfr/", params={"dag_id": "shop"}).status_code == 200
    answer = owner.get("/rfr/")
    assert answer.status_code == 200
    assert "raw.healthy" in answer.text
    assert "The ledger can&#39;t be read" in answer.text


def test_who_may_see_nothing_is_told_no_address(
    login: Login, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(catalog, "raw.orders", **TASK)
    dead = {"conn_type": "rfr_lake", "host": "http://127.0.0.1:9", "extra": {"catalog_type": "rest"}}
    monkeypatch.setenv("AIRFLOW_CONN_RFR_LAKE_DEFAULT", json.dumps(dead))
    text = login("viewer").get("/rfr/").text
    assert "127.0.0.1:9" in text
    # What could not be read may hold any number of refreshes.
    assert "0 tables" not in text
    assert "No refresh has begun" not in text
    monkeypatch.setattr(PickyManager, "is_authorized_asset", lambda *_args, **_values: False)
    text = login("viewer").get("/rfr/").text
    assert "127.0.0.1:9" not in text
    assert "told why" in text


def test_who_may_see_no_asset_is_told_no_address_on_the_page_of_one_refresh(
    login: Login, pages: FastAPI, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise CatalogError("the catalog 'rfr' (http://10.1.2.3:9) does not answer")

    begun(catalog, "raw.orders", **TASK)
    viewer = login("viewer")
    assert viewer.get("/rfr/").status_code == 200
    monkeypatch.setattr(pages.state.lakes, "catalog", away)
    assert "10.1.2.3" in viewer.get(REFRESH).text
    monkeypatch.setattr(PickyManager, "is_authorized_asset", lambda *_args, **_values: False)
    text = viewer.get(REFRESH).text
    assert "raw.orders" in text
    assert "10.1.2.3" not in text


def test_a_refresh_shows_how_many_copies_of_its_table_are_kept(login: Login, catalog: Catalog) -> None:
    rows = pa.table({"id": pa.array([1], pa.int64())})
    create_table(catalog, "raw.orders", rows.schema, properties=TABLE_PROPERTIES).append(rows)
    read_page(begun(catalog, "raw.orders", partitions=1, **TASK))
    assert "; snapshots: 1; <code>rfr.expire.max-copies</code> 24" in login("owner").get(REFRESH).text


def test_rows_of_the_table_are_read_only_where_a_setting_and_the_viewer_s_rights_allow_it(
    login: Login, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({"id": [1], "name": [CANARY], "api_key": [f"{CANARY}-2"]})
    create_table(catalog, "raw.orders", rows.schema).append(rows)
    read_page(begun(catalog, "raw.orders", partitions=1, **TASK), snapshot_id=1)
    read = []
    sample_of = sample.sample_of

    def counted(table: Table) -> sample.TableSample:
        read.append(table)
        return sample_of(table)

    monkeypatch.setattr(sample, "sample_of", counted)
    off = login("owner").get(REFRESH).text
    assert CANARY not in off
    assert 'id="rows"' not in off
    monkeypatch.setenv("AIRFLOW__RFR__SHOW_ROWS", "True")
    with monkeypatch.context() as patch:
        patch.setattr(PickyManager, "is_authorized_asset", lambda *_args, **_values: False)
        denied = login("viewer").get(REFRESH).text
        assert "raw.orders" in denied
        assert CANARY not in denied
    assert CANARY not in login("owner").get(REFRESH).text
    assert not read, "neither without the setting, nor for a viewer without the right, nor without an asset"
    with assets("rfr://rfr_lake_default/raw/orders"):
        shown = login("owner").get(REFRESH).text
    assert f"<td>{CANARY}</td>" in shown
    assert f"{CANARY}-2" not in shown
    assert "Not read because of their names: api_key." in shown


def test_the_right_to_assets_is_asked_for_the_table_s_own(
    application: FastAPI, login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    with assets("rfr://lake/raw/orders", "rfr://lake/raw/others") as ids:

        def refused(_: Any, *, details: Any = None, **_values: Any) -> bool:
            return details is None or details.id != ids["rfr://lake/raw/orders"]

        monkeypatch.setattr(PickyManager, "is_authorized_asset", refused)
        viewer = access.Viewer(None)
        assert viewer.reads_assets
        assert not viewer.reads_asset("rfr://lake/raw/orders")
        assert viewer.reads_asset("rfr://lake/raw/others")
        assert not viewer.reads_asset("rfr://other_lake/raw/orders"), "without an asset nobody has the right to it"


def test_a_table_whose_rows_can_not_be_read_or_that_has_none_says_so(
    login: Login, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__RFR__SHOW_ROWS", "True")
    rows = pa.table({"id": [1]})
    for name in ("raw.new", "raw.empty", "raw.broken"):
        begun(catalog, name, **TASK)
    create_table(catalog, "raw.empty", rows.schema)
    create_table(catalog, "raw.broken", rows.schema).append(rows)
    for file in (tmp_path / "warehouse").rglob("broken/data/*.parquet"):
        file.unlink()
    owner = login("owner")
    sentences = {
        "new": "The first publish creates the table.",
        "empty": "The table has no rows.",
        "broken": "The rows of the table can&#39;t be read now: FileNotFoundError",
    }
    with assets(*(f"rfr://rfr_lake_default/raw/{name}" for name in sentences)):
        shown = {name: owner.get(REFRESH.replace("orders", name)).text for name in sentences}
    for name, sentence in sentences.items():
        page = shown[name]
        assert sentence in page.partition('id="rows"')[2], name


def test_a_target_that_can_not_be_read_hides_nothing_of_its_refresh(
    login: Login, catalog: Catalog, tmp_path: Path
) -> None:
    rows = pa.table({"id": pa.array([1], pa.int64())})
    create_table(catalog, "raw.orders", rows.schema).append(rows)
    ledger = begun(catalog, "raw.orders", partitions=1, **TASK)
    read_page(ledger)
    Path(catalog.load_table("raw.orders").metadata_location.removeprefix("file://")).unlink()
    text = login("owner").get(REFRESH).text
    assert text.count("The table can&#39;t be read now.") == 1
    assert "<polyline" in text
    assert "Slowest partitions" not in text, "one partition is the whole refresh"


def test_the_page_of_a_new_generation_shows_no_page_of_the_one_before(
    login: Login, pages: FastAPI, catalog: Catalog
) -> None:
    read_page(begun(catalog, "raw.orders", **TASK))
    owner = login("owner")
    assert "<polyline" in owner.get(REFRESH).text
    begun(catalog, "raw.orders", **TASK)
    pages.state.lakes._statuses["rfr_lake_default"]._pause = 0.0
    assert "<polyline" not in owner.get(REFRESH).text


def test_the_page_of_a_refresh_that_another_dag_goes_on_with_shows_its_pages(
    login: Login, pages: FastAPI, catalog: Catalog
) -> None:
    ledger = begun(catalog, "raw.orders", **TASK | {"dag_id": "hidden_dag"})
    read_page(ledger)
    assert "<polyline" in login("owner").get(REFRESH).text
    Ledger(LedgerTable.load(catalog, "raw.orders")).take_over("p", "k", TASK)  # type: ignore[arg-type]
    pages.state.lakes._statuses["rfr_lake_default"]._pause = 0.0
    assert "<polyline" in login("viewer").get(REFRESH).text


def test_a_default_lake_that_a_secrets_backend_denies_hides_no_other(
    login: Login, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(conn_id: str) -> None:
        raise PermissionError(conn_id)

    monkeypatch.setattr(lakes, "read_connection", denied)
    with second_lake(host="http://127.0.0.1:9"):
        assert lakes._lake_ids() == ("rfr_lake_default", "second_lake")


@needs_teams
def test_with_teams_a_dag_that_is_gone_is_nobodys(
    login: Login, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(catalog, "raw.orders", **TASK)
    assert "raw.orders" in login("viewer").get("/rfr/").text
    monkeypatch.setattr(access, "_has_teams", lambda: True)
    assert "raw.orders" not in login("viewer").get("/rfr/").text


def test_what_a_viewer_may_not_see_is_not_there(login: Login, catalog: Catalog) -> None:
    begun(catalog, "raw.open", **TASK)
    begun(catalog, "raw.closed", **{**TASK, "dag_id": "hidden_dag"})
    begun(catalog, "raw.of_no_dag")
    shown = {name: login(name).get("/rfr/").text for name in ("owner", "viewer")}
    assert {name: "raw.closed" in text for name, text in shown.items()} == {"owner": True, "viewer": False}
    assert all("raw.open" in text and "raw.of_no_dag" in text for text in shown.values())
    address = {"lake": "rfr_lake_default", "ledger": "raw.closed__rfr_ledger"}
    assert login("owner").get("/rfr/refresh", params=address).status_code == 200
    refused = login("viewer").get("/rfr/refresh", params=address)
    missing = login("viewer").get("/rfr/refresh", params={**address, "ledger": "raw.none__rfr_ledger"})
    assert (refused.status_code, refused.text) == (404, missing.text)


def test_a_generation_of_a_dag_that_is_hidden_shows_figures_alone(login: Login, catalog: Catalog) -> None:
    ledger = begun(catalog, "raw.orders", **{**TASK, "dag_id": "hidden_dag", "dag_run_id": "in_secret"})
    ledger.end("SourceError: hidden reason")
    begun(catalog, "raw.orders", **TASK)
    owner, viewer = (login(name).get(REFRESH).text for name in ("owner", "viewer"))
    assert "hidden reason" in owner
    assert "in_secret" in owner
    assert "hidden reason" not in viewer
    assert "in_secret" not in viewer
    assert "abandoned" in viewer


def test_each_attempt_leads_to_the_log_of_its_task_s_try(login: Login, catalog: Catalog) -> None:
    first = begun(catalog, "raw.orders", **{**TASK, "try_number": 1})
    read_page(first, complete=False)
    first.end(f'SourceError: page token is "{CANARY}"')
    second = Ledger(LedgerTable.load(catalog, "raw.orders"))  # type: ignore[arg-type]
    mapped = {**TASK, "dag_run_id": "tue/sday", "map_index": 3, "try_number": 2}
    second.take_over("p", "k", mapped)
    page = login("viewer").get(REFRESH).text
    rows = re.findall(r'<tr><td class="name">([0-9]+)</td>(.*?)</tr>', attempts_in(page), re.DOTALL)
    assert [number for number, _ in rows] == ["2", "1"]
    assert 'href="/dags/shop/runs/tue%2Fsday/tasks/refresh/mapped/3?try_number=2"' in rows[0][1]
    assert 'href="/dags/shop/runs/monday/tasks/refresh?try_number=1"' in rows[1][1]
    assert "SourceError" in rows[1][1]
    assert CANARY not in page


def test_an_attempt_of_a_dag_that_is_hidden_shows_figures_alone(login: Login, catalog: Catalog) -> None:
    first = begun(catalog, "raw.orders", **{**TASK, "dag_id": "hidden_dag", "try_number": 5})
    read_page(first, complete=False)
    first.end("SourceError: of the hidden one")
    Ledger(LedgerTable.load(catalog, "raw.orders")).take_over("p", "k", TASK)  # type: ignore[arg-type]
    hidden, shown = (attempts_in(login(name).get(REFRESH).text) for name in ("viewer", "owner"))
    for text in ("hidden_dag", "of the hidden one", "try 5"):
        assert text in shown
        assert text not in hidden
    assert hidden.count('<td class="name">') == 2


def attempts_in(page: str) -> str:
    return page.partition('<h2 id="attempts">')[2].partition("<h2")[0]


def test_a_generation_of_no_dag_shows_figures_alone_to_who_may_see_no_asset(
    login: Login, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(catalog, "raw.orders").end("SourceError: hidden reason")
    begun(catalog, "raw.orders", **TASK)
    viewer = login("viewer")
    assert "hidden reason" in viewer.get(REFRESH).text
    monkeypatch.setattr(PickyManager, "is_authorized_asset", lambda *_args, **_values: False)
    text = viewer.get(REFRESH).text
    assert "hidden reason" not in text
    assert "abandoned" in text


@pytest.mark.parametrize(
    ("previous", "said"), [(None, "there is no previous one"), (0, "the previous one published none"), (2, "-50.0 %")]
)
def test_rows_are_compared_with_the_previous_refresh_where_there_is_one(
    login: Login, catalog: Catalog, previous: int | None, said: str
) -> None:
    ledger = begun(catalog, "raw.orders", partitions=1, **TASK)
    read_page(ledger, previous_rows=previous, state=RefreshState.PUBLISHED, snapshot_id=7, published_rows=1)
    text = login("owner").get(REFRESH).text
    assert f"<dd>{said}</dd>" in text
    assert ("the previous refresh published" in text) is (previous is not None)


def test_markup_in_names_and_errors_stays_text(login: Login, catalog: Catalog) -> None:
    hostile = "<script>alert(1)</script>\"'><img src=x>"
    ledger = begun(catalog, "raw.orders", **{**TASK, "dag_run_id": hostile, "task_id": hostile})
    ledger.end(f"SourceError: {hostile}")
    answers = [
        login("owner").get("/rfr/", params={"q": hostile}),
        login("owner").get(REFRESH),
        login("owner").get("/rfr/refresh", params={"lake": hostile, "ledger": hostile}),
    ]
    for answer in answers:
        assert "<script>" not in answer.text
        assert "<img" not in answer.text
    assert "&lt;script&gt;" in answers[0].text


def test_a_table_whose_name_no_load_of_ours_can_have_has_a_page_without_rows(
    login: Login, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__RFR__SHOW_ROWS", "True")
    begun(catalog, "raw.<b>orders</b>", **TASK)
    page = login("owner").get(
        "/rfr/refresh", params={"lake": "rfr_lake_default", "ledger": "raw.<b>orders</b>__rfr_ledger"}
    )
    assert page.status_code == 200
    assert "&lt;b&gt;orders&lt;/b&gt;" in page.text


def test_no_page_has_script_or_style_of_its_own_or_an_address_elsewhere(login: Login, catalog: Catalog) -> None:
    read_page(begun(catalog, "raw.orders", **TASK))
    for address in ADDRESSES:
        text = login("owner").get(address).text
        assert not re.search(r"<style|style=|<script(?! src=)|\son\w+=|javascript:", text), address
        assert not re.search(r"(?:src|href|action)=\"(?!/)|https?://|@import|url\(", text), address


def test_tokens_requests_and_records_of_pages_are_in_no_answer(login: Login, catalog: Catalog) -> None:
    ledger = begun(catalog, "raw.orders", **TASK)
    read_page(ledger)
    read_page(ledger, 1, complete=False)
    for address in ADDRESSES:
        answer = login("owner").get(address)
        assert CANARY not in answer.text
        assert CANARY not in str(answer.headers)


def test_failed_and_stuck_refreshes_come_first_and_can_be_filtered(login: Login, catalog: Catalog) -> None:
    begun(catalog, "raw.aaa", **TASK)
    begun(catalog, "raw.zzz", **TASK).end("SourceError: 503 from upstream")
    owner = login("owner")
    text = owner.get("/rfr/").text
    assert text.index("raw.zzz") < text.index("raw.aaa")
    assert "503 from upstream" in text
    failed = owner.get("/rfr/", params={"state": "failed"}).text
    assert ("raw.zzz" in failed, "raw.aaa" in failed) == (True, False)
    found = owner.get("/rfr/", params={"q": "AAA"}).text
    assert ("raw.zzz" in found, "raw.aaa" in found) == (False, True)


@pytest.mark.parametrize(("run", "status"), [("monday", 303), ("tuesday", 200)])
def test_a_task_s_tab_leads_to_the_only_refresh_of_that_task(
    login: Login, catalog: Catalog, run: str, status: int
) -> None:
    begun(catalog, "raw.orders", **TASK)
    begun(catalog, "raw.customers", **{**TASK, "task_id": "other"})
    tab = {"dag_id": "shop", "run_id": run, "task_id": "refresh", "map_index": "{MAP_INDEX}"}
    answer = login("owner").get("/rfr/", params=tab)
    assert answer.status_code == status
    assert "raw.customers" not in answer.text
    if status == 303:
        assert answer.headers["location"].endswith("ledger=raw.orders__rfr_ledger&run_id=monday")


def test_a_mapped_task_s_tab_leads_to_its_refresh_alone_also_after_another_run_took_over(
    login: Login, catalog: Catalog
) -> None:
    for index, name in enumerate(("raw.orders", "raw.customers")):
        begun(catalog, name, **{**TASK, "map_index": index}).end("SourceError: 503")
        begun(catalog, name, **{**TASK, "dag_run_id": "tuesday", "map_index": 1 - index})
    for run, index, name in (
        ("monday", 0, "raw.orders"),
        ("monday", 1, "raw.customers"),
        ("tuesday", 0, "raw.customers"),
    ):
        tab = {"dag_id": "shop", "run_id": run, "task_id": "refresh", "map_index": str(index)}
        answer = login("viewer").get("/rfr/", params=tab)
        assert answer.status_code == 303
        assert f"ledger={name}__rfr_ledger&" in answer.headers["location"]
    shown = login("viewer").get(REFRESH)
    assert "/runs/monday/tasks/refresh/mapped/0" in shown.text


def test_the_tab_of_an_older_run_says_that_a_later_one_has_taken_over(login: Login, catalog: Catalog) -> None:
    begun(catalog, "raw.orders", **TASK)
    begun(catalog, "raw.orders", **{**TASK, "dag_run_id": "tuesday"})
    viewer = login("viewer")
    assert "not of the run monday" in viewer.get(f"{REFRESH}&run_id=monday").text
    for query in ("", "&run_id=tuesday"):
        assert "A later run" not in viewer.get(f"{REFRESH}{query}").text


def test_a_dead_catalog_is_a_sentence_and_what_was_known_stays(
    login: Login, pages: FastAPI, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(catalog, "raw.orders", **TASK)
    owner = login("owner")
    assert "raw.orders" in owner.get("/rfr/").text
    dead = {
        "conn_type": "rfr_lake",
        "host": "http://127.0.0.1:9",
        "password": CANARY,
        "extra": {"catalog_type": "rest"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_RFR_LAKE_DEFAULT", json.dumps(dead))
    monkeypatch.setattr(pages.state.lakes._statuses["rfr_lake_default"], "_pause", 0.0)
    answer = owner.get("/rfr/")
    assert answer.status_code == 200
    assert "The lake rfr_lake_default can&#39;t be read now" in answer.text
    assert "raw.orders" in answer.text
    assert CANARY not in answer.text
    for name in ("deliveries", "migrations", "connections"):
        assert owner.get(f"/rfr/{name}").status_code == 200


@pytest.mark.parametrize(
    "error",
    [
        f'RepeatedPageError: page token "{CANARY}" came twice; the stream would never end',
        f'RepeatedPageError: the page token {{"after":"{CANARY} and more"}} came twice in one chain',
        f"SourceError: page token '{CANARY}' is not an address",
        f"SourceError: GET https://api.example.com/orders?after={CANARY}: 503 Service Unavailable",
    ],
)
def test_a_cursor_in_an_error_is_in_no_answer(login: Login, catalog: Catalog, error: str) -> None:
    begun(catalog, "raw.orders", **TASK).end(error)
    begun(catalog, "raw.orders", **TASK).end(error)
    for address in ADDRESSES:
        text = login("owner").get(address).text
        assert CANARY not in text
        assert "Error: " in text or address.endswith(".css")


def test_a_refresh_of_which_nothing_is_known_yet_has_a_page(login: Login, catalog: Catalog) -> None:
    LedgerTable.load_or_create(catalog, "raw.orders")
    for address in ADDRESSES:
        answer = login("owner").get(address)
        assert answer.status_code == 200
    assert "its partitions are being listed" in login("owner").get(ADDRESSES[1]).text


def test_lakes_of_the_database_are_shown_beside_the_default_and_a_dead_one_alone_is_missing(
    login: Login, catalog: Catalog
) -> None:
    begun(catalog, "raw.orders", **TASK)
    with second_lake(host="http://127.0.0.1:9", extra=json.dumps({"catalog_type": "rest"})):
        text = login("owner").get("/rfr/").text
    assert "raw.orders" in text
    assert "The lake second_lake can&#39;t be read now" in text
    assert "The lake rfr_lake_default" not in text
