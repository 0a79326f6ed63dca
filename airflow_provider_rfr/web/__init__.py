"""The application that Airflow's API server mounts under ``/rfr``: its files, and pages for logged-in users.

Only the API server imports this package, by ``plugin.py``. The pages show refreshes, deliveries, migrations and
connections, and this server only reads: whatever changes something is a request of the viewer's browser to Airflow.

Templates escape everything, and headers let pages load nothing from outside.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.lake import shows_rows, table_asset
from airflow_provider_rfr.hooks.task_states import schedule_of
from airflow_provider_rfr.web import charts, display, terms
from airflow_provider_rfr.web.access import ViewerDep
from airflow_provider_rfr.web.actions import (
    ONCE,
    PageAction,
    actions_on,
    actions_on_endpoint,
    deliver,
    deploy,
    start_of,
)
from airflow_provider_rfr.web.lakes import Lakes, prepare
from airflow_provider_rfr.web.listing import ListPage, RefreshFilter, attempts_for, dag_of, history_for, list_for
from airflow_provider_rfr.web.store_pages import (
    PLAN_SECONDS,
    Connections,
    ConnectionUses,
    Webhooks,
    read_connections,
    read_in_lake,
    read_projects,
    read_webhooks,
)

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from airflow_provider_rfr.lake.sample import TableSample
    from airflow_provider_rfr.web.access import Viewer
    from airflow_provider_rfr.web.lakes import LakeRefresh, Latest, Snapshot

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
    environment.globals |= {
        "version": __version__,
        "once": json.dumps(ONCE),
        "airflow_can_trigger_again": AIRFLOW_V_3_2_PLUS,
        "charts": charts,
        "explain": terms.explain,
        "explain_state": terms.explain_state,
    }
    return environment


def page(request: Request, template: str, status_code: int = 200, **values: Any) -> HTMLResponse:
    """Render the template as a response; in a DAG's tab, ``of_dag`` is the DAG's id."""
    values |= {"addresses": addresses_of(request), "of_dag": request.query_params.get("dag_id", "")}
    text = _templates().get_template(template).render(values)
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
        """Return the address of Airflow's login, which leads back to the requested page."""
        asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return f"{self._airflow}/api/v2/auth/login?{urlencode({'next': asked})}"

    def api(self, *parts: str) -> str:
        """Return an address of Airflow's REST API."""
        return "/".join([f"{self._airflow}/api/v2", *(quote(part, safe="") for part in parts)])

    def request(self, action: PageAction) -> str:
        """Return the action for ``actions.js``, as JSON."""
        return json.dumps(
            {
                "effect": action.effect,
                "done": action.done,
                "method": action.method,
                "url": self.api(*action.path),
                "body": action.body,
                "isNewRun": action.is_new_run,
                "settings": self.api(*action.settings_of) if action.settings_of else None,
                "runs": f"{self.dag(action.path[1])}/runs/",
            }
        )

    def dag(self, dag_id: str) -> str:
        """Return the address of the DAG's page, which has the button that opens the form for a run."""
        return f"{self._airflow}/dags/{quote(dag_id, safe='')}"

    def run(self, dag_id: str, run_id: str) -> str:
        return f"{self.dag(dag_id)}/runs/{quote(run_id, safe='')}"

    def task(
        self, dag_id: str, run_id: str, task_id: str, map_index: int | None = None, try_number: int | None = None
    ) -> str:
        """Return the address of the task's page, which begins with the log of a try, the last one by default."""
        mapped = f"/mapped/{map_index}" if map_index is not None and map_index >= 0 else ""
        tried = f"?try_number={try_number}" if try_number is not None else ""
        return f"{self.run(dag_id, run_id)}/tasks/{quote(task_id, safe='')}{mapped}{tried}"


_STATIC: Final = Path(__file__).parent / "static"
_FILES: Final = {
    "rfr.css": "text/css",
    "rfr.js": "text/javascript",
    "actions.js": "text/javascript",
    "menu.svg": "image/svg+xml",
    "menu-dark.svg": "image/svg+xml",
}
_FOREIGN_SESSION: Final = "Invalid JWT token"
_NO_REFRESH: Final = "There is no such refresh, or you may not see it."
_routes: Final = APIRouter()


