"""Presets for well-known receivers: models of their parameters, with a :class:`Receiver` that describes the call."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, TypeAlias
from urllib.parse import quote

from pydantic import BeforeValidator, PlainValidator, SecretStr, WithJsonSchema
from pydantic_core import PydanticCustomError

from airflow_provider_rfr.documents import suggestion
from airflow_provider_rfr.webhooks._fields import (
    HeaderSecret,
    JsonTree,
    Secret,
    Success,
    is_sealed_text,
    matching,
    one_of,
)
from airflow_provider_rfr.webhooks._model import TriggerModel, mistake

_EVENT: Mapping[str, Any] = {
    "delivery_id": "{{delivery_id}}",
    "materialization": "{{target_name}}",
    "collections": "{{collection_names}}",
    "generation": "{{generation}}",
    "documents": "{{totals.documents}}",
    "published_from": "{{fetched_at_min}}",
    "published_to": "{{fetched_at_max}}",
    "committed_at": "{{committed_at}}",
}
_LINE = "{{target_name}}: {{totals.documents}} documents committed ({{delivery_id}})"
_BEARER = ("Authorization", "Bearer {}")


@dataclass(frozen=True, slots=True)
class _Slot:
    """A placeholder in a body for a parameter; ``default``: value if it is not given; None leaves the entry out."""

    parameter: str
    default: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """A description of a receiver and its API.

    :ivar base: address to call where the endpoint has none
    :ivar path: the path behind the address, with parameters in braces
    :ivar headers: headers of every call, without credentials
    :ivar credential: header of the token or password, and its value with ``{}`` in place of the secret
    :ivar body: tree of templates
    :ivar texts: dotted paths in the body whose values have to be text (``*`` for any key or item), and the most
        characters, or None for no limit
    :ivar success: the answers that count as delivered
    :ivar body_secrets: parameters that templates find as ``preset.NAME``, since the receiver wants them in the body
    """

    path: str = ""
    body: Mapping[str, Any]
    base: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    credential: tuple[str, str] | None = None
    texts: Mapping[str, int | None] = field(default_factory=dict)
    success: Success = field(default_factory=Success)
    body_secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenStep:
    """A request whose answer has the token (``access_token``) for the webhook; its JSON body holds a password."""

    url: str = field(repr=False)
    body: Mapping[str, str] = field(repr=False)


class Preset(TriggerModel):
    """Parameters of one preset (``with``). Settings of the endpoint take precedence over those of the receiver.

    :cvar receiver: how it is called
    """

    receiver: ClassVar[Receiver]

    def path(self) -> str:
        """Return the path behind the base address; each parameter is one segment."""
        names = {name: quote(str(getattr(self, name)), safe="") for name in type(self).model_fields}
        return self.receiver.path.format_map(names)

    def payload(self) -> Any:
        """Return the body: a tree whose string leaves are templates."""
        return self._filled(self.receiver.body)

    def body_secrets(self) -> dict[str, str]:
        """Return the secrets that templates find as ``preset.NAME``."""
        return {name: getattr(self, name).get_secret_value() for name in self.receiver.body_secrets}

    def credential(self, password: str) -> dict[str, str]:
        """Return the preset's token, else the connection's password, in the header that the receiver wants."""
        token = getattr(self, "token", None)
        secret = token.get_secret_value() if isinstance(token, SecretStr) else password
        if self.receiver.credential is None or not secret:
            return {}
        header, form = self.receiver.credential
        return {header: form.replace("{}", secret)}

    def token_step(self, base: str, login: str, password: str) -> TokenStep | None:
        """Return the request that fetches a token; None if no token has to be fetched.

        :param base: base address of the receiver
        :param login: login of the connection; empty if it has none
        :param password: password of the connection; empty if it has none
        """
        return None

    def escaped(self, text: str) -> str:
        """Escape a text of the commit for templates, so that the receiver takes nothing in it for markup."""
        return text

    def fitted(self, body: Any) -> Any:
        """Fit the body to the receiver: text in the places that need it, cut to the length that it takes.

        A template that is one expression gives a value of any type, even where the receiver takes only text.
        """
        for place, most in self.receiver.texts.items():
            body = _fitted(body, place.split("."), most)
        return body

    def _filled(self, tree: Any) -> Any:
        if isinstance(tree, _Slot):
            value = getattr(self, tree.parameter)
            return tree.default if value is None else value
        if isinstance(tree, Mapping):
            filled = {key: self._filled(value) for key, value in tree.items()}
            return {key: value for key, value in filled.items() if value is not None or tree[key] is None}
        return tree


_HALF_ENTITY = re.compile(r"&[a-z]{0,3}\Z")


def _fitted(body: Any, place: Sequence[str], most: int | None) -> Any:
    if not place:
        return _fitted_text(body, most)
    first, rest = place[0], place[1:]
    if isinstance(body, list):
        return [_fitted(item, rest, most) for item in body] if first == "*" else body
    if not isinstance(body, Mapping):
        return body
    return {key: _fitted(item, rest, most) if first in ("*", key) else item for key, item in body.items()}


def _fitted_text(value: Any, most: int | None) -> str:
    """Return the value as text of at most so many characters.

    Text that is cut ends in ``…``, and not in half of an entity.
    """
    if not isinstance(value, str):
        value = "" if value is None else json.dumps(value, ensure_ascii=False)
    if most is None or len(value) <= most:
        return str(value)
    return _HALF_ENTITY.sub("", value[: most - 1]) + "…"


_LONGEST_NAME = 500
_NOT_IN_A_NAME = re.compile(r"[\x00-\x1f\x7f]|\{\{")
_SEVERITIES = ("info", "warning", "error", "critical")


def _check_name(value: Any) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise mistake("must be text or a whole number")
    if not value.strip() or value in (".", "..") or len(value) > _LONGEST_NAME:
        raise mistake("is not a name")
    if _NOT_IN_A_NAME.search(value):
        raise mistake("is not a template, and has no control characters", "write the plain name")
    return value


def _read_number(value: Any) -> int | str:
    if is_sealed_text(value):
        return str(value)
    if isinstance(value, bool) or not re.fullmatch("[0-9]{1,18}", str(value)):
        raise mistake("must be a whole number")
    return int(value)


_Name = Annotated[int | str, BeforeValidator(_check_name), WithJsonSchema({"type": ["string", "integer"]})]
"""A name or id that the receiver uses; never a template."""

_Number = Annotated[int | str, BeforeValidator(_read_number), WithJsonSchema({"type": ["integer", "string"]})]
"""A number that the receiver gave."""

_UrlPath = Annotated[str, matching(r"/[A-Za-z0-9._~/\-]*", "is not a path", "write e.g. /auth/token")]
_Severity = Annotated[
    str, PlainValidator(one_of(*_SEVERITIES)), WithJsonSchema({"enum": list(_SEVERITIES), "type": "string"})
]


class _TokenPreset(Preset):
    """A preset whose receiver takes a token; without ``token`` it is the connection's password.

    :ivar token: token of the receiver; by default the connection's password
    """

    token: HeaderSecret | None = None


class AirflowDagRun(Preset):
    """Starts a DAG run of Airflow 3, whose run id is the delivery id: a repeat is answered with 409.

    Airflow's tokens expire. So one is fetched with a user name and a password, kept, and fetched again once it is
    refused.

    :ivar dag_id: DAG to start
    :ivar conf: conf of the run; by default ids, names, counts and times of the commit
    :ivar note: note of the run
    :ivar username: user name to get a token with; by default the connection's
    :ivar password: password to get a token with; by default the connection's
    :ivar token: token that does not expire, sent unchanged
    :ivar token_path: path below the address at which tokens are fetched
    """

    receiver = Receiver(
        path="/api/v2/dags/{dag_id}/dagRuns",
        # Airflow requires the key logical_date, though it may be null.
        body={
            "logical_date": None,
            "dag_run_id": "{{delivery_id}}",
            "conf": _Slot("conf", _EVENT),
            "note": _Slot("note"),
        },
        credential=_BEARER,
        texts={"note": 1000},
        success=Success(status=("2xx", 409)),
    )

    dag_id: _Name
    conf: JsonTree = None
    note: str | None = None
    username: Secret | None = None
    password: Secret | None = None
    token: HeaderSecret | None = None
    token_path: _UrlPath = "/auth/token"

    @classmethod
    def contradictions(cls, written: Mapping[str, Any]) -> list[PydanticCustomError]:
        """Refuse a token together with the user name or password, and one of these two alone."""
        names = [name for name in ("username", "password") if written.get(name) is not None]
        if len(names) == 1:
            other = "password" if names == ["username"] else "username"
            return [mistake("is missing", f"it goes with {names[0]}", at=(other,))]
        if names and written.get("token") is not None:
            return [mistake("goes with neither username nor password", "keep one of the two ways", at=("token",))]
        return []

    def token_step(self, base: str, login: str, password: str) -> TokenStep | None:
        """Return the request that fetches a token with the password, because Airflow's tokens expire."""
        if self.username is not None and self.password is not None:
            login, password = self.username.get_secret_value(), self.password.get_secret_value()
        if self.token is not None or not login:
            return None
        return TokenStep(f"{base.rstrip('/')}{self.token_path}", {"username": login, "password": password})


