"""Views over a table that changes: readers never see an error. Real Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.builtins import Policies
from airflow_provider_rfr.builtins.deploy import apply
from airflow_provider_rfr.builtins.maintenance import observe
from airflow_provider_rfr.builtins.model import CatalogSpec
from airflow_provider_rfr.builtins.planner import plan
from airflow_provider_rfr.lake.catalog import open_catalog
from airflow_provider_rfr.lake.migrated_table import MigratedTable
from airflow_provider_rfr.store.engine import open_store
from tests.integration.builtin_sql_deploy import Deploy
from tests.kill_points import intercept
from tests.unit.builtins.catalogs import PROJECT, spec, table, view

VIEWS = (
    view("ops.star", "SELECT * FROM ops.orders"),
    view("ops.big", "SELECT id, amount FROM ops.orders WHERE amount > 1", comment="Large ones"),
    view("ops.total", "SELECT city, sum(amount) AS amount, max(rate) AS rate FROM ops.big_cities GROUP BY city"),
    view("ops.big_cities", "SELECT amount, rate, city FROM ops.star WHERE city <> 'x'"),
)
BEFORE = spec("1.0", table("ops.orders", "id int", "amount int", "rate float", "city string"), *VIEWS)
SAFE = spec(
    "1.1",
    table(
        "ops.orders",
        "id bigint",
        "amount bigint",
        "note string",
        "rate double",
        "city string",
        comment="One row an order",
        properties={"team": "shop"},
    ),
    *VIEWS,
)
USERS = {
    "bob.everything": "SELECT * FROM ops.orders",
    "bob.sums": "SELECT sum(amount) AS total FROM ops.orders",
    "bob.over": "SELECT o.amount + 1 AS more, b.city FROM ops.big o JOIN ops.orders b ON o.id = b.id",
}
READ = [*(view.name for view in VIEWS), *USERS]


class Lake:
    """A lake with a control store, and readers of its views."""

    def __init__(self, folder: Path) -> None:
        self.deploy = Deploy(folder)
        self.store = open_store(f"sqlite:///{folder}/control.db")
        self.catalog = open_catalog(self.deploy.lake)
        self.reader = self.deploy.session.newSession()
        for name, value in self.deploy.session.sql("SET").collect():
            if name.startswith("spark.sql.catalog."):
                self.reader.conf.set(name, value)

    def release(self, wanted: CatalogSpec, **policies: Any) -> None:
        recorded, live = observe(self.catalog, self.store, project=PROJECT)
        migration = plan(wanted, recorded, live, policies=Policies(**policies))
        assert migration.applicable, (migration.blocked, migration.drift)
        apply(
            migration,
            catalog=self.catalog,
            store=self.store,
            spec=wanted,
            sql=self.deploy.engine,
            lease_seconds=0.5,
            patience=30,
        )

    def contents(self) -> dict[str, Any]:
        answers = {}
        for name in READ:
            rows = self.reader.sql(f"SELECT * FROM rfr.{name}")
            answers[name] = (rows.columns, sorted(map(str, rows.collect())))
        return answers


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path)
    lake.release(BEFORE)
    lake.deploy.sql("INSERT INTO ops.orders VALUES (1, 5, 1.5, 'a'), (2, 7, 2.5, 'b'), (3, 0, 0.5, 'x')")
    for name, query in USERS.items():
        lake.deploy.view(name, query, properties={})
    return lake


def test_a_safe_release_is_never_felt_by_a_reader(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    before, seen = lake.contents(), []

    def look(where: str) -> Callable[..., None]:
        return lambda *args, **kwargs: seen.append((where, lake.contents() == before))

    views = ("create_view", "rename_view", "drop_view", "set_view_properties")
    effects = [(lake.deploy.engine, name) for name in views]
    effects += [(MigratedTable, name) for name in ("alter", "rename", "replace_rows")]
    with monkeypatch.context() as patch:
        for owner, name in effects:
            intercept(owner, name, before=look(f"before {name}"), after=look(f"after {name}"), put=patch.setattr)
        lake.release(SAFE)
    assert len(seen) > 10
    assert [where for where, same in seen if not same] == []
    assert lake.contents() == before
    recorded, live = observe(lake.catalog, lake.store, project=PROJECT)
    again = plan(SAFE, recorded, live)
    assert (again.steps, again.drift, again.warnings) == ((), (), ())
    assert not any(view.bridged for view in live.user_views)
    types = {row[0]: row[1] for row in lake.reader.sql("DESCRIBE rfr.ops.big").collect()}
    assert types == {"id": "bigint", "amount": "bigint"}


def test_an_error_in_a_new_text_is_met_before_anything_is_touched(lake: Lake) -> None:
    before = lake.catalog.load_table("ops.orders").metadata_location
    bad = view("ops.bad", "SELECT id, no_such_function(amount) AS n FROM ops.orders")
    with pytest.raises(Exception, match=r"no_such_function.*nothing was done"):
        lake.release(spec("1.2", *SAFE.objects, bad))
    assert lake.catalog.load_table("ops.orders").metadata_location == before
    assert lake.contents()["ops.big"][0] == ["id", "amount"]
