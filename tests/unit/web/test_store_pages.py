"""The pages about webhooks, migrations and connections, from a real control store."""

from __future__ import annotations

import gc
import json
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from pyiceberg.catalog import Catalog
from sqlalchemy import delete, insert, update

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.builtins import BuiltinsHook
from airflow_provider_rfr.hooks.control_store import ControlStoreHook
from airflow_provider_rfr.lake.commit_event import CommitEvent
from airflow_provider_rfr.refresh.state import RefreshState
from airflow_provider_rfr.store.claims import Claim, ClaimRequest, MergedCommits, claim
from airflow_provider_rfr.store.connections import (
    AlterationState,
    TaskRef,
    UsedConnection,
    begin_alteration,
    end_use,
    note_alteration,
    note_copies,
    register_use,
    set_wanted_hash,
)
from airflow_provider_rfr.store.deliveries import (
    EndpointKey,
    add_deliveries,
    endpoints_of_table,
    endpoints_with_ids,
    ensure_endpoint,
)
from airflow_provider_rfr.store.engine import ControlStore, open_store
from airflow_provider_rfr.store.tables import ATTEMPTS, DELIVERIES, DEPLOYS, ENDPOINTS
from airflow_provider_rfr.web import access, listing, store_pages
from airflow_provider_rfr.web.store_pages import control_store, read_in_lake
from tests.airflow_versions import needs_teams
from tests.unit.builtins.execution.places import DuckEngine
from tests.unit.web.conftest import Login, offered, parsed, second_lake
from tests.unit.web.ledgers import CANARY, REFRESH, TASK, begun
from tests.unit.web.managers import PickyManager

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def store(catalog: Catalog) -> Iterator[ControlStore]:
    made = ControlStoreHook().get_store()
    yield made
    made.close()


