"""Errors of Spark as errors of this package, with nothing secret in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from airflow_provider_rfr.exceptions import SparkJobError
from airflow_provider_rfr.secret_names import SECRET_NAMES

_OF_PYTHON = re.compile(r"^(?:[a-z_][\w.]*\.)?([A-Z]\w*(?:Error|Exception)): (.+)$", re.MULTILINE)
_OF_JAVA = re.compile(r"^(?:: |Caused by: )[\w.$]+: (.+)$", re.MULTILINE)
_FAILED = re.compile(r"Job aborted due to stage failure: (.{1,300})")
REDACTED = f"(?i){SECRET_NAMES}"
"""Names of settings whose values Spark shows nowhere; its own list lacks some of those that catalogs have."""


@contextmanager
def told(what: str, secrets: Iterable[str] = ()) -> Iterator[None]:
    """Raise what Spark raises as a :class:`SparkJobError` of one sentence; other errors stay as they are.

    :param what: was tried, e.g. ``view ops.v``
    """
    try:
        yield
    except Exception as error:
        if not of_spark(error):
            raise
        raise SparkJobError(f"{what}: {without(sentence(error), secrets)}") from None


def of_spark(error: BaseException) -> bool:
    """Whether it comes out of Spark or the way to it."""
    return type(error).__module__.split(".")[0] in ("py4j", "pyspark")


def sentence(error: BaseException) -> str:
    """What went wrong, without the stack."""
    message = str(error)
    failed = _FAILED.search(message)
    if type(error).__module__.startswith("pyspark.errors") and failed is None:
        return message.strip().partition("\n")[0]
    if of_python := _OF_PYTHON.search(message):
        return of_python.group(2)
    if causes := _OF_JAVA.findall(message):
        return str(causes[-1])
    return failed.group(1) if failed else message.strip().partition("\n")[0]


def without(message: str, secrets: Iterable[str]) -> str:
    """The message with every secret taken out."""
    for secret in sorted(secrets, key=len, reverse=True):
        message = message.replace(secret, "***")
    return message
