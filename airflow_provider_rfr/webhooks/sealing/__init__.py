"""Sealed documents: triggers blocks with their secrets sealed by SOPS, opened in process where age is the key.

::

    values     one sealed value, bound to its path
    tree       all values of a document, and the code over them
    rules      which values a document's own rule seals
    sources    who can open a document;  age_keys, binary: the two ways
    opening    data key, values, code: any SOPS document
    fields     which fields of a triggers block must be sealed;  checks, overlay: what follows from it
    sealer     seal, check, open, seal again
    legacy     documents of Estuary Flow
    text, files   YAML and JSON, for the command line
"""

from __future__ import annotations

from airflow_provider_rfr.webhooks.sealing.files import read_file, reseal_file, seal_file
from airflow_provider_rfr.webhooks.sealing.sealer import check_sealed, open_sealed, reseal, seal

__all__ = [
    "seal",
    "check_sealed",
    "open_sealed",
    "reseal",
    "seal_file",
    "reseal_file",
    "read_file",
]
