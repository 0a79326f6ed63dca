"""Presets: how well-known receivers are called, as parameters that give address, headers, body and success rule."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, TypeAlias
from urllib.parse import quote

from pydantic import AfterValidator, BeforeValidator, SecretStr, WithJsonSchema
from pydantic_core import PydanticCustomError

from airflow_provider_rfr.webhooks.config_errors import TriggerModel, mistake, nearest
from airflow_provider_rfr.webhooks.fields import Secret, Success, check_header_value, is_sealed_text, plain_tree

_BEARER = ("Authorization", "Bearer {}")
_LONGEST_NAME = 500
_DIGITS = re.compile(r"[0-9]{1,18}")
_PATH = re.compile(r"/[A-Za-z0-9._~/\-]*")
_NOT_IN_A_NAME = re.compile(r"[\x00-\x1f\x7f]|\{\{")


@dataclass(frozen=True, slots=True)
class TokenStep:
    """A request whose answer holds the token that the webhook is sent with.

    The token is kept for the endpoint; when the receiver says 401, it is fetched again once.

    :ivar body: JSON to POST; it holds a password
    :ivar pointer: JSON pointer to the token in the answer
    :ivar header: that carries the token
    :ivar value: of that header; ``{}`` stands for the token
    """

    url: str = field(repr=False)
    body: Mapping[str, str] = field(repr=False)
    pointer: str = "/access_token"
    header: str = "Authorization"
    value: str = "Bearer {}"


def _name(value: Any) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise mistake("must be text or a whole number")
    if not value.strip() or value in (".", "..") or len(value) > _LONGEST_NAME:
        raise mistake("is not a name")
    if _NOT_IN_A_NAME.search(value):
        raise mistake("is not a template, and has no control characters", "write the name as it is")
    return value


def _number(value: Any) -> int | str:
    if is_sealed_text(value):
        return str(value)
    if isinstance(value, bool) or not _DIGITS.fullmatch(str(value)):
        raise mistake("must be a whole number")
    return int(value)


def _path(value: str) -> str:
    if not _PATH.fullmatch(value) and not is_sealed_text(value):
        raise mistake("is not a path", "write e.g. /auth/token")
    return value


_Name = Annotated[int | str, BeforeValidator(_name), WithJsonSchema({"type": ["string", "integer"]})]
"""What the receiver calls it; never a template."""

_Number = Annotated[int | str, BeforeValidator(_number), WithJsonSchema({"type": ["integer", "string"]})]
"""A number that the receiver gave."""

_UrlPath = Annotated[str, AfterValidator(_path)]

_Token = Annotated[Secret, AfterValidator(check_header_value)]
"""A secret that is sent in a header."""

_Tree = Annotated[Any, AfterValidator(plain_tree)]
"""JSON whose string leaves are templates."""


_HALF_ENTITY = re.compile(r"&[a-z]{0,3}\Z")


class Preset(TriggerModel):
    """Parameters of one preset (``with``); the endpoint's own settings go before what a preset says.

    :cvar kind: its name
    :cvar base: address to call where the endpoint has none
    :cvar accepted: what counts as delivered
    :cvar credential: header of the token, and its value
    :cvar texts: places in the body that have to be text, ``*`` for all below, and the most characters it may have
    :cvar idempotent: where the receiver gets the delivery id to tell a repeat by; empty where it can't
    """

    kind: ClassVar[str] = ""
    base: ClassVar[str] = ""
    accepted: ClassVar[Success] = Success()
    credential: ClassVar[tuple[str, str] | None] = None
    texts: ClassVar[Mapping[tuple[str, ...], int | None]] = {}
    idempotent: ClassVar[str] = ""

    @property
    def needs_address(self) -> bool:
        """Whether the endpoint has to give url or connection."""
        return not self.base

    def path(self) -> str:
        """What follows the base address."""
        return ""

    def headers(self) -> dict[str, str]:
        """Headers of every call, without credentials."""
        return {}

    def payload(self) -> Any:
        """The body: a tree whose string leaves are templates."""
        raise NotImplementedError

    def body_secrets(self) -> Mapping[str, SecretStr]:
        """What templates find as ``preset.NAME``: the receiver wants it in the body."""
        return {}

    def token_step(self, base: str, login: str, password: str) -> TokenStep | None:
        """How to get a token; None for what needs none.

        :param login: of the connection, as the password; empty for none
        """
        return None

    def escaped(self, text: str) -> str:
        """A text of the commit as templates get it: without what the receiver would take for markup."""
        return text

    def fitted(self, body: Any) -> Any:
        """The body with text where the receiver wants it, cut to what it takes.

        A template that is one expression alone gives a value of its own type, also where only text will do.
        """
        for place, most in self.texts.items():
            body = _fitted(body, place, most)
        return body


class TokenPreset(Preset):
    """A preset whose receiver takes a token; without ``token`` it is the connection's password.

    :ivar token: sent in the header of the receiver's choice
    """

    credential: ClassVar[tuple[str, str] | None] = _BEARER
    token: _Token | None = None


def segment(name: object) -> str:
    """The name as one segment of a path."""
    return quote(str(name), safe="")


def _without_nothing(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that are given."""
    return {key: value for key, value in tree.items() if value is not None}


