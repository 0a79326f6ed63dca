"""Sealed documents: triggers blocks whose secrets are sealed in the format of SOPS.

Documents for age keys are sealed and opened in process; for other key sources the ``sops`` program opens them.
``_sops`` is the file format and finds keys, and ``_documents`` says what must be sealed, and does it.
"""

from __future__ import annotations

from airflow_provider_rfr.webhooks.sealing._documents import (
    check_sealed,
    open_sealed,
    read_file,
    reseal,
    reseal_file,
    seal,
    seal_file,
)

__all__ = ["seal", "check_sealed", "open_sealed", "reseal", "seal_file", "reseal_file", "read_file"]
