"""Presets: address, headers, body, success and idempotency of each receiver."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import TriggerConfigError
from airflow_provider_rfr.lake.commit_event import CommitEvent
from airflow_provider_rfr.webhooks.block import Endpoint, parse_triggers
from airflow_provider_rfr.webhooks.payloads import render_body, template_variables
from airflow_provider_rfr.webhooks.presets import PRESETS, Preset, TokenStep
from airflow_provider_rfr.webhooks.validation import placeholder_events, validate_block
from tests.unit.messages import check_messages, raises

ONE = placeholder_events()[0]
ID = "0123456789abcdef" * 2
EVENT = {
    "delivery_id": ID,
    "materialization": "acmeCo/example/materialization",
    "collections": ["acmeCo/example/collection"],
    "generation": 1,
    "documents": 10,
    "published_from": "2024-01-01T00:00:00Z",
    "published_to": "2024-01-01T00:01:00Z",
    "committed_at": "2024-01-01T00:02:00Z",
}
LINE = f"acmeCo/example/materialization: 10 documents committed ({ID})"


def endpoint(preset: str, parameters: dict[str, Any] | None = None, **fields: Any) -> Endpoint:
    settings = {"preset": preset, **({} if parameters is None else {"with": parameters}), **fields}
    block = parse_triggers({"config": {"X": {"url": "https://h.example", **settings}}})
    validate_block(block)
    return block.endpoints[0]


def preset_of(found: Endpoint) -> Preset:
    assert found.parameters is not None
    return found.parameters


def body(found: Endpoint, event: CommitEvent = ONE) -> Any:
    variables = template_variables(event, delivery_id=ID, attempt=1, trigger_name="X", headers=found.exposed_headers())
    return json.loads(render_body(found, variables))


def refused(preset: Any, parameters: Any = None, **fields: Any) -> list[str]:
    settings = {"preset": preset, **({} if parameters is None else {"with": parameters}), **fields}
    with pytest.raises(TriggerConfigError) as caught:
        parse_triggers({"config": {"X": {"url": "https://h.example", **settings}}})
    assert "hunter2" not in str(caught.value)
    return str(caught.value).splitlines()


def test_an_airflow_dag_run_has_the_delivery_s_id_and_a_conflict_is_delivery() -> None:
    trigger = endpoint("airflow-dag-run", {"dagId": "down stream/x", "note": "by {{trigger_name}}"})
    assert preset_of(trigger).path() == "/api/v2/dags/down%20stream%2Fx/dagRuns"
    assert body(trigger) == {"logical_date": None, "dag_run_id": ID, "conf": EVENT, "note": "by X"}
    assert [status for status in (200, 201, 409, 404, 401, 422, 302) if trigger.accepts(status, b"")] == [200, 201, 409]
    assert trigger.dump()["with"] == {"dagId": "down stream/x", "note": "by {{trigger_name}}"}
    own = endpoint("airflow", {"dag_id": "d", "conf": {"n": "{{sequence}}", "x": None}})
    assert body(own)["conf"] == {"n": 1, "x": None}
    assert "note" not in body(own)


def test_airflow_s_token_is_got_with_a_password() -> None:
    of_connection = preset_of(endpoint("airflow-dag-run", {"dagId": "d"}))
    step = of_connection.token_step("https://h.example/base/", "me", "hunter2")
    assert step == TokenStep("https://h.example/base/auth/token", {"username": "me", "password": "hunter2"})
    assert "hunter2" not in repr(step)
    assert of_connection.token_step("https://h.example", "", "") is None
    own = preset_of(endpoint("airflow", {"dagId": "d", "username": "a", "password": "b", "tokenPath": "/x/token"}))
    assert own.token_step("https://h", "me", "c") == TokenStep("https://h/x/token", {"username": "a", "password": "b"})
    static = preset_of(endpoint("airflow", {"dagId": "d", "token": "t"}))
    assert static.token_step("https://h", "me", "hunter2") is None
    assert static.receiver.credential == ("Authorization", "Bearer {}")


def test_airflow_takes_a_token_or_what_it_takes_to_get_one() -> None:
    check_messages(refused("airflow", {"dagId": "d", "password": "hunter2"}))
    check_messages(refused("airflow", {"dagId": "d", "username": "u", "password": "hunter2", "token": "hunter2"}))
    check_messages(refused("airflow", {"dagId": "d", "tokenPath": "https://evil/"}))


def test_dbt_cloud_hears_a_cause_of_at_most_255_characters() -> None:
    trigger = endpoint("dbt-cloud", {"accountId": 12, "jobId": "34", "gitBranch": "main", "stepsOverride": ["dbt run"]})
    assert preset_of(trigger).path() == "/api/v2/accounts/12/jobs/34/run/"
    assert preset_of(trigger).receiver.credential == ("Authorization", "Token {}")
    assert body(trigger) == {"cause": LINE, "git_branch": "main", "steps_override": ["dbt run"]}
    long = body(trigger, replace(ONE, target_name="x" * 300))["cause"]
    assert len(long) == 255 and long.endswith("…")
    assert preset_of(trigger).receiver.base == "https://cloud.getdbt.com"


def test_slack_hears_a_text_and_blocks() -> None:
    trigger = endpoint("slack")
    assert body(trigger) == {"text": LINE}
    assert preset_of(trigger).path() == "" and preset_of(trigger).receiver.credential is None
    blocks = [{"type": "section", "text": {"type": "mrkdwn", "text": "*{{target}}*"}}]
    sent = body(endpoint("slack", {"text": "{{sequence}}!", "blocks": blocks}))
    assert (sent["text"], sent["blocks"][0]["text"]["text"]) == ("1!", "*example.table*")


def test_a_name_is_no_markup_for_slack() -> None:
    event = replace(ONE, target="<!channel> a&b", collection_names=("<http://evil.example|x>",))
    parameters = {
        "text": "<https://lake.example|{{target}}>: {{join collection_names}}",
        "blocks": [{"type": "section", "text": {"type": "mrkdwn", "text": "{{target}}"}}],
    }
    sent = body(endpoint("slack", parameters), event)
    named = "&lt;!channel&gt; a&amp;b"
    assert sent["text"] == f"<https://lake.example|{named}>: &lt;http://evil.example|x&gt;"
    assert sent["blocks"][0]["text"]["text"] == named


def test_text_objects_of_slack_s_blocks_are_cut_to_what_it_takes() -> None:
    def text(kind: str) -> dict[str, Any]:
        return {"type": kind, "text": "{{target}}"}

    blocks = [
        {"type": "header", "text": text("plain_text")},
        {"type": "section", "text": text("mrkdwn"), "fields": [text("mrkdwn")]},
        {"type": "context", "elements": [text("mrkdwn")]},
        {"type": "actions", "elements": [{"type": "button", "text": text("plain_text"), "value": "{{target}}"}]},
    ]
    sent = body(endpoint("slack", {"blocks": blocks}), replace(ONE, target="x" * 5000))["blocks"]
    assert (len(sent[0]["text"]["text"]), len(sent[1]["text"]["text"])) == (150, 3000)
    assert (len(sent[1]["fields"][0]["text"]), len(sent[2]["elements"][0]["text"])) == (2000, 3000)
    button = sent[3]["elements"][0]
    assert (len(button["text"]["text"]), len(button["value"])) == (75, 5000)
    cut = body(endpoint("slack", {"blocks": blocks[:1]}), replace(ONE, target="x" * 146 + "&" * 9))["blocks"]
    assert cut[0]["text"]["text"] == "x" * 146 + "…", "no half of an entity is left"
    assert body(endpoint("slack", {"blocks": [{"type": []}]}))["blocks"] == [{"type": []}], "Slack's to refuse"


def test_teams_hears_a_card() -> None:
    trigger = endpoint("teams", {"text": "{{sequence}}"})
    (attachment,) = body(trigger)["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    assert attachment["content"]["body"] == [{"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": "1"}]}]
    assert preset_of(trigger).path() == "" and preset_of(trigger).receiver.credential is None
    card = {"type": "AdaptiveCard", "version": "1.5", "body": [{"type": "TextBlock", "text": "{{target}}"}]}
    (attachment,) = body(endpoint("teams", {"card": card}))["attachments"]
    assert attachment["content"] == {**card, "body": [{"type": "TextBlock", "text": "example.table"}]}


def test_an_error_that_teams_answers_with_200_is_no_delivery() -> None:
    trigger = endpoint("teams")
    refused_with_200 = b"Webhook message delivery failed with error: Microsoft Teams endpoint returned HTTP error 413"
    assert trigger.accepts(202, b"")
    assert not trigger.accepts(200, refused_with_200)
    connector = endpoint("teams", success={"pointer": "", "equals": 1})
    assert connector.accepts(200, b"1")
    assert not connector.accepts(200, refused_with_200)


def test_github_dispatches_an_event_or_a_workflow() -> None:
    trigger = endpoint("github", {"owner": "acme", "repo": "dbt", "token": "hunter2"})
    assert preset_of(trigger).path() == "/repos/acme/dbt/dispatches"
    assert preset_of(trigger).receiver.headers["X-GitHub-Api-Version"] == "2022-11-28"
    assert body(trigger) == {"event_type": "rfr_commit", "client_payload": EVENT}
    assert trigger.accepts(204, b"")
    repo = {"owner": "acme", "repo": "dbt"}
    flow = endpoint("github", {**repo, "workflow": "a b.yml", "ref": "main", "inputs": {"g": "{{lake}}"}})
    assert preset_of(flow).path() == "/repos/acme/dbt/actions/workflows/a%20b.yml/dispatches"
    assert body(flow) == {"ref": "main", "inputs": {"g": "rfr"}}
    check_messages(refused("github", {**repo, "workflow": "w", "eventType": "x"}))
    check_messages(refused("github", {**repo, "inputs": {}}))
    check_messages(refused("github", {**repo, "clientPayload": {f"k{n}": n for n in range(11)}}))


def test_pagerduty_s_key_is_in_the_body_and_its_alert_has_the_delivery_s_id() -> None:
    trigger = endpoint("pagerduty", {"routingKey": "hunter2", "severity": "warning"})
    assert body(trigger) == {
        "routing_key": "hunter2",
        "event_action": "trigger",
        "dedup_key": ID,
        "payload": {"summary": LINE, "source": "example.table", "severity": "warning", "custom_details": EVENT},
    }
    assert len(body(trigger, replace(ONE, target_name="x" * 2000))["payload"]["summary"]) == 1024
    assert preset_of(trigger).path() == "/v2/enqueue"
    assert "hunter2" not in repr(trigger)
    assert list(trigger.secret_texts()) == ["https://h.example", "hunter2"]
    check_messages(refused("pagerduty", {"routingKey": "hunter2", "severity": "x"}))


def test_databricks_gets_a_token_of_idempotency_and_parameters_of_text() -> None:
    trigger = endpoint("databricks", {"jobId": 5, "jobParameters": {"gen": "g{{generation}}"}})
    assert preset_of(trigger).path() == "/api/2.2/jobs/run-now"
    assert body(trigger) == {"job_id": 5, "idempotency_token": ID, "job_parameters": {"gen": "g1"}}
    assert body(endpoint("databricks", {"jobId": "77"}))["job_id"] == 77
    assert body(endpoint("databricks", {"jobId": 7})) == {"job_id": 7, "idempotency_token": ID}
    for wrong in ("x", True, 1.5, -1, "1" * 30, ""):
        check_messages(refused("databricks", {"jobId": wrong}))


def test_what_has_to_be_text_is_text_also_where_it_is_one_expression() -> None:
    settings = {"n": "{{sequence}}", "all": "{{collection_names}}"}
    expected = {"n": "1", "all": '["acmeCo/example/collection"]'}
    assert body(endpoint("databricks", {"jobId": 5, "jobParameters": settings}))["job_parameters"] == expected
    assert body(endpoint("slack", {"text": "{{sequence}}"})) == {"text": "1"}
    assert body(endpoint("airflow", {"dagId": "d", "note": "{{totals}}"}))["note"].startswith('{"documents": 10')
    flow = {"owner": "o", "repo": "r", "workflow": "w", "ref": "main", "inputs": settings}
    assert body(endpoint("github", flow))["inputs"] == expected
    assert body(endpoint("prefect", {"deploymentId": "d", "tags": ["{{attempt}}"]}))["tags"] == ["1"]
    launched = body(endpoint("dagster", {**NEEDED["dagster"], "tags": {"n": "{{sequence}}"}}))
    tags = launched["variables"]["executionParams"]["executionMetadata"]["tags"]
    assert tags[-1] == {"key": "n", "value": "1"}
    alert = body(endpoint("pagerduty", {"routingKey": "k", "summary": "{{map_index}}"}), replace(ONE, map_index=None))
    assert alert["payload"]["summary"] == ""


def test_prefect_gets_a_key_of_idempotency() -> None:
    trigger = endpoint("prefect", {"deploymentId": "u-1", "parameters": {"e": "{{totals}}"}, "tags": ["{{target}}"]})
    assert preset_of(trigger).path() == "/deployments/u-1/create_flow_run"
    assert body(trigger) == {
        "parameters": {"e": {"documents": 10, "bytes": 1000, "tables": 1}},
        "tags": ["example.table"],
        "idempotency_key": ID,
    }
    assert body(endpoint("prefect", {"deploymentId": "u-1"})) == {"idempotency_key": ID}


def test_dagster_s_answer_decides_since_it_is_always_200() -> None:
    settings = {"repositoryLocationName": "loc", "jobName": "job", "runConfig": {"x": "{{sequence}}"}}
    trigger = endpoint("dagster", {**settings, "tags": {"a": "b"}})
    assert preset_of(trigger).path() == "/graphql"
    sent = body(trigger)
    tags = {"rfr/delivery_id": ID, "rfr/target": "example.table", "a": "b"}
    assert sent["query"].startswith("mutation LaunchRun($executionParams: ExecutionParams!)")
    assert sent["variables"]["executionParams"] == {
        "selector": {"repositoryLocationName": "loc", "repositoryName": "__repository__", "jobName": "job"},
        "runConfigData": {"x": 1},
        "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in tags.items()]},
    }
    good = b'{"data": {"launchRun": {"__typename": "LaunchRunSuccess", "run": {"runId": "1"}}}}'
    assert trigger.accepts(200, good)
    assert not trigger.accepts(200, b'{"data": {"launchRun": {"__typename": "PythonError"}}}')
    assert not trigger.accepts(200, b'{"errors": []}')
    assert not trigger.accepts(500, good)
    assert preset_of(trigger).receiver.credential == ("Dagster-Cloud-Api-Token", "{}")


NEEDED: dict[str, dict[str, Any]] = {
    "airflow-dag-run": {"dagId": "d"},
    "dbt-cloud": {"accountId": 1, "jobId": 2},
    "slack": {},
    "teams": {},
    "github": {"owner": "o", "repo": "r"},
    "pagerduty": {"routingKey": "k"},
    "databricks": {"jobId": 1},
    "prefect": {"deploymentId": "d"},
    "dagster": {"repositoryLocationName": "l", "jobName": "j"},
}


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_s_name_has_no_case_its_parameters_are_checked_and_no_value_breaks_its_body(name: str) -> None:
    trigger = endpoint(name.upper().replace("-", "_"), NEEDED[name])
    assert all(body(trigger, event) for event in placeholder_events())
    (line,) = refused(name, {**NEEDED[name], "nonsens": 1})
    assert line.startswith("trigger X: with.nonsens: unknown field; ")
    for missing in NEEDED[name]:
        settings = {key: value for key, value in NEEDED[name].items() if key != missing}
        assert refused(name, settings) == [f"trigger X: with.{missing}: is missing"]


def test_parameters_that_are_left_out_altogether_are_missing_where_they_are_written() -> None:
    check_messages(refused("airflow-dag-run"))


def test_a_preset_that_is_none_is_told_with_the_nearest() -> None:
    check_messages(refused("slak"))
    check_messages(refused("carrier pigeon"))
    check_messages(refused(5))


def test_presets_with_an_address_of_their_own_need_none() -> None:
    for name in PRESETS:
        document = {"config": {"X": {"preset": name, "with": NEEDED[name]}}}
        if PRESETS[name].receiver.base:
            assert parse_triggers(document).endpoints[0].url is None
        else:
            with raises(TriggerConfigError):
                parse_triggers(document)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://h/api/v2/dags/d/dagRuns", "invalid URL: the preset adds its path to it; write the address up to"),
        ("https://h/?x=hunter2", "invalid URL: the preset adds its path to it, so it has no query"),
    ],
)
def test_the_address_of_a_preset_ends_before_its_path(url: str, told: str) -> None:
    (line,) = refused("airflow", {"dagId": "d"}, url=url)
    assert line.startswith(f"trigger X: {told}")


@pytest.mark.parametrize("name", ["", "..", "a\nb", "{{x}}", "x" * 501, None, True])
def test_names_in_addresses_are_plain_names(name: Any) -> None:
    (line,) = refused("airflow", {"dagId": name})
    assert line.startswith("trigger X: with.dagId: ")


def test_what_an_endpoint_says_itself_goes_before_its_preset() -> None:
    trigger = endpoint("airflow", {"dagId": "d"}, success={"status": [200]}, payload={"own": "{{delivery_id}}"})
    assert body(trigger) == {"own": ID}
    assert not trigger.accepts(409, b"")
    templated = endpoint("pagerduty", {"routingKey": "hunter2"}, payloadTemplate='{"k": "{{preset.routing_key}}"}')
    assert body(templated) == {"k": "hunter2"}


def test_the_stored_digest_of_an_address_holds_names_and_no_secret() -> None:
    def digest(password: str, dag_id: str = "d") -> str:
        parameters = {"dagId": dag_id, "username": "robot", "password": password, "conf": {"key": password}}
        return endpoint("airflow-dag-run", parameters, url="https://a.example").address_digest

    assert digest("hunter1") == digest("hunter2") != digest("hunter2", "other")
    keys = [endpoint("pagerduty", {"routingKey": key}).address_digest for key in ("a", "b")]
    assert keys[0] == keys[1]
    jobs = [endpoint("databricks", {"jobId": job}, url="https://a.example").address_digest for job in (1, 2)]
    assert jobs[0] != jobs[1]


def test_no_other_secret_of_a_preset_can_be_printed() -> None:
    parameters = {"dagId": "d", "username": "u", "password": "hunter2", "conf": {"x": "{{preset.password}}"}}
    with pytest.raises(TriggerConfigError) as caught:
        endpoint("airflow", parameters)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name in sorted(PRESETS) if "token" in PRESETS[name].model_fields])
def test_a_token_could_be_sent_in_a_header(name: str) -> None:
    for token in ("hunter2\r\nX: y", "hunter2€", " hunter2", "hunter2\x00"):
        (line,) = refused(name, {**NEEDED[name], "token": token})
        assert line.startswith("trigger X: with.token: ")
