"""Numbers keep their digits from a body to the ledger, and cost little where none is long."""

from __future__ import annotations

import copy
import json
import pickle
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_rfr.numbers import LongNumber, dumps, loads, loses_digits

TEXTS = st.one_of(
    st.integers(-(2**80), 2**80).map(str),
    st.integers(2**53 - 3, 2**53 + 3).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False, places=20, min_value=-(10**20), max_value=10**20).map(str),
    st.builds("{}.{}e{}".format, st.integers(-9, 9), st.integers(0, 10**20), st.integers(-330, 280)),
    st.sampled_from(["0.1", "-0.0", "1e-400", "5e-324", "1.50000000000000000000", "123456789012345.67", "1E+2"]),
).map(lambda text: text.replace("E+", "e"))


def numbers(text: bytes) -> list[Any]:
    """Every number of a list exactly; those beyond 64 bits are texts."""
    return [Decimal(each) for each in json.loads(text, parse_float=Decimal)]


@settings(derandomize=True, deadline=None, max_examples=500, print_blob=True)
@given(st.lists(TEXTS, max_size=5), st.sampled_from([",", ", ", ",\n"]))
def test_every_number_is_written_as_it_was_read(texts: list[str], between: str) -> None:
    body = f"[{between.join(texts)}]".encode()
    written = dumps(loads(body))
    assert numbers(written) == numbers(body)
    assert dumps(loads(written)) == written
    if not loses_digits(body):
        assert loads(body) == orjson.loads(body)
        assert numbers(orjson.dumps(orjson.loads(body))) == numbers(body)


@pytest.mark.parametrize(
    "body",
    [
        b"[0.30000000000000004,1753123456789012,9007199254740993,18446744073709551615]",
        b'["4111111111111111111111","1.2.3.4.5.6.7.8.9.10.11","0.12345678901234567890"]',
        b'{"at":"2026-01-01T00:00:00.123456Z","id":"ord-00000000000000001"}',
    ],
)
def test_what_only_looks_long_is_parsed_the_fast_way(body: bytes) -> None:
    assert not loses_digits(body)


def test_a_long_number_counts_as_its_nearest_double_and_is_written_with_its_digits() -> None:
    (found,) = loads(b"[12345678901234567.25]")
    assert isinstance(found, LongNumber)
    assert found + 1 == 12345678901234568.25 + 1
    assert f"{found}" == "12345678901234567.25"
    for again in (pickle.loads(pickle.dumps(found)), copy.deepcopy([found])[0]):
        assert dumps([again]) == b"[12345678901234567.25]"


def test_an_integer_beyond_64_bits_is_its_text() -> None:
    for text in ("18446744073709551616", "-9223372036854775809", "-18446744073709551615"):
        assert loads(f"[{text}]".encode()) == [text]
    for number in (2**64 - 1, -(2**63)):
        assert loads(f"[{number}]".encode()) == [number]


def test_decimals_of_a_python_source_are_written_exactly_and_what_is_no_number_is_refused() -> None:
    assert dumps({"a": Decimal("12.50"), "b": Decimal("1E+30")}) == b'{"a":12.50,"b":1E+30}'
    for value in (Decimal("NaN"), object()):
        with pytest.raises(TypeError):
            dumps(value)