class DbtCloud(_TokenPreset):
    """Starts a job of dbt Cloud, which knows no idempotency key: a repeated delivery is a second run.

    :ivar account_id: account
    :ivar job_id: job to run
    :ivar cause: reason that dbt shows
    :ivar steps_override: commands to run instead of the job's
    :ivar schema_override: schema to write to instead of the job's
    :ivar git_branch: branch to check out
    :ivar git_sha: commit to check out
    """

    receiver = Receiver(
        base="https://cloud.getdbt.com",
        path="/api/v2/accounts/{account_id}/jobs/{job_id}/run/",
        body={name: _Slot(name) for name in ("cause", "steps_override", "schema_override", "git_branch", "git_sha")},
        credential=("Authorization", "Token {}"),
        texts={"cause": 255, "steps_override.*": None, "schema_override": None, "git_branch": None, "git_sha": None},
    )

    account_id: _Name
    job_id: _Name
    cause: str = _LINE
    steps_override: list[str] | None = None
    schema_override: str | None = None
    git_branch: str | None = None
    git_sha: str | None = None


class Databricks(_TokenPreset):
    """Runs a job of Databricks; the same token of idempotency gives back the run that is there.

    :ivar job_id: job to run
    :ivar job_parameters: parameters of the job, as texts; none are sent unless they are given
    """

    receiver = Receiver(
        path="/api/2.2/jobs/run-now",
        # Parameters are sent only if given: a job may take them in another way.
        body={name: _Slot(name) for name in ("job_id", "job_parameters")} | {"idempotency_token": "{{delivery_id}}"},
        credential=_BEARER,
        texts={"job_parameters.*": None},
    )

    job_id: _Number
    job_parameters: dict[str, str] | None = None


