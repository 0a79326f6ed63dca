"""The store of a table's files, as tasks take it along."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

from airflow_provider_rfr.lake.files import FileStore


def test_a_store_has_the_credentials_of_the_files_and_nothing_of_the_catalogs_login() -> None:
    files = {"s3.access-key-id": "ASIA", "s3.session-token": "t", "client.region": "r", "adls.token": "a"}
    login: dict[str, Any] = {
        "uri": "postgresql://me:canary@db/lake",
        "credential": "id:canary",
        "token": "canary",
        "auth": {"type": "oauth2", "oauth2": {"client_secret": "canary"}},
        # PyIceberg's REST catalog adds its client, which can't be pickled.
        "auth.manager": lambda: "canary",
        "header.Authorization": "canary",
    }
    io: Any = SimpleNamespace(properties={**files, **login})
    store = FileStore.of(io)
    assert dict(store.properties) == files
    assert pickle.loads(pickle.dumps(store)) == store
