"""Messages for people, kept in one snapshot file for each folder of unit tests.

A test asserts the class of an error, the field it names and the place. The sentence itself is compared with
``__snapshots__/messages.ambr`` beside the test, so that rewording a message is one diff. ``make messages`` rewrites the
files.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.amber import AmberSnapshotExtension
from syrupy.location import PyTestLocation

if TYPE_CHECKING:
    from syrupy.types import SnapshotIndex

E = TypeVar("E", bound=BaseException)

#: Parts of messages that differ from run to run, and what stands for them in a snapshot.
VARIABLE_PARTS = (
    (re.compile(re.escape(f"{sys.executable}, {platform.python_version()}")), "<python>, <version>"),
    (re.compile(r"[^\s'\"(]*/(?:site-packages|cdk-lowest)/"), "<site-packages>/"),
    (re.compile(re.escape(str(Path(__file__).parents[2]))), "<checkout>"),
    (re.compile(r"/tmp/pytest-of-[^/\s]+/pytest-\d+/(popen-gw\d+/)?[^/\s'\":,;)]+"), "<tmp_path>"),
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<id>"),
    (re.compile(r"\be\d+-r\d+-t\d+-a\d+-s\d+-([0-9a-f]{12}\b)?"), "<task>-<id>"),
    (re.compile(r"(?<![^\W_])(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{8,40}(?![^\W_])"), "<id>"),
    # An id that happens to have no letter or no digit, where only an id can be.
    (
        re.compile(
            r"\b(lake_|batch \d{10}-|rfr-|(?:deploy|delivery|plan|marker of|write id:|with the id) )[0-9a-f]{8,40}\b"
        ),
        r"\1<id>",
    ),
    (re.compile(r"\b(ssh-ed25519|ssh-rsa) [A-Za-z0-9+/=]+"), r"\1 <key>"),
    (re.compile(r"\bage1[0-9a-z]{58}\b"), "<key>"),
    (re.compile(r"\b\d{11,19}\b"), "<snapshot>"),
    (re.compile(r"\b0x[0-9a-f]{9,}"), "<address>"),
    (re.compile(r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+|(?=Z, snapshot))"), "<time>"),
    (re.compile(r"(?<=installed is 7)\.\d+\.\d+"), ".<minor>"),
    (re.compile(r"(?<=airbyte-cdk )\d+\.\d+\.\d+(?= uses )"), "<version>"),
    (re.compile(r"\.py, line \d+"), ".py, line <line>"),
    (re.compile(r"(requests?) in [0-9.]+ s\b"), r"\1 in <seconds> s"),
    (re.compile(r"(127\.0\.0\.1|localhost):\d{4,5}\b"), r"\1:<port>"),
)


class MessagesExtension(AmberSnapshotExtension):
    """A snapshot file for each folder, with the names of test modules in the names of snapshots."""

    def serialize(self, data: Any, **options: Any) -> str:
        text = super().serialize(data, **options)
        for pattern, replacement in VARIABLE_PARTS:
            text = pattern.sub(replacement, text)
        return text

    @classmethod
    def get_file_basename(cls, *, test_location: PyTestLocation, index: SnapshotIndex) -> str:
        return "messages"

    @classmethod
    def get_snapshot_name(cls, *, test_location: PyTestLocation, index: SnapshotIndex = 0) -> str:
        name = super().get_snapshot_name(test_location=test_location, index=index)
        return f"{name} ({test_location.basename})"

    @classmethod
    def matches_test_location(cls, *, test_location: PyTestLocation, snapshot_location: str) -> bool:
        return test_location.matches_snapshot_site(snapshot_location)


#: The snapshots of the test that runs; set by a fixture of ``tests/unit/conftest.py``.
_current: list[SnapshotAssertion] = []


@contextmanager
def messages_of(snapshot: SnapshotAssertion) -> Iterator[None]:
    """Compare messages with these snapshots until the end of the context."""
    _current.append(snapshot.use_extension(MessagesExtension))
    try:
        yield
    finally:
        _current.pop()


def check_messages(messages: Any, *values: object) -> None:
    """Assert that a message, or a collection of them, is the next one in the snapshot file.

    :param values: to be found in it; for those that the snapshot can't have, because they differ from run to run
    """
    assert [value for value in values if str(value) not in str(messages)] == []
    assert messages == _current[-1]


@contextmanager
def raises(kind: type[E], *values: object) -> Iterator[pytest.ExceptionInfo[E]]:
    """Do as ``pytest.raises`` does, and compare the message as ``check_messages`` does."""
    with pytest.raises(kind) as caught:
        yield caught
    check_messages(str(caught.value), *values)
