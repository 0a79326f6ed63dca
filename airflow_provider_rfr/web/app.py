"""The application that Airflow's API server mounts under ``/rfr``: its files, and pages for logged-in users."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException as StarletteHTTPException

from airflow_provider_rfr.web import charts, migrations, refreshes
from airflow_provider_rfr.web.access import Viewer, ViewerDep
from airflow_provider_rfr.web.connections import Connections, read_connections
from airflow_provider_rfr.web.deliveries import Webhooks, read_webhooks
from airflow_provider_rfr.web.lakes import Lakes, Refresh, prepare
from airflow_provider_rfr.web.pages import Guarded, addresses_of, page
from airflow_provider_rfr.web.refreshes import Wanted

_STATIC: Final = Path(__file__).parent / "static"
_FILES: Final = {"rfr.css": "text/css", "rfr.js": "text/javascript"}
_NO_REFRESH: Final = "There is no such refresh, or you may not see it."


def make_app() -> FastAPI:
    """Return the application, without FastAPI's pages of API documentation: it has no API for other programs."""
    app = Guarded(
        title="Resumable full refresh",
        openapi_url=None,
        lifespan=_lifespan,
        exception_handlers={StarletteHTTPException: _explained, RequestValidationError: _incomplete},
    )
    app.state.lakes = Lakes()
    app.add_api_route("/", _refreshes, response_class=HTMLResponse)
    app.add_api_route("/refresh", _refresh, response_class=HTMLResponse)
    app.add_api_route("/deliveries", _deliveries, response_class=HTMLResponse)
    app.add_api_route("/migrations", _migrations, response_class=HTMLResponse)
    app.add_api_route("/connections", _connections, response_class=HTMLResponse)
    app.add_api_route("/static/{name}", _file)
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


async def _refreshes(request: Request, viewer: ViewerDep) -> Response:
    known = await request.app.state.lakes.known()

    def answer() -> Response:
        mine, wanted = refreshes.visible(known.refreshes, viewer), Wanted.of(request.query_params)
        found = refreshes.listed(mine, wanted, viewer)
        if wanted.is_of_a_task and len(found.refreshes) == 1:
            [only] = found.refreshes
            address = addresses_of(request).own(
                "refresh", lake=only.lake, ledger=only.status.ledger, run_id=wanted.run_id
            )
            return RedirectResponse(address, 303)
        return page(
            request,
            "refreshes.html",
            problems=viewer.told(known.problems),
            found=found,
            wanted=wanted,
            has_several_lakes=len({refresh.lake for refresh in mine}) > 1,
        )

    return await run_in_threadpool(answer)


async def _refresh(request: Request, viewer: ViewerDep, lake: str, ledger: str, run_id: str = "") -> Response:
    lakes: Lakes = request.app.state.lakes
    known = await lakes.known()
    refresh = next(
        (refresh for refresh in known.refreshes if (refresh.lake, refresh.status.ledger) == (lake, ledger)), None
    )
    if refresh is None or not await run_in_threadpool(viewer.sees, refreshes.dag_of(refresh)):
        # The problem first: a catalog that is away, or that is being read for the first time, has no refreshes.
        said = await run_in_threadpool(viewer.told, known.problems)
        raise HTTPException(503 if said else 404, " ".join([*said, _NO_REFRESH]))
    details, told = await asyncio.gather(lakes.details(refresh), lakes.webhooks(refresh))

    def answer() -> Response:
        history = refreshes.history(refresh, viewer)
        return page(
            request,
            "refresh.html",
            problems=viewer.told(known.problems),
            refresh=refresh,
            history=history,
            bars=charts.generations(history),
            other_run=run_id if refresh.status.header and run_id != refresh.status.header.dag_run_id else "",
            details=details,
            details_problem=viewer.told(details.problems_with("The pages in the ledger")),
            told_problem=viewer.told(told.problems_with("The control store")),
            curve=None if details.value is None else charts.pages_over_time(details.value),
            told=tuple(delivery for delivery in told.value or () if all(map(viewer.sees, delivery.dag_ids))),
            may_trigger=_may_trigger(refresh, viewer),
        )

    return await run_in_threadpool(answer)


def _may_trigger(refresh: Refresh, viewer: Viewer) -> bool:
    dag_id = refreshes.dag_of(refresh)
    return dag_id is not None and viewer.may_trigger(dag_id)


async def _deliveries(request: Request, viewer: ViewerDep) -> Response:
    found, problems = await request.app.state.lakes.each_lake("deliveries", read_webhooks)

    def answer() -> Response:
        webhooks = Webhooks.of_lakes([lake_webhooks.seen_by(viewer) for _, lake_webhooks in found])
        may_deliver = viewer.may_trigger("deliver_webhooks")
        return page(
            request,
            "deliveries.html",
            problems=viewer.told(problems),
            webhooks=webhooks,
            may_deliver=may_deliver,
            has_several_lakes=len(webhooks.lakes) > 1,
        )

    return await run_in_threadpool(answer)


async def _migrations(request: Request, viewer: ViewerDep) -> Response:
    lakes: Lakes = request.app.state.lakes
    project, (found, problems) = await asyncio.gather(
        lakes.shared(("project",), migrations.read_project, 2.0),
        lakes.each_lake("migrations", migrations.read_in_lake, migrations.SECONDS),
    )

    def answer() -> Response:
        allowed = viewer.reads_assets
        return page(
            request,
            "migrations.html",
            is_allowed=allowed,
            project=project.value if allowed else None,
            has_store=project.value is not None or project.problem is not None,
            lakes=found if allowed else [],
            sees_all_dags=viewer.sees_all_dags,
            problems=viewer.told([*project.problems_with("The control store"), *problems]) if allowed else (),
            may_deploy=viewer.may_trigger("builtin_migration"),
        )

    return await run_in_threadpool(answer)


async def _connections(request: Request, viewer: ViewerDep) -> Response:
    known = await request.app.state.lakes.shared(("connections",), read_connections, 2.0)

    def answer() -> Response:
        found, alterations = (known.value or Connections()).seen_by(viewer)
        return page(
            request,
            "connections.html",
            problems=viewer.told(known.problems_with("The control store")),
            connections=found,
            alterations=alterations,
            sees_all_dags=viewer.sees_all_dags,
            may_alter=viewer.may_trigger("alter_connection"),
        )

    return await run_in_threadpool(answer)


async def _file(name: str) -> Response:
    """Send a file that holds nothing of this installation: the page for those who are not logged in needs it too."""
    if name not in _FILES:
        raise HTTPException(404, "There is no such file.")
    return FileResponse(_STATIC / name, media_type=_FILES[name])