def _fitted(body: Any, place: tuple[str, ...], most: int | None) -> Any:
    if not place:
        return _fitted_text(body, most)
    first, rest = place[0], place[1:]
    if isinstance(body, list):
        return [_fitted(each, rest, most) for each in body] if first == "*" else body
    if not isinstance(body, Mapping):
        return body
    return {key: _fitted(each, rest, most) if first in ("*", key) else each for key, each in body.items()}


def _fitted_text(value: Any, most: int | None) -> str:
    """The value as text of at most so many characters; what is cut ends in ``…``, and with no half of an entity."""
    if not isinstance(value, str):
        value = "" if value is None else json.dumps(value, ensure_ascii=False)
    if most is None or len(value) <= most:
        return str(value)
    return _HALF_ENTITY.sub("", value[: most - 1]) + "…"


_EVENT: Mapping[str, Any] = {
    "delivery_id": "{{delivery_id}}",
    "materialization": "{{materialization_name}}",
    "collections": "{{collection_names}}",
    "generation": "{{generation}}",
    "documents": "{{totals.documents}}",
    "published_from": "{{flow_published_at_min}}",
    "published_to": "{{flow_published_at_max}}",
    "committed_at": "{{committed_at}}",
}
"""What the receiver hears of the commit, unless the user says what."""
_LINE = "{{materialization_name}}: {{totals.documents}} documents committed ({{delivery_id}})"


class AirflowDagRun(Preset):
    """Starts a DAG run of Airflow 3, whose run id is the delivery id: a repeat is answered with 409.

    :ivar conf: of the run
    :ivar username: to get a token with, as the password; without them it is the connection's
    :ivar token: sent as it is, where one is at hand that does not expire
    :ivar token_path: where tokens are got, below the address
    """

    kind: ClassVar[str] = "airflow-dag-run"
    accepted: ClassVar[Success] = Success(status=("2xx", 409))
    credential: ClassVar[tuple[str, str] | None] = _BEARER
    texts: ClassVar[Mapping[tuple[str, ...], int | None]] = {("note",): 1000}
    idempotent: ClassVar[str] = "dag_run_id"

    dag_id: _Name
    conf: _Tree = None
    note: str | None = None
    username: Secret | None = None
    password: Secret | None = None
    token: _Token | None = None
    token_path: _UrlPath = "/auth/token"

    @classmethod
    def contradictions(cls, written: Mapping[str, Any]) -> list[PydanticCustomError]:
        """Either a token or what it takes to get one."""
        given = [name for name in ("username", "password") if written.get(name) is not None]
        if len(given) == 1:
            other = "password" if given == ["username"] else "username"
            return [mistake("is missing", f"it goes with {given[0]}", at=(other,))]
        if given and written.get("token") is not None:
            return [mistake("goes with neither username nor password", "keep one of the two ways", at=("token",))]
        return []

    def path(self) -> str:
        """Of the REST API, version 2."""
        return f"/api/v2/dags/{segment(self.dag_id)}/dagRuns"

    def payload(self) -> Any:
        """The key ``logical_date`` is required, though it may be null."""
        conf = dict(_EVENT) if self.conf is None else self.conf
        run = {"logical_date": None, "dag_run_id": "{{delivery_id}}", "conf": conf}
        return {**run, "note": self.note} if self.note is not None else run

    def token_step(self, base: str, login: str, password: str) -> TokenStep | None:
        """Tokens of Airflow expire, so one is fetched with the password."""
        if self.username is not None and self.password is not None:
            login, password = self.username.get_secret_value(), self.password.get_secret_value()
        if self.token is not None or not login:
            return None
        return TokenStep(f"{base.rstrip('/')}{self.token_path}", {"username": login, "password": password})