class Prefect(_TokenPreset):
    """Starts a flow run of a Prefect deployment; the same idempotency key gives back the run that is there.

    :ivar deployment_id: deployment to run
    :ivar name: name of the flow run
    :ivar parameters: parameters of the flow; none are sent unless they are given
    :ivar tags: tags of the flow run
    """

    receiver = Receiver(
        path="/deployments/{deployment_id}/create_flow_run",
        # Parameters are sent only if given: a flow refuses those that it does not have.
        body={name: _Slot(name) for name in ("name", "parameters", "tags")} | {"idempotency_key": "{{delivery_id}}"},
        credential=_BEARER,
        texts={"name": None, "tags.*": None},
    )

    deployment_id: _Name
    name: str | None = None
    parameters: JsonTree = None
    tags: list[str] | None = None


_LAUNCH = """
mutation LaunchRun($executionParams: ExecutionParams!) {
  launchRun(executionParams: $executionParams) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
  }
}
""".strip()


class Dagster(_TokenPreset):
    """Launches a run of a Dagster job; Dagster answers 200 to failures too, so the answer's body decides.

    Dagster knows no idempotency key: the run's tag ``rfr/delivery_id`` shows a repeat.

    :ivar repository_location_name: code location of the job
    :ivar repository_name: repository of the job
    :ivar job_name: job to launch
    :ivar run_config: config of the run
    :ivar tags: tags of the run
    :ivar token: token of Dagster Cloud; by default the connection's password
    """

    receiver = Receiver(
        path="/graphql",
        body={
            "query": _LAUNCH,
            "operationName": "LaunchRun",
            "variables": {
                "executionParams": {
                    "selector": {
                        "repositoryLocationName": _Slot("repository_location_name"),
                        "repositoryName": _Slot("repository_name"),
                        "jobName": _Slot("job_name"),
                    },
                    "runConfigData": _Slot("run_config", {}),
                    "executionMetadata": {"tags": _Slot("tags", {})},
                }
            },
        },
        credential=("Dagster-Cloud-Api-Token", "{}"),
        texts={"variables.executionParams.executionMetadata.tags.*.value": None},
        success=Success(status=("2xx",), pointer="/data/launchRun/__typename", equals="LaunchRunSuccess"),
    )

    repository_location_name: _Name
    repository_name: _Name = "__repository__"
    job_name: _Name
    run_config: JsonTree = None
    tags: dict[str, str] | None = None

    def payload(self) -> Any:
        """Return the body with tags as a list of pairs, as GraphQL has them."""
        body = super().payload()
        metadata = body["variables"]["executionParams"]["executionMetadata"]
        tags = {"rfr/delivery_id": "{{delivery_id}}", "rfr/target": "{{target}}", **metadata["tags"]}
        metadata["tags"] = [{"key": key, "value": value} for key, value in tags.items()]
        return body


