"""The application that Airflow's API server mounts under ``/rfr``: its files, and pages for logged-in users.

Only the API server imports this package, by ``plugin.py``. The pages show refreshes, deliveries, migrations and
connections; they only read, and whatever changes something is a DAG's run.

Templates escape everything, and headers let pages load nothing from outside. The list of refreshes is made for each
viewer, with filters, permissions and order.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from fastapi import APIRouter, FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException as StarletteHTTPException

from airflow_provider_rfr import __version__
from airflow_provider_rfr.compat import AIRFLOW_V_3_2_PLUS
from airflow_provider_rfr.web import display
from airflow_provider_rfr.web.access import Viewer, ViewerDep
from airflow_provider_rfr.web.lakes import LakeRefresh, Lakes, prepare
from airflow_provider_rfr.web.store_pages import (
    PLAN_SECONDS,
    Connections,
    Webhooks,
    read_connections,
    read_in_lake,
    read_project,
    read_webhooks,
)

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from airflow_provider_rfr.refresh.state import PastGeneration

PREFIX: Final = "/rfr"
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'self'"
)
_HEADERS: Final = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class Guarded(FastAPI):
    """An application that adds the headers to every response, also to those of unexpected errors.

    A middleware would not see the latter, because it is called within the handler of these errors.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_HEADERS]
            await send(message)

        await super().__call__(scope, receive, send_with_headers)


@cache
def _templates() -> Environment:
    folder = Path(__file__).parent / "templates"
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= display.FILTERS
    environment.globals["version"] = __version__
    environment.globals["airflow_can_trigger_again"] = AIRFLOW_V_3_2_PLUS
    return environment


def page(request: Request, template: str, status_code: int = 200, **values: Any) -> HTMLResponse:
    """Render the template as a response."""
    text = _templates().get_template(template).render(addresses=addresses_of(request), **values)
    return HTMLResponse(text, status_code)


def addresses_of(request: Request) -> Addresses:
    own = str(request.scope.get("root_path", "")).rstrip("/")
    return Addresses(own.removesuffix(PREFIX), own)


class Addresses:
    """Addresses of these pages and of Airflow's own, below the path that Airflow is served at."""

    def __init__(self, airflow: str, own: str) -> None:
        self._airflow = airflow
        self._own = own

    def own(self, path: str = "", **query: str | None) -> str:
        parameters = {name: value for name, value in query.items() if value}
        return f"{self._own}/{path}" + (f"?{urlencode(parameters)}" if parameters else "")

    def login(self, request: Request) -> str:
        """Return Airflow's own way to log in, and back to the page that was asked for."""
        asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return f"{self._airflow}/api/v2/auth/login?{urlencode({'next': asked})}"

    def dag(self, dag_id: str) -> str:
        """Return the address of the DAG's page, which has the button that opens the form for a run."""
        return f"{self._airflow}/dags/{quote(dag_id, safe='')}"

    def run(self, dag_id: str, run_id: str) -> str:
        return f"{self.dag(dag_id)}/runs/{quote(run_id, safe='')}"

    def task(self, dag_id: str, run_id: str, task_id: str, map_index: int | None = None) -> str:
        mapped = f"/mapped/{map_index}" if map_index is not None and map_index >= 0 else ""
        return f"{self.run(dag_id, run_id)}/tasks/{quote(task_id, safe='')}{mapped}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshFilter:
    """A viewer's filter; empty text does not restrict it.

    :ivar q: part of the name of a table, DAG or run, of the part's filter, or of the error
    :ivar dag_id: only what runs of this DAG did; ``run_id``, ``task_id`` and ``map_index`` likewise
    """

    q: str = ""
    state: str = ""
    dag_id: str = ""
    run_id: str = ""
    task_id: str = ""
    map_index: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> RefreshFilter:
        """Return the filter in an address's query; unknown parameters are ignored."""
        return cls(**{field.name: query[field.name] for field in fields(cls) if field.name in query})

    @property
    def is_of_a_task(self) -> bool:
        return bool(self.dag_id and self.run_id and self.task_id)

    @property
    def scope(self) -> dict[str, str]:
        """Return the parameters that stay while text and state are changed."""
        names = ("dag_id", "run_id", "task_id", "map_index")
        return {name: getattr(self, name) for name in names if getattr(self, name)}

    def is_in_scope(self, refresh: LakeRefresh, viewer: Viewer) -> bool:
        """Tell whether the refresh concerns the DAG, run or task, now or in a generation that the viewer may see."""
        if not self.scope:
            return True
        # Airflow's frame leaves the placeholder as it is where a task is not mapped.
        index = int(self.map_index) if re.fullmatch("[0-9]{1,9}", self.map_index) else -1
        return any(
            self.dag_id in ("", generation.dag_id)
            and self.run_id in ("", generation.dag_run_id)
            and self.task_id in ("", generation.task_id)
            and (not self.task_id or generation.map_index in (None, index))
            for generation in _history_for(refresh, viewer)
        )

    def is_matched(self, refresh: LakeRefresh) -> bool:
        header = refresh.status.header
        texts = [refresh.status.table, refresh.status.sentence, refresh.lake]
        if header is not None:
            texts += filter(None, (header.replace_where, header.dag_id, header.dag_run_id, header.task_id))
        return self.q.casefold() in "\n".join(texts).casefold()


