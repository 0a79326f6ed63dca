"""Every error this package raises on purpose. Whether a retry may help, and what to do, is said by each class.

::

    RfrError
    ├── ConfigurationError           what the user wrote is wrong; a retry can't help
    │   ├── SourceDefinitionError    ... in a source's YAML file or definition
    │   ├── StatementError           ... in the text of ALTER CONNECTION
    │   └── QueryError               ... in the query of a view
    │       └── UnreadableQueryError it can't be parsed here; Spark may understand it
    ├── DeclarationError             what is declared as built-in objects is wrong; all its problems at once
    ├── PlanError                    no plan of a migration can be made, or what was saved is none
    │   ├── StalePlanError           ... its base is no longer the present state
    │   └── BlockedPlanError         ... something stops it; nothing was done
    ├── DeployError                  a deploy of built-in objects could not be finished; the next one goes on
    │   ├── StepError                ... one of its steps failed
    │   ├── DeployBusyError          somebody else is deploying the same project
    │   └── LeaseLostError           another deploy took over
    ├── SinkError                    an export can't go on; what was acknowledged is not sent again
    │   ├── SinkHeldError            ... until somebody decides what becomes of it
    │   ├── CursorExpiredError       ... snapshots that it has not sent are gone
    │   ├── SinkDeliveryError        ... its target did not acknowledge a batch
    │   ├── SinkBusyError            ... another run is at it
    │   └── SinkLeaseLostError       ... another run or a deploy took it over
    ├── SnapshotsExpiredError        snapshots between two of a table are gone
    ├── PreflightError               the machine lacks what a refresh needs
    ├── SourceError                  the API's answer, or its silence
    │   ├── AuthenticationError      401, 403, a token that can't be obtained
    │   ├── RateLimitedError         the API asked to wait longer than a refresh waits
    │   ├── TokenExpiredError        a page token is no longer accepted
    │   └── RepeatedPageError        a token or a page came twice: the chain would never end
    ├── SourceChangedError           committed pages no longer match the source
    ├── SchemaError                  rows, declared schema and table don't fit together
    │   ├── TypeMismatchError        values that don't fit their column, with the first offenders
    │   └── SchemaEvolutionError     the table can't take the new schema
    ├── LedgerError                  the ledger refuses
    │   ├── FencedError              a newer attempt took over
    │   └── ReconciliationError      fetched, staged and published counts differ
    ├── PublishRefusedError          a guard (empty, shrunken) stopped the publish
    ├── RefreshBusyError             another run is at the same refresh, and on_busy is fail
    ├── CatalogError                 the lake's catalog does not answer, or refuses
    ├── SparkJobError                Spark could not start, or could not finish a job
    ├── RefreshStoppedError          the refresh was told to stop; the next attempt goes on
    ├── RefreshFailedError           partitions failed; what was fetched stays for the retry
    ├── TriggerConfigError           a triggers block is wrong; all its problems at once
    ├── TemplateError                a webhook's template is wrong, or meets a variable that it can't print
    ├── SealError                    a sealed document can't be opened, or is not as it was sealed
    ├── DeliveryError                webhooks could not be delivered
    └── AlterConnectionError         a connection was not altered, and is as it was
        ├── AlterationRefusedError   what is to be changed is wrong; all its problems at once
        ├── ConnectionNotFoundError  there is no such connection
        ├── ConnectionShadowedError  what is used comes from a place that can't be written
        ├── ConnectionRightsError    the caller lacks a right
        ├── ConnectionValidationError  the new settings do not work, or lead to another upstream
        └── ConnectionConflictError  somebody else alters it; a retry may help

    ReadInterrupted                  not an error: the reader was asked to stop
    └── BackoffInterrupted           ... while it waited to repeat a request
"""

from __future__ import annotations

from airflow_provider_rfr.exceptions.base import (
    ConfigurationError,
    PreflightError,
    RfrError,
)
from airflow_provider_rfr.exceptions.builtins import (
    BlockedPlanError,
    DeclarationError,
    DeclarationProblem,
    DeployBusyError,
    DeployError,
    LeaseLostError,
    PlanError,
    QueryError,
    StalePlanError,
    StepError,
    UnreadableQueryError,
)
from airflow_provider_rfr.exceptions.connections import (
    AlterationProblem,
    AlterationRefusedError,
    AlterConnectionError,
    ConnectionConflictError,
    ConnectionNotFoundError,
    ConnectionRightsError,
    ConnectionShadowedError,
    ConnectionValidationError,
    StatementError,
)
from airflow_provider_rfr.exceptions.refresh import (
    CatalogError,
    FencedError,
    LedgerError,
    PublishRefusedError,
    ReconciliationError,
    RefreshBusyError,
    RefreshFailedError,
    RefreshStoppedError,
    SchemaError,
    SchemaEvolutionError,
    SparkJobError,
    TypeMismatchError,
)
from airflow_provider_rfr.exceptions.sinks import (
    CursorExpiredError,
    SinkBusyError,
    SinkDeliveryError,
    SinkError,
    SinkHeldError,
    SinkLeaseLostError,
    SnapshotsExpiredError,
)
from airflow_provider_rfr.exceptions.source import (
    AuthenticationError,
    BackoffInterrupted,
    RateLimitedError,
    ReadInterrupted,
    RepeatedPageError,
    SourceChangedError,
    SourceDefinitionError,
    SourceError,
    TokenExpiredError,
)
from airflow_provider_rfr.exceptions.webhooks import (
    DeliveryError,
    SealError,
    TemplateError,
    TriggerConfigError,
    TriggerProblem,
)

__all__ = [
    "RfrError",
    "ConfigurationError",
    "SourceDefinitionError",
    "PreflightError",
    "SourceError",
    "AuthenticationError",
    "RateLimitedError",
    "TokenExpiredError",
    "RepeatedPageError",
    "SourceChangedError",
    "SchemaError",
    "TypeMismatchError",
    "SchemaEvolutionError",
    "LedgerError",
    "FencedError",
    "ReconciliationError",
    "PublishRefusedError",
    "RefreshBusyError",
    "CatalogError",
    "SparkJobError",
    "TemplateError",
    "RefreshStoppedError",
    "RefreshFailedError",
    "SinkError",
    "SinkHeldError",
    "CursorExpiredError",
    "SinkDeliveryError",
    "SinkBusyError",
    "SinkLeaseLostError",
    "SnapshotsExpiredError",
    "DeclarationProblem",
    "DeclarationError",
    "QueryError",
    "UnreadableQueryError",
    "PlanError",
    "StalePlanError",
    "BlockedPlanError",
    "DeployError",
    "StepError",
    "DeployBusyError",
    "LeaseLostError",
    "TriggerProblem",
    "TriggerConfigError",
    "SealError",
    "DeliveryError",
    "StatementError",
    "AlterationProblem",
    "AlterConnectionError",
    "AlterationRefusedError",
    "ConnectionNotFoundError",
    "ConnectionShadowedError",
    "ConnectionRightsError",
    "ConnectionValidationError",
    "ConnectionConflictError",
    "ReadInterrupted",
    "BackoffInterrupted",
]
