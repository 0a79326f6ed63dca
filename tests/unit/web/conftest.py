"""Airflow's own application with the plugin in it, its auth manager, and people who are logged in."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from airflow.api.common.delete_dag import delete_dag
from airflow.models.asset import AssetModel
from airflow.models.connection import Connection
from airflow.models.dagbundle import DagBundleModel
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pyiceberg.catalog import Catalog
from sqlalchemy import delete

from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.web import lakes
from airflow_provider_rfr.web.lakes import Lakes
from tests.airflow_versions import DagBag, forget_plugins, sync_bag_to_db
from tests.soon import PATIENCE

Login = Callable[[str], TestClient]


@pytest.fixture(scope="module")
def application() -> Iterator[FastAPI]:
    """Airflow's API server with a database, and people who have to log in."""
    from airflow.api_fastapi.app import create_app, purge_cached_app
    from airflow.utils.db import initdb

    initdb()
    with pytest.MonkeyPatch.context() as patch:
        # As Airflow's own entry point has it: else no connection of the database is found.
        patch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "False")
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "owner:admin,viewer:viewer")
        patch.setenv("AIRFLOW__CORE__AUTH_MANAGER", "tests.unit.web.managers.PickyManager")
        purge_cached_app()
        forget_plugins()
        yield create_app(apps="core")
    purge_cached_app()
    forget_plugins()


@pytest.fixture
def pages(application: FastAPI, monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    """The application that the plugin mounts, which knows nothing yet, and waits as long as this machine takes."""
    found = next(route.app for route in application.routes if getattr(route, "path", "") == "/rfr")
    monkeypatch.setitem(found.state._state, "lakes", Lakes())
    monkeypatch.setattr(lakes, "_LONG_WAIT_SECONDS", PATIENCE)
    monkeypatch.setattr(lakes, "_WAIT_SECONDS", PATIENCE)
    return found


@pytest.fixture
def login(application: FastAPI, pages: FastAPI) -> Login:
    """A client of the real application for ``owner``, ``viewer``, or anybody who is not logged in (empty name)."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    def client(name: str) -> TestClient:
        found = TestClient(application, base_url="http://localhost", follow_redirects=False)
        if name:
            user = SimpleAuthManagerUser(username=name, role={"owner": "ADMIN", "viewer": "VIEWER"}[name])
            found.headers["Authorization"] = f"Bearer {get_auth_manager().generate_jwt(user)}"
        return found

    return client


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """The lake of the connection that operators use by default."""
    uri, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/warehouse"
    connection = {"conn_type": "rfr_lake", "host": uri, "extra": {"warehouse": warehouse}}
    monkeypatch.setenv("AIRFLOW_CONN_RFR_LAKE_DEFAULT", json.dumps(connection))
    store = {"conn_type": "sqlite", "host": f"{tmp_path}/control.db"}
    monkeypatch.setenv("AIRFLOW_CONN_RFR_CONTROL_STORE", json.dumps(store))
    return open_catalog(LakeSettings("rfr", {"type": "sql", "uri": uri, "warehouse": warehouse}))


@contextmanager
def second_lake(**fields: Any) -> Iterator[None]:
    """A lake of Airflow's database beside the default one."""
    with create_session() as session:
        session.add(Connection(conn_id="second_lake", conn_type="rfr_lake", **fields))
    try:
        yield
    finally:
        with create_session() as session:
            session.execute(delete(Connection).where(Connection.conn_id == "second_lake"))


@contextmanager
def assets(*uris: str) -> Iterator[dict[str, str]]:
    """Have these assets in Airflow's database; their ids by their URIs."""
    with create_session() as session:
        rows = [AssetModel(name=uri, uri=uri, group="asset") for uri in uris]
        session.add_all(rows)
        session.flush()
        ids = {row.uri: str(row.id) for row in rows}
    try:
        yield ids
    finally:
        with create_session() as session:
            session.execute(delete(AssetModel).where(AssetModel.uri.in_(uris)))


@contextmanager
def parsed(folder: Path, files: Iterable[Path]) -> Iterator[None]:
    """Have the DAGs of these files in Airflow's database, as its DAG processor writes them."""
    folder.mkdir()
    for file in files:
        (folder / file.name).symlink_to(file)
    bag = DagBag(str(folder), bundle_path=folder, bundle_name="dags-folder")
    assert not bag.import_errors
    with create_session() as session:
        session.merge(DagBundleModel(name="dags-folder"))
    sync_bag_to_db(bag, "dags-folder", None)
    try:
        yield
    finally:
        with create_session() as session:
            session.execute(delete(TaskInstance))
        for dag_id in bag.dags:
            delete_dag(dag_id)


def offered(client: TestClient, path: str) -> dict[str, dict[str, Any]]:
    """Return the requests of the buttons of a page, by their labels, as ``actions.js`` reads them."""
    found = re.findall(r'data-request="([^"]+)">([^<]+)</button>', client.get(path).text)
    return {label: json.loads(html.unescape(text)) for text, label in found}