@dataclass(frozen=True, slots=True)
class RefreshList:
    """The list of refreshes for one viewer.

    :ivar states: all that there may be, to choose from
    :ivar counts: of the refreshes in each state, before a state is chosen
    """

    refreshes: tuple[LakeRefresh, ...]
    states: tuple[str, ...]
    counts: Mapping[str, int]
    total: int


def _dag_of(refresh: LakeRefresh) -> str | None:
    return None if refresh.status.header is None else refresh.status.header.dag_id


def _listed(refreshes: Sequence[LakeRefresh], query: RefreshFilter, viewer: Viewer) -> RefreshList:
    """Return the requested refreshes; failed and stuck ones come first."""
    from airflow_provider_rfr.refresh.state import State

    order = {state: place for place, state in enumerate(State)}
    rows = [refresh for refresh in refreshes if query.is_in_scope(refresh, viewer) and query.is_matched(refresh)]
    rows.sort(key=lambda row: (order[row.status.state], row.status.table, row.status.ledger, row.lake))
    counts = Counter(row.status.state.value for row in rows)
    shown = tuple(row for row in rows if query.state in ("", row.status.state.value))
    names = tuple(state.value for state in State)
    return RefreshList(
        shown, names, {state.value: counts[state.value] for state in State if counts[state.value]}, len(rows)
    )


def _history_for(refresh: LakeRefresh, viewer: Viewer) -> tuple[PastGeneration, ...]:
    """Return the generations, the newest first; those that the viewer may not see have only figures."""
    hidden = {"dag_id": None, "dag_run_id": None, "task_id": None, "map_index": None, "error": None}
    return tuple(
        generation if viewer.sees(generation.dag_id) else replace(generation, **hidden)  # type: ignore[arg-type]
        for generation in refresh.status.history
    )


_STATIC: Final = Path(__file__).parent / "static"
_FILES: Final = {"rfr.css": "text/css", "rfr.js": "text/javascript"}
_NO_REFRESH: Final = "There is no such refresh, or you may not see it."
_routes: Final = APIRouter()


def make_app() -> FastAPI:
    """Return the application, without FastAPI's pages of API documentation: it has no API for other programs."""
    app = Guarded(
        title="Resumable full refresh",
        openapi_url=None,
        lifespan=_lifespan,
        exception_handlers={StarletteHTTPException: _explained, RequestValidationError: _incomplete},
    )
    app.state.lakes = Lakes()
    app.include_router(_routes)
    return app


@asynccontextmanager
async def _lifespan(_app: FastAPI) -> AsyncIterator[None]:
    prepare()
    yield


async def _explained(request: Request, error: Any) -> Response:
    """Return an error as a page, because it is shown in a frame."""
    is_stranger = error.status_code == 401
    answer = page(
        request,
        "error.html",
        error.status_code,
        message="You are not logged in to Airflow." if is_stranger else str(error.detail),
        is_passing=error.status_code == 503,
        login=addresses_of(request).login(request) if is_stranger else "",
    )
    answer.headers.update(error.headers or {})
    return answer


async def _incomplete(request: Request, _error: Any) -> Response:
    return page(request, "error.html", 422, message="This address is not complete.", is_passing=False, login="")


@_routes.get("/", response_class=HTMLResponse)
async def _refreshes(request: Request, viewer: ViewerDep) -> Response:
    snapshot = await request.app.state.lakes.snapshot()

    def answer() -> Response:
        query = RefreshFilter.of(request.query_params)
        # By the DAG of the newest run; without a run, as tables.
        viewer.learn({_dag_of(refresh) for refresh in snapshot.refreshes})
        visible = [refresh for refresh in snapshot.refreshes if viewer.sees(_dag_of(refresh))]
        listed = _listed(visible, query, viewer)
        if query.is_of_a_task and len(listed.refreshes) == 1:
            [only] = listed.refreshes
            address = addresses_of(request).own(
                "refresh", lake=only.lake, ledger=only.status.ledger, run_id=query.run_id
            )
            return RedirectResponse(address, 303)
        return page(
            request,
            "refreshes.html",
            problems=viewer.sentences_of(snapshot.problems),
            listed=listed,
            query=query,
            has_several_lakes=len({refresh.lake for refresh in visible}) > 1,
        )

    return await run_in_threadpool(answer)


