"""Configuration errors: one text for one or several problems, in every subclass."""

from __future__ import annotations

import pickle

import pytest

from airflow_provider_rfr.exceptions import (
    EXIT_CONFIGURATION,
    ConfigurationError,
    DeclarationError,
    Problem,
    QueryError,
    SourceDefinitionError,
    SourceError,
    StatementError,
    TriggerConfigError,
)

PROBLEMS = (
    Problem("streams.a", "is missing"),
    Problem("b", "is 1", "write 2", "x.yaml:3"),
    Problem("", "is empty", place="triggers"),
)
TEXT = "streams.a: is missing\nx.yaml:3: b: is 1; write 2\ntriggers: is empty"


@pytest.mark.parametrize(
    "kind",
    [ConfigurationError, DeclarationError, TriggerConfigError, SourceDefinitionError, QueryError, StatementError],
)
def test_several_problems_are_one_error_of_any_kind_which_no_retry_helps(kind: type[ConfigurationError]) -> None:
    error = kind.of(iter(PROBLEMS))
    assert type(error) is kind
    assert (str(error), error.problems) == (TEXT, PROBLEMS)
    assert (error.field, error.problem, error.remedy, error.place) == ("streams.a", "is missing", "", "")
    assert (error.retryable, error.exit_code) == (False, EXIT_CONFIGURATION)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.problems) == (kind, TEXT, PROBLEMS)


def test_a_place_is_given_to_all_problems() -> None:
    placed = DeclarationError.of(PROBLEMS[:2]).at("f.yaml")
    assert type(placed) is DeclarationError
    assert str(placed) == "f.yaml: streams.a: is missing\nf.yaml: b: is 1; write 2"


def test_one_problem_is_told_with_its_place_and_its_remedy() -> None:
    assert str(ConfigurationError("target", "is empty")) == "target: is empty"
    assert str(ConfigurationError("a.b", "is 1", "write 2", "x.yaml")) == "x.yaml: a.b: is 1; write 2"
    error = StatementError("expected SET", 1, 7, "write SET")
    assert str(error) == "line 1, column 7: expected SET; write SET"
    assert (error.line, error.column) == (1, 7)


@pytest.mark.parametrize(
    ("partition", "page", "text"),
    [
        (None, None, "no answer [GET /orders]"),
        ("{}", None, "no answer [GET /orders]"),
        ("{}", 2, "no answer [GET /orders] (page 2)"),
        ('{"shop":1}', None, 'no answer [GET /orders] (partition {"shop":1})'),
        ('{"shop":1}', 2, 'no answer [GET /orders] (partition {"shop":1}, page 2)'),
    ],
)
def test_the_only_partition_of_a_stream_is_not_named(partition: str | None, page: int | None, text: str) -> None:
    assert str(SourceError("no answer", request="GET /orders", partition=partition, page=page)) == text
