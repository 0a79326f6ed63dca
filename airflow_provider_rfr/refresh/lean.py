"""Keeping pandas out of a process that doesn't need it.

PyArrow imports pandas, where it is installed, as soon as it is asked to make an array or a dataset: a second for
every process that a refresh starts. It asks once and remembers the answer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NoPandas:
    """Answers for pandas before any other finder."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")
        return None


@contextmanager
def without_pandas() -> Iterator[None]:
    """While inside, ``import pandas`` fails as if it were not installed; it works again afterwards.

    Only for processes that run no code of a user's, which might hand pandas objects to PyArrow later.
    """
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def keep_spark_from_testing() -> None:
    """Answer for ``pyspark.testing.utils``, which Spark asks at its first call whether there is NumPy.

    The real module imports pandas and unittest for that answer, a second of a short refresh. No NumPy value is handed
    to Spark in a process that runs no code of a user's.
    """
    answer = ModuleType("pyspark.testing.utils")
    answer.have_numpy = False  # type: ignore[attr-defined]
    sys.modules.setdefault(answer.__name__, answer)
