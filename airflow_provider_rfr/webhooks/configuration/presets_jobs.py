"""Presets that start a run of something: Airflow, dbt Cloud, Databricks, Prefect, Dagster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic_core import PydanticCustomError

from airflow_provider_rfr.webhooks.configuration.mistakes import mistake
from airflow_provider_rfr.webhooks.configuration.preset_base import (
    BEARER,
    Name,
    Number,
    Preset,
    Token,
    TokenPreset,
    TokenStep,
    Tree,
    UrlPath,
    segment,
    without_nothing,
)
from airflow_provider_rfr.webhooks.configuration.secret_values import Secret
from airflow_provider_rfr.webhooks.configuration.success import Success

EVENT: Mapping[str, Any] = {
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
LINE = "{{materialization_name}}: {{totals.documents}} documents committed ({{delivery_id}})"


class AirflowDagRun(Preset):
    """Starts a DAG run of Airflow 3, whose run id is the delivery id: a repeat is answered with 409.

    :ivar conf: of the run
    :ivar username: to get a token with, as the password; without them it is the connection's
    :ivar token: sent as it is, where one is at hand that does not expire
    :ivar token_path: where tokens are got, below the address
    """

    kind: ClassVar[str] = "airflow-dag-run"
    accepted: ClassVar[Success] = Success(status=("2xx", 409))
    credential: ClassVar[tuple[str, str] | None] = BEARER
    texts: ClassVar[Mapping[tuple[str, ...], int | None]] = {("note",): 1000}
    idempotent: ClassVar[str] = "dag_run_id"

    dag_id: Name
    conf: Tree = None
    note: str | None = None
    username: Secret | None = None
    password: Secret | None = None
    token: Token | None = None
    token_path: UrlPath = "/auth/token"

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
        conf = dict(EVENT) if self.conf is None else self.conf
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

    account_id: Name
    job_id: Name
    cause: str = LINE
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
        return without_nothing({name: getattr(self, name) for name in names})


class Databricks(TokenPreset):
    """Runs a job of Databricks; the same token of idempotency gives back the run that is there."""

    kind: ClassVar[str] = "databricks"
    texts: ClassVar[Mapping[tuple[str, ...], int | None]] = {("job_parameters", "*"): None}
    idempotent: ClassVar[str] = "idempotency_token"

    job_id: Number
    job_parameters: dict[str, str] | None = None

    def path(self) -> str:
        """Of the jobs API."""
        return "/api/2.2/jobs/run-now"

    def payload(self) -> Any:
        """Parameters are text, and none are sent unless they are given: a job may take them in another way."""
        run = {"job_id": self.job_id, "idempotency_token": "{{delivery_id}}", "job_parameters": self.job_parameters}
        return without_nothing(run)


class Prefect(TokenPreset):
    """Starts a flow run of a Prefect deployment; the same idempotency key gives back the run that is there."""

    kind: ClassVar[str] = "prefect"
    texts: ClassVar[Mapping[tuple[str, ...], int | None]] = {("name",): None, ("tags", "*"): None}
    idempotent: ClassVar[str] = "idempotency_key"

    deployment_id: Name
    name: str | None = None
    parameters: Tree = None
    tags: list[str] | None = None

    def path(self) -> str:
        """Below the address of the API, which in Prefect Cloud names account and workspace."""
        return f"/deployments/{segment(self.deployment_id)}/create_flow_run"

    def payload(self) -> Any:
        """Parameters only where they are given: a flow refuses those it has not."""
        given = {"name": self.name, "parameters": self.parameters, "tags": self.tags}
        return {**without_nothing(given), "idempotency_key": "{{delivery_id}}"}


LAUNCH = """
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

    repository_location_name: Name
    repository_name: Name = "__repository__"
    job_name: Name
    run_config: Tree = None
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
        return {"query": LAUNCH, "operationName": "LaunchRun", "variables": {"executionParams": parameters}}