def make_app() -> FastAPI:
    """Return the application, without FastAPI's pages of API documentation: it has no API for other programs."""
    app = Guarded(
        title="Resumable full refresh",
        openapi_url=None,
        lifespan=_lifespan,
        exception_handlers={StarletteHTTPException: _explained, RequestValidationError: _explained},
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
    if isinstance(error, RequestValidationError):
        return page(request, "error.html", 422, message="This address is not complete.", is_passing=False, login="")
    # Airflow's answer to a session that another secret signed, as after a change of [api_auth] jwt_secret.
    is_stranger = error.status_code == 401 or error.detail == _FOREIGN_SESSION
    answer = page(
        request,
        "error.html",
        401 if is_stranger else error.status_code,
        message="You are not logged in to Airflow." if is_stranger else str(error.detail),
        is_passing=error.status_code == 503,
        login=addresses_of(request).login(request) if is_stranger else "",
    )
    answer.headers.update(error.headers or {})
    return answer


@_routes.get("/", response_class=HTMLResponse)
async def _refreshes(request: Request, viewer: ViewerDep) -> Response:
    snapshot = await request.app.state.lakes.snapshot()

    def answer() -> Response:
        query = RefreshFilter.of(request.query_params)
        # The right to the DAG of the newest run decides; without a DAG, the right to assets.
        viewer.learn({dag_of(refresh) for refresh in snapshot.refreshes})
        visible = [refresh for refresh in snapshot.refreshes if viewer.sees(dag_of(refresh))]
        listed = list_for(visible, query, viewer)
        if query.is_of_a_task and listed.shown.total == 1:
            [only] = listed.shown.rows
            address = addresses_of(request).own(
                "refresh", lake=only.lake, dag_id=query.dag_id, ledger=only.status.ledger, run_id=query.run_id
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
    refresh = await _visible(snapshot, viewer, lake, ledger)
    details, deliveries, rows = await asyncio.gather(
        lakes.details(refresh), lakes.webhooks(refresh), _rows_for(refresh, lakes, viewer)
    )

    def answer() -> Response:
        actions, has_form = actions_on(refresh.status, viewer)
        header, history = refresh.status.header, history_for(refresh, viewer)
        known = details.value
        return page(
            request,
            "refresh.html",
            problems=viewer.sentences_of(snapshot.problems_of(lake)),
            refresh=refresh,
            history=history,
            history_charts=charts.generations(history),
            curve=None if known is None or header is None else charts.pages_over_time(known, header.opened_at),
            attempts=attempts_for(refresh, viewer),
            schedule=None if (dag_id := dag_of(refresh)) is None else schedule_of(dag_id),
            snippets=display.snippets(refresh.status.table, lakes.settings(lake) if viewer.reads_assets else None),
            other_run=run_id if header and run_id != header.dag_run_id else "",
            details=details,
            details_problem=viewer.sentences_of(details.problems_with("The pages in the ledger")),
            rows=rows,
            rows_problem=() if rows is None else viewer.sentences_of(rows.problems_with("The rows of the table")),
            deliveries_problem=viewer.sentences_of(deliveries.problems_with("The control store")),
            deliveries=tuple(
                delivery for delivery in deliveries.value or () if all(map(viewer.sees, delivery.dag_ids))
            ),
            has_form=has_form,
            actions=actions,
        )

    return await run_in_threadpool(answer)


async def _visible(snapshot: Snapshot, viewer: Viewer, lake: str, ledger: str) -> LakeRefresh:
    """Return the refresh of a ledger if the viewer may see it.

    :raises HTTPException: 404 if there is none, or the viewer may not see it; 503 if a read failed
    """
    refresh = next(
        (refresh for refresh in snapshot.refreshes if (refresh.lake, refresh.status.ledger) == (lake, ledger)), None
    )
    if refresh is not None and await run_in_threadpool(viewer.sees, dag_of(refresh)):
        return refresh
    # The problem first: no refresh is known of a catalog that does not answer, or is being read for the first time.
    problems = await run_in_threadpool(viewer.sentences_of, snapshot.problems_of(lake))
    raise HTTPException(503 if problems else 404, " ".join([*problems, _NO_REFRESH]))


async def _rows_for(refresh: LakeRefresh, lakes: Lakes, viewer: Viewer) -> Latest[TableSample | None] | None:
    """Return rows of the table; None if the setting or the viewer's rights forbid to read them."""
    if not shows_rows():
        return None
    try:
        uri = table_asset(refresh.status.table, refresh.lake).uri
    except ConfigurationError:
        return None  # no load of ours writes a table of such a name, so nobody has the right to its asset
    return await lakes.rows(refresh) if await run_in_threadpool(viewer.reads_asset, uri) else None


@_routes.get("/deliveries", response_class=HTMLResponse)
async def _deliveries(request: Request, viewer: ViewerDep) -> Response:
    by_lake, problems = await request.app.state.lakes.each_lake("deliveries", read_webhooks)

    def answer() -> Response:
        webhooks = Webhooks.of_lakes([lake_webhooks.seen_by(viewer) for _, lake_webhooks in by_lake])
        shown = ListPage.of(webhooks.endpoints, request.query_params.get("page", ""))
        delivering, managing = start_of("deliver_webhooks", viewer), start_of("manage_webhooks", viewer)
        return page(
            request,
            "deliveries.html",
            problems=viewer.sentences_of(problems),
            endpoints=shown,
            attempts=webhooks.attempts,
            deliver=None if delivering is None else deliver(delivering),
            actions={
                endpoint.row.id: () if managing is None else actions_on_endpoint(endpoint, managing)
                for endpoint in shown.rows
            },
            has_several_lakes=len(webhooks.lakes) > 1,
        )

    return await run_in_threadpool(answer)


@_routes.get("/migrations", response_class=HTMLResponse)
async def _migrations(request: Request, viewer: ViewerDep) -> Response:
    lakes: Lakes = request.app.state.lakes
    read, (by_lake, problems) = await asyncio.gather(
        lakes.shared(("projects",), read_projects, 2.0), lakes.each_lake("migrations", read_in_lake, PLAN_SECONDS)
    )

    def answer() -> Response:
        allowed = viewer.reads_assets
        projects = (read.value or ()) if allowed else ()
        all_problems = [*read.problems_with("The control store"), *problems]
        migrating = start_of("builtin_migration", viewer)
        return page(
            request,
            "migrations.html",
            is_allowed=allowed,
            projects=projects,
            planned=next((project for project in projects if project.is_planned), None),
            lakes=by_lake if allowed else [],
            sees_all_dags=viewer.sees_all_dags,
            problems=viewer.sentences_of(all_problems) if allowed else (),
            deploy=None if migrating is None else deploy(migrating),
        )

    return await run_in_threadpool(answer)


@_routes.get("/connections", response_class=HTMLResponse)
async def _connections(request: Request, viewer: ViewerDep) -> Response:
    lakes: Lakes = request.app.state.lakes
    latest, snapshot = await asyncio.gather(lakes.shared(("connections",), read_connections, 2.0), lakes.snapshot())

    def answer() -> Response:
        known = (latest.value or Connections()).with_refreshes([refresh.status for refresh in snapshot.refreshes])
        uses, alterations = known.seen_by(viewer)
        shown = ListPage.of(uses, request.query_params.get("page", ""))
        return page(
            request,
            "connections.html",
            problems=viewer.sentences_of(latest.problems_with("The control store")),
            shown=shown,
            connections=ConnectionUses.grouped(shown.rows),
            alterations=alterations,
            sees_all_dags=viewer.sees_all_dags,
            may_alter=viewer.may_trigger("alter_connection"),
        )

    return await run_in_threadpool(answer)


@_routes.get("/help", response_class=HTMLResponse)
async def _help(request: Request, _viewer: ViewerDep) -> Response:
    return page(
        request,
        "help.html",
        pages=terms.pages(),
        states=terms.states(),
        buttons=terms.buttons(),
        glossary=terms.glossary(),
        problems=(),
    )


@_routes.get("/static/{name}")
async def _file(name: str) -> Response:
    """Send a static file, which holds no data, without a login: the page for users who are not logged in needs it."""
    if name not in _FILES:
        raise HTTPException(404, "There is no such file.")
    return FileResponse(_STATIC / name, media_type=_FILES[name])
