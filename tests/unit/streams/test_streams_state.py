"""States, their JSON form, and pages."""

from __future__ import annotations

import dataclasses
import json
import pickle
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.streams import Complete, NextPage, NotStarted, Page, dump_state, load_state
from airflow_provider_rfr.streams.core import flat_state
from tests.unit.messages import raises

SENTINEL = {"__ab_full_refresh_sync_complete": True}
NO_CURSOR = {"__ab_no_cursor_state_message": True}

TOKENS: list[Any] = [
    0,
    "",
    False,
    3,
    "eyJ=",
    1.5,
    [1, "a"],
    {},
    {"page": 3},
    {"next_page_token": 3},
    {"next_page_token": {"next_page_token": None}},
    {"version": 7, "state": "complete"},
    SENTINEL,
    NO_CURSOR,
]


@pytest.mark.parametrize("state", [NotStarted(), Complete(), *map(NextPage, TOKENS)])
def test_a_state_survives_its_json_form(state: Any) -> None:
    assert load_state(json.loads(json.dumps(dump_state(state)))) == state


@pytest.mark.parametrize("state", [NotStarted(), Complete(), *map(NextPage, TOKENS)])
def test_a_state_survives_the_flat_form_that_old_streams_know(state: Any) -> None:
    assert load_state(json.loads(json.dumps(flat_state(state)))) == state


@pytest.mark.parametrize(
    ("stored", "state"),
    [
        (None, NotStarted()),
        ({}, NotStarted()),
        (NO_CURSOR, NotStarted()),
        ({"next_page_token": None}, NotStarted()),
        (SENTINEL, Complete()),
        ({"next_page_token": 0}, NextPage(0)),
        ({"page": 3}, NextPage({"page": 3})),
        ({"updated_at": "2024-05-32"}, NextPage({"updated_at": "2024-05-32"})),
        (0, NextPage(0)),
        ("", NextPage("")),
        (False, NextPage(False)),
        ("abc", NextPage("abc")),
    ],
)
def test_older_forms_are_read(stored: Any, state: Any) -> None:
    assert load_state(stored) == state


def test_a_state_is_versioned() -> None:
    assert dump_state(NextPage(0)) == {"version": 1, "state": "next_page", "token": 0}
    assert dump_state(NotStarted()) == {"version": 1, "state": "not_started"}
    assert dump_state(Complete()) == {"version": 1, "state": "complete"}


@pytest.mark.parametrize(
    "stored",
    [
        {"version": 2, "state": "complete"},
        {"version": True, "state": "complete"},
        {"version": 1, "state": "done"},
        {"version": 1, "state": "next_page"},
        {"version": 1, "state": "complete", "token": 3},
    ],
)
def test_an_unknown_version_or_a_broken_state_is_refused(stored: Any) -> None:
    with raises(ConfigurationError):
        load_state(stored)


def test_none_is_no_token() -> None:
    with raises(ValueError):
        NextPage(None)


def test_a_token_that_is_not_json_is_refused_where_it_arises() -> None:
    with raises(ConfigurationError):
        NextPage({"since": object()})  # type: ignore[dict-item]
    with raises(ConfigurationError):
        NextPage(float("nan"))


@pytest.mark.parametrize("token", TOKENS)
def test_a_page_takes_a_bare_token_even_one_that_is_false(token: Any) -> None:
    assert Page([], token).next == NextPage(token)


def test_a_page_without_a_next_token_is_the_last() -> None:
    assert Page([{"id": 1}]).next == Complete()
    assert Page([{"id": 1}], None).next == Complete()
    assert Page([{"id": 1}], Complete()).next == Complete()


def test_no_page_is_followed_by_not_started() -> None:
    with raises(ValueError):
        Page([], NotStarted())


def test_a_page_is_a_value() -> None:
    page = Page(({"id": i} for i in range(2)), 7, total_pages=9, request="GET /a", status=200)
    assert page.records == [{"id": 0}, {"id": 1}]
    assert pickle.loads(pickle.dumps(page)) == page
    assert dataclasses.replace(page, next=Complete()).next == Complete()
    with pytest.raises(dataclasses.FrozenInstanceError):
        page.status = 500  # type: ignore[misc]