class DbtCloud(TokenPreset):
    """Starts a job of dbt Cloud, which knows no idempotency key: a repeated delivery is a second run."""

    kind: ClassVar[str] = "dbt-cloud"
    base: ClassVar[str] = "https://cloud.getdbt.com"
    credential: ClassVar[tuple[str, str] | None] = ("Authorization", "Token {}")
    texts: ClassVar[Mapping[tuple[str, ...], int | None]] = {
        ("cause",): 255,
        ("steps_override", "*"): None,
        ("schema_override",): None,
        ("git_branch",): None,
        ("git_sha",): None,
    }

    account_id: _Name
    job_id: _Name
    cause: str = _LINE
    steps_override: list[str] | None = None
    schema_override: str | None = None
    git_branch: str | None = None
    git_sha: str | None = None

    def path(self) -> str:
        """Of the administrative API, version 2."""
        return f"/api/v2/accounts/{segment(self.account_id)}/jobs/{segment(self.job_id)}/run/"

    def payload(self) -> Any:
        """The cause, and what the run does otherwise than the job says."""
        names = ("cause", "steps_override", "schema_override", "git_branch", "git_sha")
        return _without_nothing({name: getattr(self, name) for name in names})


class Databricks(TokenPreset):
    """Runs a job of Databricks; the same token of idempotency gives back the run that is there."""

    kind: ClassVar[str] = "databricks"
    texts: ClassVar[Mapping[tuple[str, ...], int | None]] = {("job_parameters", "*"): None}
    idempotent: ClassVar[str] = "idempotency_token"

    job_id: _Number
    job_parameters: dict[str, str] | None = None

    def path(self) -> str:
        """Of the jobs API."""
        return "/api/2.2/jobs/run-now"

    def payload(self) -> Any:
        """Parameters are text, and none are sent unless they are given: a job may take them in another way."""
        run = {"job_id": self.job_id, "idempotency_token": "{{delivery_id}}", "job_parameters": self.job_parameters}
        return _without_nothing(run)


class Prefect(TokenPreset):
    """Starts a flow run of a Prefect deployment; the same idempotency key gives back the run that is there."""

    kind: ClassVar[str] = "prefect"
    texts: ClassVar[Mapping[tuple[str, ...], int | None]] = {("name",): None, ("tags", "*"): None}
    idempotent: ClassVar[str] = "idempotency_key"

    deployment_id: _Name
    name: str | None = None
    parameters: _Tree = None
    tags: list[str] | None = None

    def path(self) -> str:
        """Below the address of the API, which in Prefect Cloud names account and workspace."""
        return f"/deployments/{segment(self.deployment_id)}/create_flow_run"

    def payload(self) -> Any:
        """Parameters only where they are given: a flow refuses those it has not."""
        given = {"name": self.name, "parameters": self.parameters, "tags": self.tags}
        return {**_without_nothing(given), "idempotency_key": "{{delivery_id}}"}


_LAUNCH = """
mutation LaunchRun($executionParams: ExecutionParams!) {
  launchRun(executionParams: $executionParams) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
  }
}
""".strip()


