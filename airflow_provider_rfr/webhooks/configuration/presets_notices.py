"""Presets that tell somebody: Slack, GitHub, PagerDuty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, SecretStr, WithJsonSchema
from pydantic_core import PydanticCustomError

from airflow_provider_rfr.webhooks.configuration.mistakes import mistake
from airflow_provider_rfr.webhooks.configuration.preset_base import (
    Name,
    Preset,
    TokenPreset,
    Tree,
    fitted_text,
    segment,
)
from airflow_provider_rfr.webhooks.configuration.presets_jobs import EVENT, LINE
from airflow_provider_rfr.webhooks.configuration.secret_values import Secret, is_sealed_text

MOST_GITHUB_KEYS = 10
MOST_SLACK_TEXT = 3000
MOST_SLACK_TEXTS: Mapping[Any, int] = {"header": 150, "button": 75, "fields": 2000}
"""Characters of a text object, in blocks of that type or below that name."""
SEVERITIES = ("info", "warning", "error", "critical")


class Slack(Preset):
    """An incoming webhook of Slack. Its address is the secret; Slack can't tell a repeat."""

    kind: ClassVar[str] = "slack"
    texts: ClassVar[Mapping[tuple[str, ...], int | None]] = {("text",): 40_000}

    text: str = LINE
    blocks: Tree = None

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
            return {**fitted, "blocks": _cut_blocks(fitted["blocks"], MOST_SLACK_TEXT)}
        return fitted


def _cut_blocks(node: Any, most: int) -> Any:
    """The blocks with their text objects cut to *most* characters, or to what Slack takes at such a place."""
    if isinstance(node, list):
        return [_cut_blocks(each, most) for each in node]
    if not isinstance(node, Mapping):
        return node
    most = MOST_SLACK_TEXTS.get(node.get("type"), most)
    if node.get("type") in ("mrkdwn", "plain_text"):
        return {**node, "text": fitted_text(node.get("text"), most)}
    return {name: _cut_blocks(each, MOST_SLACK_TEXTS.get(name, most)) for name, each in node.items()}


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

    owner: Name
    repo: Name
    event_type: str = "rfr_commit"
    client_payload: Tree = None
    workflow: Name | None = None
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
        if isinstance(payload, Mapping) and len(payload) > MOST_GITHUB_KEYS:
            found.append(mistake(f"must have at most {MOST_GITHUB_KEYS} keys", at=("clientPayload",)))
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
        payload = dict(EVENT) if self.client_payload is None else self.client_payload
        return {"event_type": self.event_type, "client_payload": payload}


def _severity(value: str) -> str:
    if value not in SEVERITIES and not is_sealed_text(value):
        raise mistake(f"must be {', '.join(SEVERITIES[:-1])} or {SEVERITIES[-1]}")
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
        str, AfterValidator(_severity), WithJsonSchema({"enum": list(SEVERITIES), "type": "string"})
    ] = "info"
    summary: str = LINE
    source: str = "{{target}}"
    dedup_key: str = "{{delivery_id}}"
    custom_details: Tree = None

    def path(self) -> str:
        """Of alerts."""
        return "/v2/enqueue"

    def payload(self) -> Any:
        """The alert."""
        details = dict(EVENT) if self.custom_details is None else self.custom_details
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
