"""From a statement to the restart of what uses the connection; the tasks are played, the control store is real."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_rfr.connections import alteration
from airflow_provider_rfr.connections._journal import _DIED, _RECOVERED, _REPLACED, _UNKNOWN, Journal
from airflow_provider_rfr.connections.alteration import _OVERTAKEN, dependents_of
from airflow_provider_rfr.connections.types import Definition
from airflow_provider_rfr.exceptions import (
    AlterationRefusedError,
    ConnectionConflictError,
    ConnectionNotFoundError,
    ConnectionRightsError,
    ConnectionValidationError,
)
from airflow_provider_rfr.store.connections import ConnectionNotes
from tests.unit.connections.worlds import CANARY, HASHES, Bench, ends, verdicts
from tests.unit.messages import check_messages, raises

API = Definition("api", "rfr_api", host="http://one", password=CANARY)
OTHER = Definition("other", "rfr_api", host="http://other", password=CANARY)
TUNNEL = Definition("tunnel", "ssh", host="bastion")
BROKER = Definition("broker", "kafka", host="broker", password=CANARY, extra={"ssh_conn_id": "tunnel"})
SCHEMAS = Definition("schemas", "http", host="http://schemas")
MOVE = "ALTER CONNECTION api SET (host = 'http://two')"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path, API, OTHER, TUNNEL, BROKER, SCHEMAS)
    made.shelf.secrets = {"env:NEW": "new-secret", "env:OLD": CANARY}
    return made


def host(bench: Bench) -> str | None:
    return bench.shelf.connections["api"].host


@pytest.mark.parametrize("is_identified", [True, False])
@pytest.mark.parametrize(
    ("change", "dead", "extra"),
    [("SET (host = 'http://two')", "http://two", {"test_path": "/ok"}), ("DROP (test_path)", "http://one", {})],
)
def test_settings_that_do_not_work_change_and_stop_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, change: str, dead: str, extra: dict[str, str], is_identified: bool
) -> None:
    before = bench.shelf.connections["api"] = replace(API, extra={"test_path": "/ok"})
    bench.run("load", "api")
    bench.shelf.dead.add(dead)
    if not is_identified:
        monkeypatch.setattr(bench.shelf, "identify", lambda definition: None)
    with raises(ConnectionValidationError):
        bench.alter(f"ALTER CONNECTION api {change} WITH (DRAIN_TIMEOUT = 0)")
    assert bench.shelf.connections["api"] == before
    assert [candidate.extra for candidate in bench.shelf.tried] == ([] if is_identified else [extra])
    assert not bench.use("load").is_stale
    (row,) = bench.audit()
    assert (row.state, row.detail) == ("refused", f"nothing answers at {dead}")


def test_unchecked_settings_stall_the_task_and_the_next_alter_repairs_it(bench: Bench) -> None:
    bench.run("load", "api")
    bench.shelf.dead.add("http://dead")
    bench.obey("load")
    bench.alter("ALTER CONNECTION api SET (host = 'http://dead') WITH (VALIDATE = false)")
    assert host(bench) == "http://dead"
    bench.end("load", "stalled", "up_for_retry", "SourceError")
    assert bench.use("load").error == "it failed"
    outcome = bench.alter("ALTER CONNECTION api SET (host = 'http://one')")
    assert bench.shelf.started == ["load"]
    assert ends(outcome) == {"load": "started"}


def test_a_missing_connection_is_an_error_unless_it_may_be_missing(bench: Bench) -> None:
    with raises(ConnectionNotFoundError):
        bench.alter("ALTER CONNECTION none SET (a = 1, a = 2)")
    assert bench.alter("ALTER CONNECTION IF EXISTS none SET (a = 1, a = 2)").result == "missing"


def test_exactly_what_uses_the_connection_is_restarted_however_far_away(bench: Bench) -> None:
    bench.run("source", "broker")
    bench.run("sink", "broker", "schemas", kind="sink")
    bench.run("elsewhere", "other")
    bench.obey("source", "sink", "elsewhere")
    outcome = bench.alter("ALTER CONNECTION tunnel SET (host = 'bastion2')")
    assert verdicts(outcome) == {"source": "restart", "sink": "restart"}
    assert ends(outcome) == {"source": "restarted", "sink": "restarted"}
    assert outcome.dependents[0].via == ("broker", "tunnel")
    assert (bench.use("source").token, bench.use("sink").token, bench.use("elsewhere").token) == (2, 2, 1)


def test_a_connection_that_a_sink_alone_uses_besides_its_own_restarts_that_sink(bench: Bench) -> None:
    bench.run("source", "broker")
    bench.run("sink", "broker", "schemas", kind="sink")
    bench.obey("source", "sink")
    outcome = bench.alter("ALTER CONNECTION schemas SET (host = 'http://schemas2')")
    assert verdicts(outcome) == {"sink": "restart"}
    assert (bench.use("source").token, bench.use("sink").token) == (1, 2)


def test_a_tunnel_that_was_added_without_a_restart_counts_all_the_same(bench: Bench) -> None:
    bench.run("load", "other")
    bench.shelf.connections["other"] = replace(OTHER, extra={"ssh_conn_id": "tunnel"})
    (dependent,) = dependents_of(bench.world, "tunnel")
    assert (dependent.use.task.dag_id, dependent.via) == ("load", ("other", "tunnel"))


def test_a_change_to_the_same_settings_restarts_nothing_and_the_audit_says_so(bench: Bench) -> None:
    bench.run("load", "api")
    outcome = bench.alter("ALTER CONNECTION api SET (host = 'http://one')")
    assert (outcome.result, outcome.changes, verdicts(outcome)) == ("unchanged", (), {"load": "unaffected"})
    assert bench.audit()[0].state == "unchanged"
    assert not bench.use("load").is_stale
    assert bench.shelf.tried == []


def test_one_that_cant_adopt_the_change_refuses_it_for_all_before_anything_stops(bench: Bench) -> None:
    bench.run("direct", "other", fixed={"other": ["extra.ssh_conn_id"]})
    bench.run("able", "other")
    with raises(AlterationRefusedError):
        bench.alter("ALTER CONNECTION other SET (ssh_conn_id = 'tunnel')")
    assert bench.shelf.connections["other"] == OTHER
    assert not bench.use("able").is_stale
    assert bench.alter("ALTER CONNECTION other SET (host = 'http://o2') WITH (RESTART = false)").result == "applied"


def test_one_that_could_not_go_on_refuses_the_change(bench: Bench) -> None:
    bench.run("load", "api", refuses=["new-secret"])
    with raises(ConnectionValidationError):
        bench.alter("ALTER CONNECTION api SET (password = SECRET 'env:NEW')")
    assert bench.shelf.connections["api"].password == CANARY


def test_what_waits_to_be_tried_again_is_started_now_and_what_failed_by_itself_is_not(bench: Bench) -> None:
    for dag, state, kind in (
        ("waits", "up_for_retry", "SourceError"),
        ("failed", "failed", "AuthenticationError"),
        ("schema", "failed", "SchemaError"),
        ("cluster", "deferred", None),
    ):
        bench.run(dag, "api")
        bench.end(dag, "deferred" if dag == "cluster" else "stalled", state, kind)
    bench.run("done", "api")
    bench.end("done", "idle", "success")
    outcome = bench.alter(MOVE)
    assert sorted(bench.shelf.started) == ["cluster", "failed", "waits"]
    assert ends(outcome)["schema"].startswith("stays failed: SchemaError")
    assert ends(outcome)["done"] == "next run"


@pytest.mark.parametrize(
    ("option", "words", "is_stale"),
    [("DRAIN_TIMEOUT = 0", "takes the new settings by itself", True), ("RESTART = false", "until its next run", False)],
)
def test_a_task_that_does_not_stop_in_time_or_is_not_asked_to_is_told_of(
    bench: Bench, option: str, words: str, is_stale: bool
) -> None:
    bench.run("load", "api")
    assert words in ends(bench.alter(f"{MOVE} WITH ({option})"))["load"]
    assert bench.use("load").is_stale is is_stale


def test_a_dry_run_says_everything_and_does_nothing(bench: Bench) -> None:
    bench.run("load", "api")
    change = "SET (host = 'http://two', password = SECRET 'env:NEW')"
    outcome = bench.alter(f"ALTER CONNECTION api {change} WITH (DRY_RUN = true)")
    text = "\n".join(outcome.lines())
    assert "host: http://one -> http://two" in text
    assert "password: *** -> ***" in text
    assert "restart refresh load.refresh (run)" in text
    assert (host(bench), bench.audit(), bench.use("load").is_stale) == ("http://one", [], False)


def test_of_two_at_once_one_gets_a_conflict_that_may_be_tried_again(bench: Bench) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        assert go_on.wait(30)

    bench.shelf.before_commit = wait
    first = threading.Thread(target=bench.alter, args=(MOVE,))
    first.start()
    assert inside.wait(30)
    with raises(ConnectionConflictError):
        bench.alter("ALTER CONNECTION api SET (host = 'http://three')")
    go_on.set()
    first.join()
    assert host(bench) == "http://two"
    bench.alter("ALTER CONNECTION api SET (host = 'http://three')")
    assert host(bench) == "http://three"


def test_a_change_that_somebody_else_stored_meanwhile_is_not_overwritten(bench: Bench) -> None:
    by_hand = replace(API, login="by-hand")
    bench.shelf.before_commit = lambda: bench.shelf.connections.update(api=by_hand)
    with pytest.raises(ConnectionConflictError):
        bench.alter(MOVE)
    assert bench.shelf.connections["api"] == by_hand
    assert bench.audit()[0].state == "conflict"


def test_who_dies_after_the_commit_is_finished_by_the_same_statement_again(bench: Bench) -> None:
    bench.run("load", "api")
    with bench.killed("after", "commit"):
        bench.alter(MOVE)
    assert host(bench) == "http://two"
    assert not bench.use("load").is_stale
    bench.obey("load")
    outcome = bench.alter(MOVE)
    assert (outcome.result, ends(outcome)) == ("unchanged", {"load": "restarted"})


@pytest.mark.parametrize(("stored", "detail"), [("http://two", _RECOVERED), (None, _DIED), ("http://edit", _UNKNOWN)])
def test_the_audit_learns_what_became_of_one_that_died(bench: Bench, stored: str | None, detail: str) -> None:
    journal = Journal(bench.store, "api", "who", "text")
    journal.__enter__()
    journal.intend({}, HASHES.of(API), HASHES.of(replace(API, host="http://two")))
    if stored is not None:
        bench.shelf.connections["api"] = replace(API, host=stored)
    bench.lose_leases()
    bench.alter("ALTER CONNECTION api SET (host = 'http://three')")
    assert [row.detail for row in bench.audit()] == [None, detail]


def moves(bench: Bench) -> list[dict[str, object]]:
    with bench.store.read() as connection:
        return ConnectionNotes(connection, "api").former_places(HASHES.of(bench.shelf.connections["api"]))


def places(bench: Bench) -> list[object]:
    """Hosts to which the connection led before, as a refresh is told."""
    return [place.get("host") for place in moves(bench)]


def test_what_was_begun_at_a_former_address_is_known_to_be_the_same_until_somebody_edits_by_hand(bench: Bench) -> None:
    for number in (2, 3):
        bench.alter(f"ALTER CONNECTION api SET (host = 'http://{number}')")
    bench.alter("ALTER CONNECTION api SET (password = SECRET 'env:NEW')")
    assert places(bench) == ["http://one", "http://2"]
    bench.alter("ALTER CONNECTION api SET (host = 'http://3')")
    assert places(bench) == ["http://one", "http://2"]
    bench.shelf.connections["api"] = replace(API, host="http://by-hand")
    assert places(bench) == []


def test_a_task_that_begins_while_the_change_is_stored_is_restarted_if_it_read_the_old_settings(bench: Bench) -> None:
    def begin() -> None:
        bench.run("new", "api")

    bench.shelf.before_commit = begin
    bench.obey("new")
    assert ends(bench.alter(MOVE)) == {"new": "restarted"}
    assert bench.use("new").token == 2


def test_one_that_was_paused_after_the_commit_leaves_all_to_the_one_that_took_over(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run("load", "api")
    commit = bench.shelf.commit

    def paused(expected: str, candidate: Definition) -> None:
        commit(expected, candidate)
        monkeypatch.setattr(bench.shelf, "commit", commit)
        bench.lose_leases()
        bench.alter(
            "ALTER CONNECTION api SET (host = 'http://three', password = SECRET 'env:NEW') WITH (DRAIN_TIMEOUT = 0)"
        )

    monkeypatch.setattr(bench.shelf, "commit", paused)
    outcome = bench.alter(f"{MOVE} WITH (DRAIN_TIMEOUT = 0)")
    assert (outcome.result, ends(outcome)) == ("applied", {"load": _OVERTAKEN})
    assert (host(bench), places(bench)) == ("http://three", ["http://one", "http://two"])
    assert bench.references("api") == {"password": "env:NEW"}
    use = bench.use("load").of("api")
    assert use is not None and use.wanted == HASHES.of(bench.shelf.connections["api"])
    assert [(row.state, row.detail) for row in bench.audit()] == [("applied", None), ("applied", _RECOVERED)]


def test_one_that_was_paused_after_the_commit_and_edited_by_hand_says_that_it_was_stored(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = bench.shelf.commit

    def paused(expected: str, candidate: Definition) -> None:
        commit(expected, candidate)
        monkeypatch.setattr(bench.shelf, "commit", commit)
        bench.lose_leases()
        journal = Journal(bench.store, "api", "who", "text").__enter__()
        bench.shelf.connections["api"] = replace(API, host="http://by-hand")
        journal.__exit__(None, None, None)

    monkeypatch.setattr(bench.shelf, "commit", paused)
    bench.alter(MOVE)
    row = bench.audit()[-1]
    assert (row.state, row.detail) == ("applied", _REPLACED)


@pytest.mark.parametrize("when", ["before", "after"])
def test_one_whose_lease_was_taken_by_an_alteration_that_failed_does_the_rest_itself(
    bench: Bench, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run("load", "api")
    bench.obey("load")
    bench.shelf.dead.add("http://dead")
    commit = bench.shelf.commit

    def paused(expected: str, candidate: Definition) -> None:
        if when == "after":
            commit(expected, candidate)
        bench.lose_leases()
        with pytest.raises(ConnectionValidationError):
            bench.alter("ALTER CONNECTION api SET (host = 'http://dead')")
        assert bench.audit()[-1].detail == {"before": _DIED, "after": _RECOVERED}[when]
        if when == "before":
            commit(expected, candidate)

    monkeypatch.setattr(bench.shelf, "commit", paused)
    outcome = bench.alter("ALTER CONNECTION api SET (host = 'http://two', password = SECRET 'env:NEW')")
    assert (host(bench), outcome.result, ends(outcome)) == ("http://two", "applied", {"load": "restarted"})
    assert (bench.references("api"), places(bench)) == ({"password": "env:NEW"}, ["http://one"])
    assert [(row.state, row.detail) for row in bench.audit()][1:] == [("applied", None)]


def test_another_upstream_is_refused_unless_it_is_wanted_and_then_all_is_read_anew(bench: Bench) -> None:
    bench.shelf.upstreams = {"http://one": "shop", "http://two": "another shop", "http://moved": "shop"}
    bench.run("load", "api")
    with raises(ConnectionValidationError):
        bench.alter(MOVE)
    assert host(bench) == "http://one"
    bench.alter("ALTER CONNECTION api SET (host = 'http://moved') WITH (DRAIN_TIMEOUT = 0)")
    assert places(bench) == ["http://one"]
    bench.shelf.dead.add("http://moved")
    with raises(ConnectionValidationError):
        bench.alter(MOVE)
    bench.alter(f"{MOVE} WITH (NEW_IDENTITY = true, DRAIN_TIMEOUT = 0)")
    (place,) = moves(bench)
    assert list(place) == ["upstream"]


def test_another_upstream_stays_known_however_the_connection_is_edited_since(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alteration, "_MOST_PLACES", 1)
    bench.alter(f"{MOVE} WITH (NEW_IDENTITY = true)")
    named = moves(bench)
    assert [list(place) for place in named] == [["upstream"]]
    bench.shelf.connections["api"] = by_hand = replace(API, host="http://by-hand")
    assert moves(bench) == named
    bench.alter("ALTER CONNECTION api SET (host = 'http://by-hand')")
    assert moves(bench) == named
    with bench.killed("before", "commit"):
        bench.alter(f"{MOVE} WITH (NEW_IDENTITY = true)")
    assert (bench.shelf.connections["api"], moves(bench)) == (by_hand, named)
    bench.lose_leases()
    for number in range(4):
        bench.alter(f"ALTER CONNECTION api SET (host = 'http://{number}')")
    assert moves(bench)[:1] == named
    assert places(bench)[1:] == ["http://by-hand", "http://2"]
    bench.alter("ALTER CONNECTION api SET (host = 'http://third') WITH (NEW_IDENTITY = true)")
    (third,) = moves(bench)
    assert list(third) == ["upstream"]
    assert third not in named


def test_rights_come_before_any_secret_is_read(bench: Bench) -> None:
    bench.alter("ALTER CONNECTION api SET (password = SECRET 'env:OLD')")
    bench.shelf.secrets_read.clear()
    bench.shelf.forbidden_secrets.add("env:OLD")
    for options in ("", " WITH (VALIDATE = false)"):
        with raises(ConnectionRightsError):
            bench.alter(MOVE + options)
    assert bench.shelf.secrets_read == []
    bench.alter("ALTER CONNECTION api DROP (password)")
    assert bench.shelf.connections["api"].password is None


def test_a_reference_that_was_removed_is_forgotten(bench: Bench) -> None:
    bench.alter("ALTER CONNECTION api SET (password = SECRET 'env:NEW')")
    assert bench.references("api") == {"password": "env:NEW"}
    bench.alter("ALTER CONNECTION api RESET (password)")
    del bench.shelf.secrets["env:NEW"]
    bench.alter(MOVE)
    assert bench.references("api") == {}


def test_a_secret_with_a_new_value_under_the_same_reference_restarts_what_uses_it(bench: Bench) -> None:
    bench.alter("ALTER CONNECTION api SET (password = SECRET 'env:NEW')")
    bench.run("load", "api")
    bench.obey("load")
    bench.shelf.secrets["env:NEW"] = "rotated"
    outcome = bench.alter("ALTER CONNECTION api SET (password = SECRET 'env:NEW')")
    assert ends(outcome) == {"load": "restarted"}
    assert bench.shelf.connections["api"].password == "rotated"


def test_a_secret_that_the_statement_does_not_name_stays_as_somebody_changed_it(bench: Bench) -> None:
    bench.alter("ALTER CONNECTION api SET (password = SECRET 'env:NEW')")
    bench.shelf.connections["api"] = replace(bench.shelf.connections["api"], password="by-hand")
    bench.shelf.secrets_read.clear()
    outcome = bench.alter(MOVE)
    assert [change.option for change in outcome.changes] == ["host"]
    assert bench.shelf.connections["api"].password == "by-hand"
    assert bench.shelf.secrets_read == []


def test_an_object_goes_with_the_secrets_in_it(bench: Bench) -> None:
    bench.alter("ALTER CONNECTION api SET (extra.secrets.pin = SECRET 'env:NEW')")
    bench.alter("ALTER CONNECTION api DROP (extra.secrets)")
    assert bench.shelf.connections["api"].extra == {}
    assert bench.references("api") == {}


def test_a_former_address_is_noted_without_the_credentials_in_it(bench: Bench) -> None:
    bench.shelf.connections["api"] = replace(API, host=f"https://me:{CANARY}@one")
    bench.alter(MOVE)
    assert places(bench) == ["https://me:***@one"]


def test_the_owner_of_a_tunnel_cant_send_the_secrets_of_others_elsewhere(bench: Bench) -> None:
    bench.run("source", "broker")
    bench.shelf.forbidden.add("broker")
    with raises(ConnectionRightsError):
        bench.alter("ALTER CONNECTION tunnel SET (host = 'mine')")
    assert bench.shelf.connections["tunnel"] == TUNNEL
    bench.alter("ALTER CONNECTION tunnel SET (description = 'the bastion')")


def test_who_may_not_edit_a_connection_can_neither_alter_nor_refer_to_it(bench: Bench) -> None:
    bench.shelf.forbidden.add("tunnel")
    with raises(ConnectionRightsError):
        bench.alter("ALTER CONNECTION tunnel SET (host = 'mine')")
    with raises(ConnectionRightsError):
        bench.alter("ALTER CONNECTION api SET (ssh_conn_id = 'tunnel')")


def test_the_audit_says_who_when_what_and_what_became_of_it(bench: Bench) -> None:
    bench.run("load", "api")
    bench.obey("load")
    bench.alter("ALTER CONNECTION api SET (host = 'http://two', password = :new)", {"new": "canary-param"})
    (row,) = bench.audit()
    assert (row.actor, row.state, row.validated) == ("tester", "applied", True)
    assert row.options["host"] == {"before": "http://one", "after": "http://two"}
    assert row.options["password"] == {"before": "***", "after": "***"}
    assert row.dependents[0]["outcome"] == "restarted"
    assert row.ended_at is not None
    assert row.started_at <= row.ended_at


def test_no_secret_is_anywhere_in_the_control_store(bench: Bench) -> None:
    bench.run("load", "api")
    bench.alter("ALTER CONNECTION api SET (password = :new) WITH (DRAIN_TIMEOUT = 0)", {"new": f"{CANARY}-2"})
    with pytest.raises(AlterationRefusedError):
        bench.alter(f"ALTER CONNECTION api SET (host = 'https://u:{CANARY}@x', password = '{CANARY}')")
    bench.store.close()
    assert CANARY.encode() not in bench.stored_bytes()
    assert CANARY not in repr(bench.shelf.connections) + "".join(bench.said)


def test_validating_says_the_real_cause(bench: Bench) -> None:
    bench.shelf.dead.add("http://one")
    with raises(ConnectionValidationError):
        bench.alter("VALIDATE CONNECTION api")
    bench.shelf.dead.clear()
    assert bench.alter("VALIDATE CONNECTION api").result == "valid"
    assert bench.audit() == []


def test_who_can_try_nothing_does_not_say_that_it_was_tried(bench: Bench) -> None:
    outcome = bench.alter("ALTER CONNECTION broker SET (host = 'broker2')")
    assert (outcome.validated, bench.audit()[0].validated) == (False, False)
    check_messages(outcome.notice)
    assert bench.alter("VALIDATE CONNECTION broker").result == "not tried"
    blind = bench.alter("ALTER CONNECTION api SET (host = 'http://two') WITH (VALIDATE = false)")
    assert (blind.validated, blind.notice) == (False, "")


def test_the_line_before_a_trial_does_not_read_as_if_it_were_done(bench: Bench) -> None:
    bench.alter(MOVE)
    bench.alter("ALTER CONNECTION api SET (host = 'http://one') WITH (VALIDATE = false)")
    trying, storing = bench.said
    assert trying == "connection api: trying host: http://one -> http://two"
    assert storing == "connection api: storing host: http://two -> http://one"


def test_a_comment_on_a_connection_that_does_not_work_is_stored_and_neither_tries_nor_restarts(bench: Bench) -> None:
    bench.run("load", "api")
    bench.shelf.dead.add("http://one")
    outcome = bench.alter("COMMENT ON CONNECTION api IS 'the old shop'")
    assert (outcome.result, outcome.validated, verdicts(outcome)) == ("applied", None, {"load": "unaffected"})
    assert bench.shelf.connections["api"] == replace(API, description="the old shop")
    assert (bench.shelf.tried, bench.use("load").is_stale) == ([], False)
    (row,) = bench.audit()
    assert (row.state, row.statement) == ("applied", "COMMENT ON CONNECTION api")
    assert row.options == {"description": {"before": None, "after": "the old shop"}}
    assert bench.alter("COMMENT ON CONNECTION api IS 'the old shop'").result == "unchanged"
    bench.alter("COMMENT ON CONNECTION api IS NULL")
    assert bench.shelf.connections["api"] == API


WEBHOOK = "https://hooks.example.com:8443/services/T0"
OLD, NEW, KEY = (f"{CANARY}-{name}" for name in ("old", "new", "key"))


@pytest.mark.parametrize("conn_type", ["http", "https", "rfr_http", "rfr-http", "generic"])
@pytest.mark.parametrize("address", ["{host}/{secret}", "{host}/x?sig={secret}", "{host}/x?{secret}"])
def test_of_a_webhook_s_address_and_headers_nothing_secret_is_shown_or_kept(
    bench: Bench, caplog: pytest.LogCaptureFixture, conn_type: str, address: str
) -> None:
    old, new = (address.format(host=WEBHOOK, secret=secret) for secret in (OLD, NEW))
    headers = {"X-Functions-Key": KEY, "jwt": KEY, "headers": {"X-Auth": KEY}}
    bench.shelf.connections["hook"] = Definition("hook", conn_type, host=old, extra=headers)
    bench.run("load", "hook")
    bench.obey("load")
    text = f"ALTER CONNECTION hook SET (host = '{new}', extra.\"Ocp-Apim-Subscription-Key\" = :key), DROP (extra.jwt)"
    outcome = bench.alter(text, {"key": f"{KEY}2"})
    assert bench.shelf.connections["hook"].host == new
    shown = {change.option: (change.before, change.after) for change in outcome.changes}
    masked = "https://hooks.example.com:8443/***"
    key = "extra.Ocp-Apim-Subscription-Key"
    assert shown == {"host": (masked, masked), "extra.jwt": ("***", None), key: (None, "***")}
    everything = [*bench.said, *outcome.lines(), json.dumps(outcome.to_json()), repr(bench.audit()), caplog.text]
    assert CANARY not in "".join(everything)
    assert CANARY.encode() not in bench.stored_bytes()


@pytest.mark.parametrize("option", ['"X-Functions-Key"', "jwt", "session", "pass", "headers.Authorization"])
def test_a_header_of_an_http_connection_is_not_taken_in_plain_text(bench: Bench, option: str) -> None:
    for conn_type in ("http", "rfr_http", "generic"):
        bench.shelf.connections["hook"] = Definition("hook", conn_type, host=f"{WEBHOOK}/{OLD}")
        with raises(AlterationRefusedError) as refused:
            bench.alter(f"ALTER CONNECTION hook SET (extra.{option} = '{KEY}')")
        assert CANARY not in str(refused.value)
    assert CANARY.encode() not in bench.stored_bytes()


def test_options_of_requests_are_shown_as_before(bench: Bench) -> None:
    outcome = bench.alter("ALTER CONNECTION schemas SET (verify = '/ca.pem', timeout = 3, host = 'http://b')")
    shown = {change.option: change.after for change in outcome.changes}
    assert shown == {"host": "http://b", "extra.verify": "/ca.pem", "extra.timeout": "3"}