class Dagster(TokenPreset):
    """Launches a run of a Dagster job; Dagster answers 200 to failures too, so the answer's body decides.

    Dagster knows no idempotency key: the run's tag ``rfr/delivery_id`` shows a repeat.
    """

    kind: ClassVar[str] = "dagster"
    accepted: ClassVar[Success] = Success(
        status=("2xx",), pointer="/data/launchRun/__typename", equals="LaunchRunSuccess"
    )
    credential: ClassVar[tuple[str, str] | None] = ("Dagster-Cloud-Api-Token", "{}")
    texts: ClassVar[Mapping[tuple[str, ...], int | None]] = {
        ("variables", "executionParams", "executionMetadata", "tags", "*", "value"): None
    }

    repository_location_name: _Name
    repository_name: _Name = "__repository__"
    job_name: _Name
    run_config: _Tree = None
    tags: dict[str, str] | None = None

    def path(self) -> str:
        """Of the one address of GraphQL."""
        return "/graphql"

    def payload(self) -> Any:
        """The mutation and what it launches."""
        tags = {"rfr/delivery_id": "{{delivery_id}}", "rfr/target": "{{target}}", **(self.tags or {})}
        selector = {
            "repositoryLocationName": self.repository_location_name,
            "repositoryName": self.repository_name,
            "jobName": self.job_name,
        }
        parameters = {
            "selector": selector,
            "runConfigData": {} if self.run_config is None else self.run_config,
            "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in tags.items()]},
        }
        return {"query": _LAUNCH, "operationName": "LaunchRun", "variables": {"executionParams": parameters}}


_MOST_GITHUB_KEYS = 10
_MOST_SLACK_TEXT = 3000
_MOST_SLACK_TEXTS: Mapping[Any, int] = {"header": 150, "button": 75, "fields": 2000}
"""Characters of a text object, in blocks of that type or below that name."""
_SEVERITIES = ("info", "warning", "error", "critical")


class Slack(Preset):
    """An incoming webhook of Slack. Its address is the secret; Slack can't tell a repeat."""

    kind: ClassVar[str] = "slack"
    texts: ClassVar[Mapping[tuple[str, ...], int | None]] = {("text",): 40_000}

    text: str = _LINE
    blocks: _Tree = None

    def payload(self) -> Any:
        """Text, and blocks if they are given."""
        return {"text": self.text, **({"blocks": self.blocks} if self.blocks is not None else {})}

    def escaped(self, text: str) -> str:
        """A name that holds ``<!channel>`` calls nobody, and is no link."""
        return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

    def fitted(self, body: Any) -> Any:
        """Text objects of blocks have limits of their own."""
        fitted = super().fitted(body)
        if isinstance(fitted, Mapping) and "blocks" in fitted:
            return {**fitted, "blocks": _cut_blocks(fitted["blocks"], _MOST_SLACK_TEXT)}
        return fitted


def _cut_blocks(node: Any, most: int) -> Any:
    """The blocks with their text objects cut to *most* characters, or to what Slack takes at such a place."""
    if isinstance(node, list):
        return [_cut_blocks(each, most) for each in node]
    if not isinstance(node, Mapping):
        return node
    most = _MOST_SLACK_TEXTS.get(node.get("type"), most)
    if node.get("type") in ("mrkdwn", "plain_text"):
        return {**node, "text": _fitted_text(node.get("text"), most)}
    return {name: _cut_blocks(each, _MOST_SLACK_TEXTS.get(name, most)) for name, each in node.items()}


