"""Responses from values: templates that escape everything, and headers that let pages load nothing from outside."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from airflow_provider_rfr import __version__
from airflow_provider_rfr.web import words

if TYPE_CHECKING:
    from fastapi import Request
    from starlette.types import Message, Receive, Scope, Send

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
    found = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= words.FILTERS
    found.globals["version"] = __version__
    return found


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
        given = {name: value for name, value in query.items() if value}
        return f"{self._own}/{path}" + (f"?{urlencode(given)}" if given else "")

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