@pytest.fixture
def two_lakes(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The second one is listed from the database, and read as tasks read it."""
    extra = {"warehouse": f"file://{tmp_path}/second"}
    second = {"conn_type": "rfr_lake", "host": f"sqlite:///{tmp_path}/second.db", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SECOND_LAKE", json.dumps(second))
    with second_lake():
        yield


def deliver(
    store: ControlStore,
    table: str,
    dag_id: str | None,
    sequence: int = 1,
    snapshot_id: int = 7,
    lake: str = "rfr",
    **attempt: Any,
) -> None:
    """A delivery of a commit that this DAG made, with one attempt."""
    commit = f"{sequence}-{table}"
    event = CommitEvent(
        commit_id=commit,
        target=table,
        target_name=table,
        lake=lake,
        run_id="r",
        dag_id=dag_id or "",
        snapshot_id=snapshot_id,
        sequence=sequence,
    )

    def work(connection: Any) -> None:
        row = ensure_endpoint(connection, EndpointKey(lake, table, "hook"))
        new = {"id": f"id-{commit}", "endpoint_id": row.id, "sequence": sequence, "dag_ids": {dag_id}}
        new |= {"first_commit": commit, "last_commit": commit, "snapshot_id": snapshot_id, "event": event.to_json()}
        add_deliveries(connection, store.now(connection), [new])
        values = {"delivery_id": new["id"], "number": 1, "at": store.now(connection), "milliseconds": 40, **attempt}
        connection.execute(insert(ATTEMPTS).values(**values))

    store.run(work)


def execute(store: ControlStore, statement: Any, rows: Any = None) -> None:
    store.run(lambda connection: connection.execute(statement, rows))


def test_deliveries_of_commits_of_a_hidden_dag_are_not_there(login: Login, store: ControlStore) -> None:
    deliver(store, "raw.open", "shop", outcome="failed", status=503, detail="503", answer="<b>down</b> ***")
    deliver(store, "raw.closed", "hidden_dag", outcome="delivered", status=200)
    owner, viewer = (login(name).get("/rfr/deliveries").text for name in ("owner", "viewer"))
    assert "raw.closed" in owner
    assert "raw.closed" not in viewer
    assert "&lt;b&gt;down&lt;/b&gt; ***" in viewer
    assert "id-1-raw.open" in viewer


def test_attempts_belong_to_the_dag_of_their_own_commit(login: Login, store: ControlStore) -> None:
    deliver(store, "raw.orders", "hidden_dag", outcome="failed", status=503, detail="503", answer="hidden answer")
    deliver(store, "raw.orders", "shop", sequence=2, outcome="failed", status=500, detail="500", answer="open answer")
    owner, viewer = (login(name).get("/rfr/deliveries").text for name in ("owner", "viewer"))
    assert "hidden answer" in owner
    assert "hidden answer" not in viewer
    assert "open answer" in viewer
    assert "40 ms" in viewer


@pytest.mark.parametrize(
    ("dags", "is_shown"), [((None, "shop"), True), (("hidden_dag", "shop"), False), (("shop", "hidden_dag"), False)]
)
def test_an_attempt_that_told_of_several_commits_belongs_to_all_their_dags(
    login: Login, catalog: Catalog, store: ControlStore, dags: tuple[str | None, str], is_shown: bool
) -> None:
    begun(catalog, "raw.orders", dag_id="shop").commit([], state=RefreshState.PUBLISHED, snapshot_id=7)
    for sequence, dag_id in enumerate(dags, 1):
        deliver(store, "raw.orders", dag_id, sequence, outcome="delivered", status=200)

    def claimed(connection: Any) -> Claim:
        connection.execute(delete(ATTEMPTS))
        [row] = endpoints_of_table(connection, "rfr")
        request, known = (
            ClaimRequest((row.id,), capacity=9, lease=1000, interval=1),
            endpoints_with_ids(connection, [row.id]),
        )
        return claim(connection, store.now(connection), "one", request, known, lambda *_: MergedCommits("m", "{}"))[0]

    assert store.run(claimed).delivery_id == "m"
    values = {"delivery_id": "m", "number": 1, "at": 1, "milliseconds": 1, "outcome": "failed", "answer": "of both"}
    execute(store, insert(ATTEMPTS).values(**values))
    # What was merged is forgotten before what it was merged into.
    execute(store, delete(DELIVERIES).where(DELIVERIES.c.id != "m"))
    assert "of both" in login("owner").get("/rfr/deliveries").text
    assert ("of both" in login("viewer").get("/rfr/deliveries").text) is is_shown
    assert '<td class="name">hook</td>' in login("owner").get(REFRESH).text
    assert ('<td class="name">hook</td>' in login("viewer").get(REFRESH).text) is is_shown


@pytest.mark.parametrize("dags", [("hidden_dag", "shop"), ("shop", "hidden_dag")])
def test_an_endpoint_that_was_told_of_a_hidden_dag_s_commits_is_not_there_but_the_viewer_s_attempts_are(
    login: Login, store: ControlStore, dags: tuple[str, str]
) -> None:
    for sequence, dag_id in enumerate(dags, 1):
        deliver(store, "raw.orders", dag_id, sequence, outcome="failed", status=503, detail=f"503 for {dag_id}")
    execute(store, update(DELIVERIES).values(state="dead"))
    execute(store, update(ENDPOINTS).values(disabled_at=1, disabled_reason="the reason"))
    owner, viewer = (login(name).get("/rfr/deliveries").text for name in ("owner", "viewer"))
    assert "the reason" in owner
    assert 'class="number dead"' in owner
    assert "Endpoints" not in viewer
    assert "the reason" not in viewer
    assert "No webhook that you may see was due" not in viewer
    assert "503 for shop" in viewer
    assert "503 for hidden_dag" not in viewer


def test_a_table_that_was_made_again_keeps_hidden_commits_hidden(login: Login, store: ControlStore) -> None:
    deliver(store, "raw.orders", "shop", sequence=900, outcome="delivered", status=200)
    deliver(store, "raw.orders", "hidden_dag", outcome="delivered", status=200)
    assert "Endpoints" not in login("viewer").get("/rfr/deliveries").text


def test_many_newer_attempts_of_a_hidden_dag_leave_the_viewer_s_own_attempt(login: Login, store: ControlStore) -> None:
    deliver(store, "raw.orders", "shop", outcome="failed", status=503, detail="503 for shop")
    deliver(store, "raw.closed", "hidden_dag", outcome="failed", status=503)
    many = [
        {"delivery_id": "id-1-raw.closed", "number": number, "at": 2**45, "milliseconds": 1, "outcome": "failed"}
        for number in range(2, 402)
    ]
    execute(store, insert(ATTEMPTS), many)
    assert "503 for shop" in login("viewer").get("/rfr/deliveries").text
    assert login("owner").get("/rfr/deliveries").text.count('data-label="Attempt"') == 200


@pytest.mark.parametrize("event", ["[1]", '"x"', "5", "null", "no JSON", '{"dag_id": ["a"]}', '{"dag_id": 5}'])
def test_a_delivery_whose_event_names_no_dag_hides_no_other(login: Login, store: ControlStore, event: str) -> None:
    deliver(store, "raw.odd", "shop", outcome="delivered", status=200)
    execute(store, update(DELIVERIES).values(event=event, dag_ids={None}))
    deliver(store, "raw.open", "shop", outcome="delivered", status=200)
    answer = login("owner").get("/rfr/deliveries")
    assert answer.status_code == 200
    assert "raw.odd" in answer.text
    assert "raw.open" in answer.text


def test_the_page_of_a_refresh_names_the_webhooks_of_its_own_commit_behind_many_newer_ones(
    login: Login, catalog: Catalog, store: ControlStore
) -> None:
    begun(catalog, "raw.orders", dag_id="shop").commit([], state=RefreshState.PUBLISHED, snapshot_id=7)
    deliver(store, "raw.orders", "shop", outcome="delivered", status=200)
    for number in range(2, 60):
        deliver(store, "raw.orders", "shop", number, snapshot_id=number + 7, outcome="delivered", status=200)
    text = login("viewer").get(REFRESH).text
    assert "No webhook that you may see was due" not in text
    assert text.count('<td class="name">hook</td>') == 1


@pytest.mark.parametrize(
    ("endpoint", "delivery", "state"),
    [
        ({}, {"state": "delivered"}, "ok"),
        ({}, {}, "pending"),
        ({}, {"state": "dead"}, "dead letters"),
        ({"failing": 2}, {}, "failing"),
        ({"failing": 2}, {"state": "dead"}, "dead letters"),
        ({"failing": 9, "open_until": int(time.time() + 36_000) * 1000}, {}, "circuit open"),
        ({"failing": 2, "paused_at": 1}, {}, "paused"),
        ({"paused_at": 1, "disabled_at": 1}, {"state": "dead"}, "disabled"),
    ],
)
def test_an_endpoint_s_state_says_what_is_wrong_with_it(
    login: Login, store: ControlStore, endpoint: dict[str, Any], delivery: dict[str, Any], state: str
) -> None:
    deliver(store, "raw.orders", "shop", outcome="failed")
    for table, values in ((ENDPOINTS, endpoint), (DELIVERIES, delivery)):
        if values:
            execute(store, update(table).values(**values))
    text = login("owner").get("/rfr/deliveries").text
    assert re.search(f'data-label="State"><span class="state {state}"[^>]*>{state}</span>', text)
    assert "Circuit breaker" not in text


@pytest.mark.parametrize(("catalog_name", "columns"), [("rfr", 0), ("other", 2)])
def test_connections_of_one_catalog_list_its_webhooks_once_and_several_catalogs_are_told_apart(
    login: Login, store: ControlStore, two_lakes: None, monkeypatch: pytest.MonkeyPatch, catalog_name: str, columns: int
) -> None:
    deliver(store, "raw.orders", "shop", outcome="failed", answer="down")
    deliver(store, "raw.customers", "shop", lake=catalog_name, outcome="failed", answer="down")
    known = json.loads(os.environ["AIRFLOW_CONN_SECOND_LAKE"])
    known["extra"]["catalog_name"] = catalog_name
    monkeypatch.setenv("AIRFLOW_CONN_SECOND_LAKE", json.dumps(known))
    text = login("owner").get("/rfr/deliveries").text
    assert text.count('data-label="State"') == 2
    assert [text.count(f'id="a-id-1-{table}-1"') for table in ("raw.orders", "raw.customers")] == [1, 1]
    assert text.count('<th scope="col">Lake</th>') == columns
    assert text.count('<td data-label="Lake">second_lake</td>') == columns


def test_without_the_ready_dags_the_page_has_the_command_to_replay(login: Login, store: ControlStore) -> None:
    deliver(store, "raw.orders", "shop", outcome="failed")
    execute(store, update(DELIVERIES).values(state="dead"))
    owner = login("owner")
    text = owner.get("/rfr/deliveries").text
    assert "It only queues them: they are sent when the webhooks of this endpoint are delivered next." in text
    command = "airflow rfr triggers replay --lake-conn-id rfr_lake_default --target raw.orders --trigger hook"
    assert f'<button type="button" data-copy="{command}">Copy</button>' in text
    assert "takes the ready DAG <code>manage_webhooks</code> and the right to start it" in text
    assert offered(owner, "/rfr/deliveries") == {}


@pytest.mark.parametrize(
    ("paused_at", "state", "labels"),
    [
        (None, "delivered", ["Pause", "Deliver now"]),
        (1, "pending", ["Resume", "Deliver now"]),
        (1, "dead", ["Resume", "Replay", "Deliver now"]),
    ],
)
def test_endpoints_are_paused_resumed_and_replayed_by_the_ready_dag_for_who_may_start_it(
    login: Login, store: ControlStore, tmp_path: Path, paused_at: int | None, state: str, labels: list[str]
) -> None:
    deliver(store, "raw.orders", "shop", outcome="failed")
    execute(store, update(ENDPOINTS).values(paused_at=paused_at))
    execute(store, update(DELIVERIES).values(state=state))
    owner, path = login("owner"), "/rfr/deliveries"
    with parsed(tmp_path / "dags", [ROOT / "dags" / f"{name}_webhooks.py" for name in ("deliver", "manage")]):
        buttons = offered(owner, path)
        assert list(buttons) == labels
        which = {"target": "raw.orders", "trigger": "hook", "lake_conn_id": "rfr_lake_default"}
        for label, button in buttons.items():
            assert button["body"] == ({} if label == "Deliver now" else {"action": label.lower(), **which})
            body = {"dag_run_id": f"manual__{label.split()[0]}", "logical_date": None, "conf": button["body"]}
            answer = owner.post(button["url"], json=body)
            assert answer.status_code == 200, answer.text
        assert offered(login("viewer"), path) == {}
        assert "and the right to start it" in login("viewer").get(path).text
        assert "and the right to start it" not in owner.get(path).text


@pytest.mark.parametrize(("dag", "is_ready"), [("deliver_webhooks", True), ("deliver_webhooks_eu", False)])
def test_an_endpoint_s_page_says_which_task_sends_to_it_to_who_may_see_all_dags(
    login: Login, store: ControlStore, tmp_path: Path, dag: str, is_ready: bool
) -> None:
    deliver(store, "raw.orders", "shop", outcome="failed")
    place = f"task deliver of DAG {dag} (/dags/triggers.yaml)"
    execute(store, update(ENDPOINTS).values(paused_at=1, places=json.dumps(["/elsewhere.yaml", place])))
    execute(store, update(DELIVERIES).values(state="dead"))
    owner, path = login("owner"), "/rfr/deliveries"
    with parsed(tmp_path / "dags", [ROOT / "dags" / f"{name}_webhooks.py" for name in ("deliver", "manage")]):
        buttons, text = offered(owner, path), owner.get(path).text
        assert place not in login("viewer").get(path).text
    for label, when in (("Resume", "when its"), ("Replay", "when it is resumed and its")):
        assert f"{when} webhooks are delivered next, from {place}." in buttons[label]["effect"]
    assert f"delivered next, from {place}" in text
    assert ("(<em>Deliver now</em>, below)" in text) is is_ready
    assert "its own triggers file and for all tables in rfr_lake_default" in buttons["Deliver now"]["effect"]


def test_a_deploy_is_started_from_its_page_or_its_command_is_shown(
    login: Login, store: ControlStore, tmp_path: Path
) -> None:
    owner, path = login("owner"), "/rfr/migrations"
    assert offered(owner, path) == {}
    assert "airflow rfr objects apply" in owner.get(path).text
    with parsed(tmp_path / "dags", [ROOT / "dags" / "builtin_migration.py"]):
        [deploy] = offered(owner, path).values()
        assert "The DAG builtin_migration is paused" in deploy["effect"]
        assert "makes a plan for rfr_lake_default" in deploy["effect"]
        body = {"dag_run_id": "manual__deploy", "logical_date": None, "conf": deploy["body"]}
        assert owner.post(deploy["url"], json=body).status_code == 200
        assert offered(login("viewer"), path) == {}


def test_a_command_to_copy_quotes_names(login: Login, store: ControlStore) -> None:
    deliver(store, "raw.orders; rm x", "shop", outcome="failed")
    execute(store, update(DELIVERIES).values(state="dead"))
    assert "--target &#39;raw.orders; rm x&#39; --trigger hook" in login("owner").get("/rfr/deliveries").text


def test_connections_show_users_and_alterations_without_values_to_those_who_may_read_them(
    login: Login, store: ControlStore
) -> None:
    def work(connection: Any) -> None:
        register_use(connection, 1, TaskRef("shop", "monday", "refresh"), "refresh", ["shop_api"], {})
        register_use(connection, 1, TaskRef("hidden_dag", "monday", "refresh"), "refresh", ["shop_api"], {})
        statement = f"ALTER CONNECTION shop_api SET password = '{CANARY}'"
        number = begin_alteration(connection, 1, "shop_api", "ann", statement)
        note_alteration(connection, 2, number, AlterationState.FAILED, options={"password": ["***", CANARY]})

    store.run(work)
    owner, viewer = (login(name).get("/rfr/connections").text for name in ("owner", "viewer"))
    assert "shop_api" in owner
    assert "ann" in owner
    assert "password" in owner
    assert "/dags/hidden_dag/" in owner
    assert CANARY not in owner
    assert '<span class="state failed">failed</span>' in owner, "not with the meaning of a failed refresh"
    assert "shop_api" not in viewer
    assert "ann" not in viewer


def test_endpoints_and_uses_come_in_pages(login: Login, store: ControlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PAGE_ROWS", 2)
    tables = [f"raw.t{number}" for number in range(3)]
    for table in tables:
        deliver(store, table, "shop", outcome="delivered", status=200)

    def work(connection: Any) -> None:
        for run, names in (("a", ["shop_api"]), ("b", ["lake", "shop_api"])):
            task = TaskRef("shop", run, "refresh")
            token = register_use(connection, 1, task, "refresh", names, {})
        note_copies(connection, task, token, [UsedConnection("shop_api", "shop_api", "old")])
        set_wanted_hash(connection, [task], "shop_api", "new")

    store.run(work)
    owner = login("owner")
    for page, shown in (("", tables[:2]), ("1", tables[:2]), ("2", tables[2:]), ("9", tables[2:]), ("x", tables[:2])):
        text = owner.get("/rfr/deliveries", params={"page": page}).text
        assert [
            table for table in tables if f'{table}</td><td data-label="Trigger">hook</td>\n<td data-l' in text
        ] == shown
        assert ('rel="next"' in text, 'rel="prev"' in text) == (len(shown) == 2, len(shown) == 1)
    first, second = (owner.get("/rfr/connections", params={"page": page}).text for page in "12")
    assert re.findall('<td class="name">([^<]*)</td>', first) == ["lake", "shop_api"]
    assert re.findall('<td class="name">([^<]*)</td>', second) == ["shop_api"]
    assert [text.count("/dags/shop/runs/b/") for text in (first, second)] == [1, 1]
    assert [text.count("/dags/shop/runs/a/") for text in (first, second)] == [1, 0]
    stale = re.compile(r'"Stale" class="number">(\d?)</td>')
    assert [stale.findall(text) for text in (first, second)] == [["", "1"], ["1"]], "of the whole connection"


@pytest.mark.parametrize(
    ("used", "airflow", "shown"),
    [
        ("running", "running", "running"),
        ("running", "up_for_retry", "waiting"),
        ("running", "failed", "interrupted"),
        ("failed", "up_for_retry", "waiting"),
        ("failed", "failed", "failed"),
        ("idle", "success", "idle"),
    ],
)
def test_the_state_of_a_use_is_the_one_that_its_refresh_has(
    login: Login, store: ControlStore, airflow_says: Callable[..., None], used: str, airflow: str, shown: str
) -> None:
    task = TaskRef("shop", "monday", "refresh")
    token = store.run(lambda connection: register_use(connection, 1, task, "refresh", ["shop_api"], {}))
    if used != "running":
        store.run(lambda connection: end_use(connection, 2, task, token, used, "SourceError: 503"))
    airflow_says(airflow)
    assert re.search(
        f'<div><span class="state {shown}"[^>]*>{shown}</span>', login("owner").get("/rfr/connections").text
    )


def test_a_use_has_the_state_of_its_refresh(login: Login, catalog: Catalog, store: ControlStore) -> None:
    begun(catalog, "raw.orders", **TASK).end("SourceError: 503")
    task = TaskRef("shop", "monday", "refresh")
    store.run(lambda connection: register_use(connection, 1, task, "refresh", ["shop_api"], {}))
    owner = login("owner")
    for path in ("connections", ""):
        assert re.search('<span class="state failed"[^>]*>failed</span>', owner.get(f"/rfr/{path}").text), path


@needs_teams
def test_with_teams_a_connection_that_is_gone_is_nobodys(
    login: Login, store: ControlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.run(lambda connection: begin_alteration(connection, 1, "dropped_api", "ann", "ALTER CONNECTION dropped_api"))
    assert "dropped_api" in login("owner").get("/rfr/connections").text
    monkeypatch.setattr(access, "_has_teams", lambda: True)
    assert "dropped_api" not in login("owner").get("/rfr/connections").text


def test_migrations_stay_quiet_until_a_project_has_deployed_once(
    login: Login, pages: FastAPI, catalog: Catalog, store: ControlStore, tmp_path: Path
) -> None:
    text = login("viewer").get("/rfr/migrations").text
    assert "Nothing was deployed yet" in text
    assert text.count("<li>") == 3
    assert "to add" not in text
    hook = BuiltinsHook(lake_conn_id="rfr_lake_default")
    hook.apply(hook.plan(), sql=DuckEngine(catalog, tmp_path / "views"))
    for read in pages.state.lakes._reads.values():
        read._pause = 0.0
    text = login("viewer").get("/rfr/migrations").text
    assert "rfr_system.refresh_history" in text
    assert "Nothing was deployed yet" not in text


def test_every_project_is_shown_and_other_ones_than_the_ready_dag_s_by_name(
    login: Login, pages: FastAPI, catalog: Catalog, store: ControlStore, tmp_path: Path
) -> None:
    def text() -> str:
        for read in pages.state.lakes._reads.values():
            read._pause = 0.0
        return login("owner").get("/rfr/migrations").text

    def deploy(**more: str) -> None:
        hook = BuiltinsHook(lake_conn_id="rfr_lake_default", **more)
        hook.apply(hook.plan(), sql=DuckEngine(catalog, tmp_path / "views"))

    (tmp_path / "runs.yaml").write_text("kind: table\nname: ops.runs\ncolumns: [{name: id, type: bigint}]\n")
    deploy(project="acme", objects=str(tmp_path / "runs.yaml"), version="1.0")
    only = text()
    assert "Nothing was deployed yet" not in only
    assert "Objects of the project acme at version 1.0" in only
    assert "airflow rfr objects plan --project acme" in only
    assert "Plan for " not in only
    deploy()
    both = text()
    assert re.findall("<h2>Last deploys of the project ([a-z]+)</h2>", both) == ["acme", "rfr"]
    assert "airflow rfr objects plan --project" not in both
    assert "Plan for rfr_lake_default" in both


def test_reading_migrations_again_and_again_leaves_nothing_open(catalog: Catalog, store: ControlStore) -> None:
    def open_files() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    read_in_lake("rfr_lake_default")
    before = open_files()
    for _ in range(5):
        assert read_in_lake("rfr_lake_default").plan is not None
    assert open_files() <= before


def test_declarations_that_are_not_there_hide_no_deploys(
    login: Login, store: ControlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RFR_BUILTIN_OBJECTS", "/nowhere")
    text = login("viewer").get("/rfr/migrations").text
    assert "/nowhere does not exist" in text
    assert "Nothing was deployed yet" in text


def test_a_lake_to_which_nothing_was_deployed_is_not_told_that_it_lost_everything(
    login: Login, pages: FastAPI, catalog: Catalog, store: ControlStore, two_lakes: None, tmp_path: Path
) -> None:
    before = login("owner").get("/rfr/migrations").text
    assert "What a deploy to " not in before, "nobody asked for anything yet"
    hook = BuiltinsHook(lake_conn_id="rfr_lake_default")
    hook.apply(hook.plan(), sql=DuckEngine(catalog, tmp_path / "views"))
    for read in pages.state.lakes._reads.values():
        read._pause = 0.0
    text = login("owner").get("/rfr/migrations").text
    assert text.count("None of the objects that were deployed is in this lake:") == 1
    assert "Changed by hand" not in text
    assert [text.count(words) for words in ("Plan for ", "Last deploys", 'data-label="State"')] == [1, 1, 1]


def test_who_altered_and_who_deployed_is_told_to_who_may_see_all_dags(
    login: Login, catalog: Catalog, store: ControlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alter(connection: Any) -> None:
        number = begin_alteration(
            connection, 1, "shop_api", "hidden_dag.alter (secret_run)", "ALTER CONNECTION shop_api"
        )
        note_alteration(connection, 2, number, AlterationState.APPLIED, dependents=[{"task": "hidden_dag"}])

    store.run(alter)
    monkeypatch.setattr(PickyManager, "is_authorized_connection", lambda *_args, **_values: True)
    hook = BuiltinsHook(lake_conn_id="rfr_lake_default")
    hook.apply(hook.plan(), sql=DuckEngine(catalog, tmp_path / "views"), actor="hidden_dag secret_run deploy")
    execute(store, update(DEPLOYS).values(error="secret_run failed"))
    for page, others in (("connections", "shop_api"), ("migrations", "rfr_system.refresh_history")):
        owner, viewer = (login(name).get(f"/rfr/{page}").text for name in ("owner", "viewer"))
        assert others in viewer
        assert "secret_run" in owner
        assert "secret_run" not in viewer
    assert 'data-label="Dependents" class="number">1<' in login("owner").get("/rfr/connections").text
    assert 'data-label="Dependents" class="number"><' in login("viewer").get("/rfr/connections").text


def test_a_control_store_that_is_away_is_told_as_such(
    login: Login, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away = {"conn_type": "postgres", "host": "127.0.0.1", "port": 9, "schema": "rfr", "password": CANARY}
    monkeypatch.setenv("AIRFLOW_CONN_RFR_CONTROL_STORE", json.dumps(away))
    for page, said in (
        ("deliveries", "The deliveries of rfr_lake_default can"),
        ("migrations", "The migrations of rfr_lake_default can"),
        ("migrations", "The control store can"),
        ("connections", "The control store can"),
    ):
        text = login("owner").get(f"/rfr/{page}").text
        assert said in text
        assert "No webhook that you may see was due" not in text
        assert "No connection that you may see" not in text
        assert "The lake" not in text
        assert CANARY not in text + caplog.text


def test_webhooks_that_were_read_before_the_control_store_went_away_are_shown_with_their_age(
    login: Login, pages: FastAPI, catalog: Catalog, store: ControlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(catalog, "raw.orders", dag_id="shop").commit([], state=RefreshState.PUBLISHED, snapshot_id=7)
    deliver(store, "raw.orders", "shop", outcome="delivered", status=200)
    assert "As of" not in login("owner").get(REFRESH).text

    def away() -> None:
        raise ConfigurationError("control store", "is away")

    monkeypatch.setattr(store_pages, "control_store", away)
    for read in pages.state.lakes._reads.values():
        read._pause, read._read_at = 0.0, read._read_at - 70.0
    text = login("owner").get(REFRESH).text
    assert "The control store can&#39;t be read now: control store: is away" in text
    assert re.search(r"What is shown is 7\d s old\.", text)
    assert '<td class="name">hook</td>' in text


def test_another_file_in_the_place_of_the_control_store_is_read(
    login: Login, pages: FastAPI, store: ControlStore, tmp_path: Path
) -> None:
    deliver(store, "raw.before", "shop", outcome="delivered", status=200)
    assert "raw.before" in login("owner").get("/rfr/deliveries").text
    other = open_store(f"sqlite:///{tmp_path}/other.db")
    deliver(other, "raw.after", "shop", outcome="delivered", status=200)
    for opened in (store, other):
        opened.close()
    # With its journal, which SQLite would take for the other file's.
    for file in tmp_path.glob("control.db*"):
        file.unlink()
    (tmp_path / "other.db").rename(tmp_path / "control.db")
    for read in pages.state.lakes._reads.values():
        read._pause = 0.0
    text = login("owner").get("/rfr/deliveries").text
    assert ("raw.before" in text, "raw.after" in text) == (False, True)


def test_reading_makes_no_control_store(login: Login, catalog: Catalog) -> None:
    for page in ("deliveries", "migrations", "connections"):
        assert login("owner").get(f"/rfr/{page}").status_code == 200
    assert "Nothing was deployed yet" in login("owner").get("/rfr/migrations").text
    assert not ControlStoreHook().is_there()


def test_reading_makes_no_tables_in_an_empty_database(login: Login, catalog: Catalog) -> None:
    file = Path(str(ControlStoreHook().url.database))
    file.touch()
    for page in ("deliveries", "migrations", "connections"):
        assert login("owner").get(f"/rfr/{page}").status_code == 200
    with sqlite3.connect(file) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    ControlStoreHook().get_store().close()
    assert control_store() is not None