class GitHub(TokenPreset):
    """Dispatches an event of a GitHub repository, or one of its workflows; GitHub can't tell a repeat.

    :ivar workflow: file name or id of a workflow; None for an event of the repository
    :ivar ref: branch or tag that the workflow runs on
    """

    kind: ClassVar[str] = "github"
    base: ClassVar[str] = "https://api.github.com"
    texts: ClassVar[Mapping[tuple[str, ...], int | None]] = {
        ("event_type",): 100,
        ("ref",): None,
        ("inputs", "*"): None,
    }

    owner: _Name
    repo: _Name
    event_type: str = "rfr_commit"
    client_payload: _Tree = None
    workflow: _Name | None = None
    ref: str | None = None
    inputs: dict[str, str] | None = None

    @classmethod
    def contradictions(cls, written: Mapping[str, Any]) -> list[PydanticCustomError]:
        """What belongs to events, and what to workflows."""
        of_workflows, of_events = ("ref", "inputs"), ("eventType", "clientPayload")
        given = {name for name, value in written.items() if value is not None}
        found = []
        if "workflow" in given:
            found = [
                mistake("goes with events of the repository", "leave it out", at=(n,)) for n in of_events if n in given
            ]
            if "ref" not in given:
                found.append(mistake("is missing", "write the branch that the workflow runs on", at=("ref",)))
        else:
            found = [mistake("goes with workflow", "name the workflow", at=(n,)) for n in of_workflows if n in given]
        payload = written.get("clientPayload")
        if isinstance(payload, Mapping) and len(payload) > _MOST_GITHUB_KEYS:
            found.append(mistake(f"must have at most {_MOST_GITHUB_KEYS} keys", at=("clientPayload",)))
        return found

    def path(self) -> str:
        """Of the REST API."""
        repository = f"/repos/{segment(self.owner)}/{segment(self.repo)}"
        if self.workflow is None:
            return f"{repository}/dispatches"
        return f"{repository}/actions/workflows/{segment(self.workflow)}/dispatches"

    def headers(self) -> dict[str, str]:
        """Of the version that this preset was written for."""
        return {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}

    def payload(self) -> Any:
        """An event, or what the workflow takes."""
        if self.workflow is not None:
            return {"ref": self.ref, "inputs": self.inputs or {}}
        payload = dict(_EVENT) if self.client_payload is None else self.client_payload
        return {"event_type": self.event_type, "client_payload": payload}


def _severity(value: str) -> str:
    if value not in _SEVERITIES and not is_sealed_text(value):
        raise mistake(f"must be {', '.join(_SEVERITIES[:-1])} or {_SEVERITIES[-1]}")
    return value


class PagerDuty(Preset):
    """An alert by PagerDuty's events API, version 2; the delivery id is its key, so a repeat is the same alert.

    :ivar routing_key: of the integration; the body holds it
    """

    kind: ClassVar[str] = "pagerduty"
    base: ClassVar[str] = "https://events.pagerduty.com"
    texts: ClassVar[Mapping[tuple[str, ...], int | None]] = {
        ("payload", "summary"): 1024,
        ("payload", "source"): None,
        ("dedup_key",): 255,
    }
    idempotent: ClassVar[str] = "dedup_key"

    routing_key: Secret
    severity: Annotated[
        str, AfterValidator(_severity), WithJsonSchema({"enum": list(_SEVERITIES), "type": "string"})
    ] = "info"
    summary: str = _LINE
    source: str = "{{target}}"
    dedup_key: str = "{{delivery_id}}"
    custom_details: _Tree = None

    def path(self) -> str:
        """Of alerts."""
        return "/v2/enqueue"

    def payload(self) -> Any:
        """The alert."""
        details = dict(_EVENT) if self.custom_details is None else self.custom_details
        return {
            "routing_key": "{{preset.routing_key}}",
            "event_action": "trigger",
            "dedup_key": self.dedup_key,
            "payload": {
                "summary": self.summary,
                "source": self.source,
                "severity": self.severity,
                "custom_details": details,
            },
        }

    def body_secrets(self) -> Mapping[str, SecretStr]:
        """The routing key."""
        return {"routing_key": self.routing_key}


AnyPreset: TypeAlias = AirflowDagRun | DbtCloud | Slack | GitHub | PagerDuty | Databricks | Prefect | Dagster
PRESETS: Mapping[str, type[Preset]] = MappingProxyType(
    {
        preset.kind: preset
        for preset in (AirflowDagRun, DbtCloud, Slack, GitHub, PagerDuty, Databricks, Prefect, Dagster)
    }
)
_ALIASES = {"airflow": AirflowDagRun.kind, "dbt": DbtCloud.kind}


def preset_named(name: str) -> type[Preset]:
    """The preset of this name; raises a mistake that names the nearest one."""
    plain = name.strip().lower().replace("_", "-")
    found = PRESETS.get(_ALIASES.get(plain, plain))
    if found is None:
        raise mistake("is no preset", nearest(plain, PRESETS))
    return found