_MOST_SLACK_TEXT = 3000
_MOST_SLACK_TEXTS: Mapping[Any, int] = {"header": 150, "button": 75, "fields": 2000}
"""The most characters of a text object, by the type of the element around it or by its key."""


class Slack(Preset):
    """An incoming webhook of Slack. Its address is the secret; Slack can't recognise a repeat.

    :ivar text: text of the message, cut at 40,000 characters; markup works, but not in what variables hold
    :ivar blocks: Slack's blocks, whose texts are cut at Slack's limits
    """

    receiver = Receiver(body={"text": _Slot("text"), "blocks": _Slot("blocks")}, texts={"text": 40_000})

    text: str = _LINE
    blocks: JsonTree = None

    def escaped(self, text: str) -> str:
        """Escape markup: a name that holds ``<!channel>`` notifies no channel, and is not a link."""
        return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

    def fitted(self, body: Any) -> Any:
        """Fit the body, and cut the text objects of blocks at their own limits."""
        fitted = super().fitted(body)
        if isinstance(fitted, Mapping) and "blocks" in fitted:
            return {**fitted, "blocks": _cut_blocks(fitted["blocks"], _MOST_SLACK_TEXT)}
        return fitted


class Teams(Preset):
    """A webhook of Microsoft Teams' Workflows. Its address is the secret; Teams can't recognise a repeat.

    A workflow answers 202 before it posts the card. The connectors that Microsoft has retired answer 200, also to a
    message that they refuse, so 200 is no delivery here.

    :ivar text: text of the message, without markup
    :ivar card: adaptive card instead of ``text``; its texts are templates, and a ``TextBlock`` reads them as Markdown
    """

    receiver = Receiver(
        body={}, texts={"attachments.*.content.body.*.inlines.*.text": 20_000}, success=Success(status=(202,))
    )

    text: str = _LINE
    card: JsonTree = None

    def payload(self) -> Any:
        """Return a message with the adaptive card; by default one text, in a block that has no markup."""
        text = {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": self.text}]}
        card = self.card or {"type": "AdaptiveCard", "version": "1.4", "body": [text]}
        attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
        return {"type": "message", "attachments": [attachment]}


def _cut_blocks(node: Any, most: int) -> Any:
    """Cut the text objects of blocks to *most* characters, or to the limit that Slack has at such a place."""
    if isinstance(node, list):
        return [_cut_blocks(item, most) for item in node]
    if not isinstance(node, Mapping):
        return node
    kind = str(node.get("type"))
    most = _MOST_SLACK_TEXTS.get(kind, most)
    if kind in ("mrkdwn", "plain_text"):
        return {**node, "text": _fitted_text(node.get("text"), most)}
    return {name: _cut_blocks(item, _MOST_SLACK_TEXTS.get(name, most)) for name, item in node.items()}


_MOST_GITHUB_KEYS = 10
_WORKFLOW_BODY = {"ref": _Slot("ref"), "inputs": _Slot("inputs", {})}


class GitHub(_TokenPreset):
    """Dispatches an event of a GitHub repository, or one of its workflows; GitHub can't recognise a repeat.

    :ivar owner: owner of the repository
    :ivar repo: name of the repository
    :ivar event_type: type of the event
    :ivar client_payload: payload of the event, with at most 10 keys; by default ids, counts and times of the commit
    :ivar workflow: file name or id of a workflow to run, instead of an event of the repository
    :ivar ref: branch or tag that the workflow runs on; required with ``workflow``
    :ivar inputs: inputs of the workflow
    :ivar token: token with the right to dispatch; by default the connection's password
    """

    receiver = Receiver(
        base="https://api.github.com",
        path="/repos/{owner}/{repo}/dispatches",
        headers={"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"},
        body={"event_type": _Slot("event_type"), "client_payload": _Slot("client_payload", _EVENT)},
        credential=_BEARER,
        texts={"event_type": 100, "ref": None, "inputs.*": None},
    )

    owner: _Name
    repo: _Name
    event_type: str = "rfr_commit"
    client_payload: JsonTree = None
    workflow: _Name | None = None
    ref: str | None = None
    inputs: dict[str, str] | None = None

    @classmethod
    def contradictions(cls, written: Mapping[str, Any]) -> list[PydanticCustomError]:
        """Refuse parameters of events together with those of workflows, and missing or too many parameters."""
        written_names = {name for name, value in written.items() if value is not None}
        if "workflow" in written_names:
            names, problem = ("eventType", "clientPayload"), ("goes with events of the repository", "leave it out")
        else:
            names, problem = ("ref", "inputs"), ("goes with workflow", "name the workflow")
        problems = [mistake(*problem, at=(name,)) for name in names if name in written_names]
        if "workflow" in written_names and "ref" not in written_names:
            problems.append(mistake("is missing", "write the branch that the workflow runs on", at=("ref",)))
        payload = written.get("clientPayload")
        if isinstance(payload, Mapping) and len(payload) > _MOST_GITHUB_KEYS:
            problems.append(mistake(f"must have at most {_MOST_GITHUB_KEYS} keys", at=("clientPayload",)))
        return problems

    def path(self) -> str:
        """Return the path of repository events, or of the workflow."""
        path = super().path()
        if self.workflow is None:
            return path
        return f"{path.removesuffix('dispatches')}actions/workflows/{quote(str(self.workflow), safe='')}/dispatches"

    def payload(self) -> Any:
        """Return the body of a repository event, or of the workflow."""
        return super().payload() if self.workflow is None else self._filled(_WORKFLOW_BODY)


class PagerDuty(Preset):
    """An alert by PagerDuty's events API, version 2; the delivery id is its key, so a repeat is the same alert.

    :ivar routing_key: key of the integration, which is sent in the body
    :ivar severity: severity of the alert
    :ivar summary: text of the alert
    :ivar source: what the alert is about
    :ivar dedup_key: key by which PagerDuty recognises a repeat
    :ivar custom_details: details; by default ids, names, counts and times of the commit
    """

    receiver = Receiver(
        base="https://events.pagerduty.com",
        path="/v2/enqueue",
        body={
            "routing_key": "{{preset.routing_key}}",
            "event_action": "trigger",
            "dedup_key": _Slot("dedup_key"),
            "payload": {
                "summary": _Slot("summary"),
                "source": _Slot("source"),
                "severity": _Slot("severity"),
                "custom_details": _Slot("custom_details", _EVENT),
            },
        },
        texts={"payload.summary": 1024, "payload.source": None, "dedup_key": 255},
        body_secrets=("routing_key",),
    )

    routing_key: Secret
    severity: _Severity = "info"
    summary: str = _LINE
    source: str = "{{target}}"
    dedup_key: str = "{{delivery_id}}"
    custom_details: JsonTree = None


AnyPreset: TypeAlias = AirflowDagRun | DbtCloud | Slack | Teams | GitHub | PagerDuty | Databricks | Prefect | Dagster
PRESETS: Mapping[str, type[Preset]] = MappingProxyType(
    {
        "airflow-dag-run": AirflowDagRun,
        "dbt-cloud": DbtCloud,
        "slack": Slack,
        "teams": Teams,
        "github": GitHub,
        "pagerduty": PagerDuty,
        "databricks": Databricks,
        "prefect": Prefect,
        "dagster": Dagster,
    }
)
_ALIASES = {"airflow": "airflow-dag-run", "dbt": "dbt-cloud"}


def preset_named(name: str) -> type[Preset]:
    """Return the preset of this name; raise a mistake that names the nearest one."""
    plain = name.strip().lower().replace("_", "-")
    preset = PRESETS.get(_ALIASES.get(plain, plain))
    if preset is None:
        raise mistake("unknown preset", suggestion(plain, PRESETS))
    return preset