@_routes.get("/refresh", response_class=HTMLResponse)
async def _refresh(request: Request, viewer: ViewerDep, lake: str, ledger: str, run_id: str = "") -> Response:
    lakes: Lakes = request.app.state.lakes
    snapshot = await lakes.snapshot()
    refresh = next(
        (refresh for refresh in snapshot.refreshes if (refresh.lake, refresh.status.ledger) == (lake, ledger)), None
    )
    if refresh is None or not await run_in_threadpool(viewer.sees, _dag_of(refresh)):
        # The problem first: a catalog that is away, or that is being read for the first time, has no refreshes.
        problems = await run_in_threadpool(viewer.sentences_of, snapshot.problems)
        raise HTTPException(503 if problems else 404, " ".join([*problems, _NO_REFRESH]))
    details, deliveries = await asyncio.gather(lakes.details(refresh), lakes.webhooks(refresh))

    def answer() -> Response:
        history, dag_id = _history_for(refresh, viewer), _dag_of(refresh)
        return page(
            request,
            "refresh.html",
            problems=viewer.sentences_of(snapshot.problems),
            refresh=refresh,
            history=history,
            bars=display.generations(history),
            other_run=run_id if refresh.status.header and run_id != refresh.status.header.dag_run_id else "",
            details=details,
            details_problem=viewer.sentences_of(details.problems_with("The pages in the ledger")),
            deliveries_problem=viewer.sentences_of(deliveries.problems_with("The control store")),
            curve=None if details.value is None else display.pages_over_time(details.value),
            deliveries=tuple(
                delivery for delivery in deliveries.value or () if all(map(viewer.sees, delivery.dag_ids))
            ),
            may_trigger=dag_id is not None and viewer.may_trigger(dag_id),
        )

    return await run_in_threadpool(answer)


@_routes.get("/deliveries", response_class=HTMLResponse)
async def _deliveries(request: Request, viewer: ViewerDep) -> Response:
    by_lake, problems = await request.app.state.lakes.each_lake("deliveries", read_webhooks)

    def answer() -> Response:
        webhooks = Webhooks.of_lakes([lake_webhooks.seen_by(viewer) for _, lake_webhooks in by_lake])
        may_deliver = viewer.may_trigger("deliver_webhooks")
        return page(
            request,
            "deliveries.html",
            problems=viewer.sentences_of(problems),
            webhooks=webhooks,
            may_deliver=may_deliver,
            has_several_lakes=len(webhooks.lakes) > 1,
        )

    return await run_in_threadpool(answer)


@_routes.get("/migrations", response_class=HTMLResponse)
async def _migrations(request: Request, viewer: ViewerDep) -> Response:
    lakes: Lakes = request.app.state.lakes
    project, (by_lake, problems) = await asyncio.gather(
        lakes.shared(("project",), read_project, 2.0), lakes.each_lake("migrations", read_in_lake, PLAN_SECONDS)
    )

    def answer() -> Response:
        allowed = viewer.reads_assets
        all_problems = [*project.problems_with("The control store"), *problems]
        return page(
            request,
            "migrations.html",
            is_allowed=allowed,
            project=project.value if allowed else None,
            has_store=project.value is not None or project.problem is not None,
            lakes=by_lake if allowed else [],
            sees_all_dags=viewer.sees_all_dags,
            problems=viewer.sentences_of(all_problems) if allowed else (),
            may_deploy=viewer.may_trigger("builtin_migration"),
        )

    return await run_in_threadpool(answer)


@_routes.get("/connections", response_class=HTMLResponse)
async def _connections(request: Request, viewer: ViewerDep) -> Response:
    latest = await request.app.state.lakes.shared(("connections",), read_connections, 2.0)

    def answer() -> Response:
        connections, alterations = (latest.value or Connections()).seen_by(viewer)
        return page(
            request,
            "connections.html",
            problems=viewer.sentences_of(latest.problems_with("The control store")),
            connections=connections,
            alterations=alterations,
            sees_all_dags=viewer.sees_all_dags,
            may_alter=viewer.may_trigger("alter_connection"),
        )

    return await run_in_threadpool(answer)


@_routes.get("/static/{name}")
async def _file(name: str) -> Response:
    """Send a file that holds nothing of this installation: the page for those who are not logged in needs it too."""
    if name not in _FILES:
        raise HTTPException(404, "There is no such file.")
    return FileResponse(_STATIC / name, media_type=_FILES[name])
