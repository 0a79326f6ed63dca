"""Why a plan does something, or does not: an enum and its facts, and the sentences that both become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Why(str, Enum):
    """What a reason says. The number of facts follows from its sentence."""

    # What changed.
    NEW = "new"
    KIND_CHANGED = "kind_changed"
    RENAMED = "renamed"
    COLUMNS_CHANGED = "columns_changed"
    CONSTRAINTS_CHANGED = "constraints_changed"
    QUERY_CHANGED = "query_changed"
    DEFINITION_CHANGED = "definition_changed"
    STAR_CHANGED = "star_changed"
    METADATA_CHANGED = "metadata_changed"
    READS = "reads"
    READS_ANOTHER = "reads_another"
    LISTS_OBJECTS = "lists_objects"
    NOT_RECORDED = "not_recorded"
    UNFINISHED = "unfinished"
    UNFINISHED_SINK = "unfinished_sink"
    CHANGED_BY_HAND = "changed_by_hand"
    ADOPTED = "adopted"
    MARKED = "marked"
    DECLARED_NAME = "declared_name"
    LEFTOVER = "leftover"
    REMOVED = "removed"
    NOT_DECLARED = "not_declared"
    INSTANCE_GONE = "instance_gone"
    CREATED_AGAIN = "created_again"
    # What readers and sinks notice.
    CURSOR_KEPT = "cursor_kept"
    MIGRATION_SKIPPED = "migration_skipped"
    EQUAL_CONTENTS = "equal_contents"
    SAME_OBJECT = "same_object"
    SINK_STOPS = "sink_stops"
    SINK_FROM_NEW = "sink_from_new"
    SINK_RESENDS = "sink_resends"
    SINK_UNDECIDED = "sink_undecided"
    EMPTIED_UNFINISHED = "emptied_unfinished"
    EMPTIED = "emptied"
    MADE_AGAIN = "made_again"
    EXPORTS_ANOTHER = "exports_another"
    COLUMN_RENAMED = "column_renamed"
    SAY_COLUMNS = "say_columns"
    READS_RENAMED = "reads_renamed"
    READS_REMOVED = "reads_removed"
    READS_RENAMED_COLUMN = "reads_renamed_column"
    READS_DROPPED_COLUMN = "reads_dropped_column"
    READS_UNKNOWN = "reads_unknown"
    STAYS_READABLE = "stays_readable"
    BRIDGED = "bridged"
    # What stops a deploy.
    NEEDS_USING = "needs_using"
    USING_UNREADABLE = "using_unreadable"
    MAYBE_RENAMED = "maybe_renamed"
    MAYBE_RENAMED_OBJECT = "maybe_renamed_object"
    WOULD_LOSE = "would_lose"
    WOULD_GO = "would_go"
    KEPT = "kept"
    NOT_UNDONE = "not_undone"
    DOWNGRADE = "downgrade"
    NAME_TAKEN = "name_taken"
    NAME_TAKEN_ADOPT = "name_taken_adopt"
    NAME_OF_USER_VIEW = "name_of_user_view"
    NOT_ADOPTABLE = "not_adoptable"
    NOT_OURS = "not_ours"
    MARKED_OTHER = "marked_other"
    NOT_REMOVED = "not_removed"
    EXPORTED = "exported"
    GONE_ADOPT = "gone_adopt"
    DECLARE_NAME = "declare_name"
    DECLARE_IT = "declare_it"
    NO_SUCH_SOURCE = "no_such_source"
    READS_NOT_DECLARED = "reads_not_declared"
    USER_VIEW_BREAKS = "user_view_breaks"
    TEXT = "text"
    # What was changed by hand.
    GONE = "gone"
    IS_OTHER_KIND = "is_other_kind"
    CALLED = "called"
    COLUMN_ADDED = "column_added"
    COLUMN_DROPPED = "column_dropped"
    COLUMN_TYPE = "column_type"
    COLUMN_OPTIONAL = "column_optional"
    COLUMN_REQUIRED = "column_required"
    COLUMN_ORDER = "column_order"
    PARTITIONED = "partitioned"
    KEYED = "keyed"
    PROPERTY = "property"
    VIEW_TEXT = "view_text"
    WRITTEN_SO = "written_so"


_SENTENCES: Final[Mapping[Why, str]] = {
    Why.NEW: "new",
    Why.KIND_CHANGED: "kind: {} -> {}",
    Why.RENAMED: "renamed from {}",
    Why.COLUMNS_CHANGED: "columns changed",
    Why.CONSTRAINTS_CHANGED: "constraints changed",
    Why.QUERY_CHANGED: "query changed",
    Why.DEFINITION_CHANGED: "definition changed",
    Why.STAR_CHANGED: "star expanded again",
    Why.METADATA_CHANGED: "metadata changed",
    Why.READS: "reads {}",
    Why.READS_ANOTHER: "reads {}, which is another object now",
    Why.LISTS_OBJECTS: "lists the objects: {}",
    Why.NOT_RECORDED: "it is there with our marker, though not recorded",
    Why.UNFINISHED: "deploy {} did not finish; continuing from what it left",
    Why.UNFINISHED_SINK: "a deploy that did not finish began to change it",
    Why.CHANGED_BY_HAND: "changed by hand",
    Why.ADOPTED: "as declared; takes our marker",
    Why.MARKED: "takes our marker",
    Why.DECLARED_NAME: "declared name",
    Why.LEFTOVER: "left by an unfinished deploy",
    Why.REMOVED: "removed, which is accepted",
    Why.NOT_DECLARED: "no longer declared; its rows may be made again",
    Why.INSTANCE_GONE: "its instance is gone",
    Why.CREATED_AGAIN: "to be created again",
    Why.CURSOR_KEPT: "{} kept, no snapshot is made",
    Why.MIGRATION_SKIPPED: "{} kept, migration snapshots skipped",
    Why.EQUAL_CONTENTS: "{} kept, migration snapshots skipped; equal contents send nothing",
    Why.SAME_OBJECT: "{} kept, the object is the same one",
    Why.SINK_STOPS: "stops until it is released, since {}",
    Why.SINK_FROM_NEW: "continues with rows that come from now on, since {}",
    Why.SINK_RESENDS: "sends everything again, declared as duplicates, since {}",
    Why.SINK_UNDECIDED: "{}: say what becomes of the sink, by sinks: {{{}: hold | resume_from_new | resend}}",
    Why.EMPTIED_UNFINISHED: "{} was emptied by deploy {}, which did not finish",
    Why.EMPTIED: "{} is emptied",
    Why.MADE_AGAIN: "{} is created again",
    Why.EXPORTS_ANOTHER: "it exports {} now",
    Why.COLUMN_RENAMED: "{} is called {} now",
    Why.SAY_COLUMNS: "say under sink which columns it is to send",
    Why.READS_RENAMED: "reads {}, which is called {} now",
    Why.READS_REMOVED: "reads {}, which is removed",
    Why.READS_RENAMED_COLUMN: "reads {}, which is called {} now",
    Why.READS_DROPPED_COLUMN: "reads {}, which is dropped",
    Why.READS_UNKNOWN: "can't be read, so it may read {}",
    Why.STAYS_READABLE: "stays readable while what it reads gets wider",
    Why.BRIDGED: "bridged by a deploy that did not finish",
    Why.NEEDS_USING: "{}: {} -> {} needs values: write in its `was` how they are made",
    Why.USING_UNREADABLE: "the `using` of {}: {}",
    Why.MAYBE_RENAMED: "if {} is {} under a new name, write was: {}",
    Why.MAYBE_RENAMED_OBJECT: "{} comes and is like it. If that is its new name, write id: {} there",
    Why.WOULD_LOSE: "{} would be lost: accept that by a document {{kind: removed, name: {}}}, or for one deploy by "
    "accept_data_loss: {}",
    Why.WOULD_GO: "it is no longer declared: accept that it goes by a document {{kind: removed, name: {}}}, or for one "
    "deploy by accept_data_loss: {}",
    Why.KEPT: "{} would be lost, and it is kept: {}. To lose it, deploy it without that reason first",
    Why.NOT_UNDONE: "{} was changed by hand in a way that can't be undone without inventing values",
    Why.DOWNGRADE: "downgrade not supported: recorded by {}, this is {}",
    Why.NAME_TAKEN: "the name of the {} {} is taken: {}",
    Why.NAME_TAKEN_ADOPT: "the name of the {} {} is taken: {}; rename one of the two, or adopt it if it is what is "
    "declared",
    Why.NAME_OF_USER_VIEW: "the name of the {} {} is taken by the user view {}",
    Why.NOT_ADOPTABLE: "{} can't be adopted: {}",
    Why.NOT_OURS: "the {} {} is there and lacks our marker: no deploy made it",
    Why.MARKED_OTHER: "the {} {} is there and carries the marker of {}, not of {}",
    Why.NOT_REMOVED: "it is not dropped: {}. Forget {} instead",
    Why.EXPORTED: "the sink {} exports it",
    Why.GONE_ADOPT: "it is gone from the catalog: remove or forget it, or let it be repaired",
    Why.DECLARE_NAME: "it is called {} now: declare that name, or repair it",
    Why.DECLARE_IT: "{}, and adopting that means to declare it so",
    Why.NO_SUCH_SOURCE: "its source {} is not declared",
    Why.READS_NOT_DECLARED: "reads {}, which is no longer declared",
    Why.USER_VIEW_BREAKS: "change the view, or let it break with break_views: {}",
    Why.TEXT: "{}",
    Why.GONE: "it is gone from the catalog",
    Why.IS_OTHER_KIND: "it is a {}, not a {}",
    Why.CALLED: "it is called {} now",
    Why.COLUMN_ADDED: "column {} was added",
    Why.COLUMN_DROPPED: "column {} was dropped",
    Why.COLUMN_TYPE: "{} is {}, not {}",
    Why.COLUMN_OPTIONAL: "{} is optional, not required",
    Why.COLUMN_REQUIRED: "{} is required, not optional",
    Why.COLUMN_ORDER: "the columns are in the order {}",
    Why.PARTITIONED: "it is partitioned by {}, not {}",
    Why.KEYED: "its keys are {}, not {}",
    Why.PROPERTY: "property {} is {}, not {}",
    Why.VIEW_TEXT: "its text was changed by hand",
    Why.WRITTEN_SO: "its name is written {}; declare it so",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason as data; its sentence is ``str(reason)``.

    :ivar facts: names, types and values, in the order of the sentence
    """

    why: Why
    facts: tuple[str, ...] = ()

    def __str__(self) -> str:
        return _SENTENCES[self.why].format(*self.facts)


def because(why: Why, *facts: object) -> Reason:
    """The reason with its facts as texts."""
    return Reason(why, tuple(map(str, facts)))
