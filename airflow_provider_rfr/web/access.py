"""Permissions of viewers: Airflow's auth manager is asked for each request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, NamedTuple

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import (
    AssetDetails,
    ConnectionDetails,
    DagAccessEntity,
    DagDetails,
)
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.configuration import conf
from airflow.models.asset import AssetModel
from airflow.models.connection import Connection
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from fastapi import Depends
from sqlalchemy import select

from airflow_provider_rfr.compat import AIRFLOW_V_3_2_PLUS
from airflow_provider_rfr.store.engine import in_chunks


class FailedRead(NamedTuple):
    """A read of a lake or the control store that failed, in sentences for viewers.

    :ivar reason: a sentence, which may name hosts
    :ivar shown: a sentence about the values that are shown in its place
    :ivar lake: id of the lake's connection; empty where the read concerns all of them
    """

    reason: str
    shown: str
    lake: str = ""


class Viewer:
    """The user of one request. Asks Airflow's database, so it is used in threads and not in the server's loop."""

    def __init__(self, user: Any) -> None:
        self._user = user
        self._manager: Any = get_auth_manager()
        self._dags: dict[str, bool] = {}
        self._changes: dict[tuple[str, DagAccessEntity], bool] = {}

    @cached_property
    def reads_assets(self) -> bool:
        """Tell whether the user may read assets, and so sees items that belong to no DAG: tables are assets."""
        return bool(self._manager.is_authorized_asset(method="GET", user=self._user))

    def reads_asset(self, uri: str) -> bool:
        """Tell whether the asset exists and the user may read this very asset, not only assets in general.

        Nobody may read an asset that does not exist: by another connection to the same catalog, the table may be an
        asset that this user may not read.
        """
        with create_session() as session:
            asset_id = session.scalar(select(AssetModel.id).where(AssetModel.uri == uri))
        if asset_id is None or not self.reads_assets:
            return False
        details = AssetDetails(id=str(asset_id))
        return bool(self._manager.is_authorized_asset(method="GET", details=details, user=self._user))

    @cached_property
    def sees_all_dags(self) -> bool:
        """Tell whether the user may see all DAGs, and so items that may name any DAG, such as the actor of a change."""
        # Managers with rights for single DAGs check the right to all DAGs only if no entity is given.
        entities = (None, DagAccessEntity.RUN)
        return not _has_teams() and all(
            self._manager.is_authorized_dag(method="GET", access_entity=entity, user=self._user) for entity in entities
        )

    def sentences_of(self, problems: Sequence[FailedRead]) -> tuple[str, ...]:
        """Return sentences about failed reads and the values that are shown in their place.

        Only users who may read assets get the reasons, which may name hosts.
        """
        hidden = "Not everything can be read now; only users who may see assets are told why."
        return tuple(
            dict.fromkeys(f"{problem.reason if self.reads_assets else hidden} {problem.shown}" for problem in problems)
        )

    def sees(self, dag_id: str | None) -> bool:
        """Tell whether a row that belongs to this DAG is shown; None stands for a row that belongs to no DAG."""
        if dag_id is None:
            return self.reads_assets
        self.learn([dag_id])
        return self._dags[dag_id]

    def learn(self, dag_ids: Iterable[str | None]) -> None:
        """Look up the rights to many DAGs at once, so that :meth:`sees` need not ask for each."""
        new = sorted({dag_id for dag_id in dag_ids if dag_id is not None} - self._dags.keys())
        has_teams = bool(new) and _has_teams()
        teams: dict[str, str | None] = {}
        # The team of a DAG that is gone is not known, so with teams nobody may see it.
        known = set() if has_teams else set(new)
        for chunk in in_chunks(new) if has_teams else ():
            teams |= DagModel.get_dag_id_to_team_name_mapping(chunk)
            with create_session() as session:
                known.update(session.scalars(select(DagModel.dag_id).where(DagModel.dag_id.in_(chunk))))
        for dag_id in new:
            self._dags[dag_id] = dag_id in known and self._may("GET", dag_id, teams)

    def may_trigger(self, dag_id: str) -> bool:
        """Tell whether the DAG exists and the user may start runs of it."""
        return self._may_change("POST", dag_id, DagAccessEntity.RUN)

    def may_change_tasks(self, dag_id: str) -> bool:
        """Tell whether the DAG exists and the user may mark and clear its tasks."""
        return self._may_change("PUT", dag_id, DagAccessEntity.TASK_INSTANCE)

    def _may_change(self, method: str, dag_id: str, entity: DagAccessEntity) -> bool:
        # Several parts of a page depend on the same right, and a manager may ask a server of its own for it.
        if (known := self._changes.get((dag_id, entity))) is not None:
            return known
        teams = DagModel.get_dag_id_to_team_name_mapping([dag_id]) if _has_teams() else {}
        may = DagModel.get_dagmodel(dag_id) is not None and self._may(method, dag_id, teams, entity)
        self._changes[dag_id, entity] = may
        return may

    def _may(
        self,
        method: str,
        dag_id: str,
        teams: Mapping[str, str | None],
        entity: DagAccessEntity = DagAccessEntity.RUN,
    ) -> bool:
        details = DagDetails(id=dag_id, team_name=teams.get(dag_id))
        return bool(
            self._manager.is_authorized_dag(method=method, access_entity=entity, details=details, user=self._user)
        )

    def connections(self, conn_ids: Iterable[str]) -> frozenset[str]:
        """Return those of the connections that the user may read."""
        wanted = sorted(set(conn_ids))
        teams: dict[str, str | None] = {}
        if wanted and _has_teams():
            teams = Connection.get_conn_id_to_team_name_mapping(wanted)
            # The team of a connection that is gone is not known, so nobody may read it.
            wanted = [conn_id for conn_id in wanted if conn_id in teams]

        def is_readable(conn_id: str) -> bool:
            details = ConnectionDetails(conn_id=conn_id, team_name=teams.get(conn_id))
            return bool(self._manager.is_authorized_connection(method="GET", details=details, user=self._user))

        return frozenset(filter(is_readable, wanted))


def _has_teams() -> bool:
    return AIRFLOW_V_3_2_PLUS and bool(conf.getboolean("core", "multi_team"))


# A function, since FastAPI of Airflow 3.1 does not evaluate the annotations of a class.
def _viewer(user: GetUserDep) -> Viewer:
    return Viewer(user)


ViewerDep = Annotated[Viewer, Depends(_viewer)]
"""Dependency of routes: the user of the request. A request without a login gets 401."""
