"""Why a plan does something, or does not: an enum and its facts, and the sentences that both become."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Why(str, Enum):
    """What a reason says: its code in a plan's JSON, and its sentence, with a place for each fact."""

    sentence: str

    def __new__(cls, code: str, sentence: str) -> Why:
        found = str.__new__(cls, code)
        found._value_, found.sentence = code, sentence
        return found

    # What changed.
    NEW = "new", "new"
    KIND_CHANGED = "kind_changed", "kind: {} -> {}"
    RENAMED = "renamed", "renamed from {}"
    COLUMNS_CHANGED = "columns_changed", "columns changed"
    CONSTRAINTS_CHANGED = "constraints_changed", "constraints changed"
    QUERY_CHANGED = "query_changed", "query changed"
    DEFINITION_CHANGED = "definition_changed", "definition changed"
    STAR_CHANGED = "star_changed", "star expanded again"
    METADATA_CHANGED = "metadata_changed", "metadata changed"
    READS = "reads", "reads {}"
    READS_ANOTHER = "reads_another", "reads {}, which is another object now"
    LISTS_OBJECTS = "lists_objects", "lists the objects: {}"
    NOT_RECORDED = "not_recorded", "it is there with our marker, though not recorded"
    UNFINISHED = "unfinished", "deploy {} did not finish; continuing from what it left"
    UNFINISHED_SINK = "unfinished_sink", "a deploy that did not finish began to change it"
    CHANGED_BY_HAND = "changed_by_hand", "changed by hand"
    ADOPTED = "adopted", "as declared; takes our marker"
    MARKED = "marked", "takes our marker"
    DECLARED_NAME = "declared_name", "declared name"
    LEFTOVER = "leftover", "left by an unfinished deploy"
    REMOVED = "removed", "removed, which is accepted"
    NOT_DECLARED = "not_declared", "no longer declared; its rows may be made again"
    INSTANCE_GONE = "instance_gone", "its instance is gone"
    CREATED_AGAIN = "created_again", "to be created again"
    # What readers and sinks notice.
    CURSOR_KEPT = "cursor_kept", "{} kept, no snapshot is made"
    MIGRATION_SKIPPED = "migration_skipped", "{} kept, migration snapshots skipped"
    SINK_STOPS = "sink_stops", "stops until it is released, since {}"
    SINK_FROM_NEW = "sink_from_new", "continues with rows that come from now on, since {}"
    SINK_RESENDS = "sink_resends", "sends everything again, declared as duplicates, since {}"
    SINK_UNDECIDED = "sink_undecided", "{}: say what it is to do, by sinks: {{{}: hold | resume_from_new | resend}}"
    EMPTIED_UNFINISHED = "emptied_unfinished", "{} was emptied by deploy {}, which did not finish"
    EMPTIED = "emptied", "{} is emptied"
    MADE_AGAIN = "made_again", "{} is created again"
    EXPORTS_ANOTHER = "exports_another", "it exports {} now"
    COLUMN_RENAMED = "column_renamed", "{} is called {} now"
    SAY_COLUMNS = "say_columns", "say under sink which columns it is to send"
    READS_RENAMED = "reads_renamed", "reads {}, which is called {} now"
    READS_REMOVED = "reads_removed", "reads {}, which is removed"
    READS_UNKNOWN = "reads_unknown", "can't be read; maybe it {}"
    STAYS_READABLE = "stays_readable", "stays readable while what it reads gets wider"
    STAR_MOVES = "star_moves", "its star is written out, for the columns of {} change their places"
    BRIDGED = "bridged", "bridged by a deploy that did not finish"
    # What stops a deploy.
    NEEDS_USING = "needs_using", "{}: {} -> {} needs values: write in its `was` how they are made"
    USING_UNREADABLE = "using_unreadable", "the `using` of {}: {}"
    MAYBE_RENAMED = "maybe_renamed", "if {} is {} under a new name, write was: {}"
    MAYBE_RENAMED_OBJECT = "maybe_renamed_object", "{} comes and is like it. If it is the same, write id: {} there"
    WOULD_LOSE = (
        "would_lose",
        "{} would be lost: accept that by a document {{kind: removed, name: {}}}, "
        "or for one deploy by accept_data_loss: {}",
    )
    KEPT = "kept", "{} would be lost, and it is kept: {}. To lose it, deploy it without that reason first"
    NOT_UNDONE = "not_undone", "{} was changed by hand in a way that can't be undone without inventing values"
    DOWNGRADE = "downgrade", "downgrade not supported: recorded by {}, this is {}"
    NAME_TAKEN = "name_taken", "the name of the {} {} is taken: {}"
    NAME_TAKEN_ADOPT = (
        "name_taken_adopt",
        "the name of the {} {} is taken: {}; rename one of the two, or adopt it if it is what is declared",
    )
    NAME_OF_USER_VIEW = "name_of_user_view", "the name of the {} {} is taken by the user view {}"
    NOT_ADOPTABLE = "not_adoptable", "{} can't be adopted: {}"
    NOT_OURS = "not_ours", "the {} {} is there and lacks our marker: no deploy made it"
    MARKED_OTHER = "marked_other", "the {} {} is there and carries the marker of {}, not of {}"
    NOT_REMOVED = "not_removed", "it is not dropped: {}. Forget {} instead"
    EXPORTED = "exported", "the sink {} exports it"
    GONE_ADOPT = "gone_adopt", "it is gone from the catalog: remove or forget it, or let it be repaired"
    DECLARE_NAME = "declare_name", "it is called {} now: declare that name, or repair it"
    DECLARE_IT = "declare_it", "{}, and adopting that means to declare it so"
    NO_SUCH_SOURCE = "no_such_source", "its source {} is not declared"
    READS_NOT_DECLARED = "reads_not_declared", "reads {}, which is no longer declared"
    USER_VIEW_BREAKS = "user_view_breaks", "change the view, or let it break with break_views: {}"
    TEXT = "text", "{}"
    # What was changed by hand.
    GONE = "gone", "it is gone from the catalog"
    IS_OTHER_KIND = "is_other_kind", "it is a {}, not a {}"
    CALLED = "called", "it is called {} now"
    COLUMN_ADDED = "column_added", "column {} was added"
    COLUMN_DROPPED = "column_dropped", "column {} was dropped"
    COLUMN_TYPE = "column_type", "{} is {}, not {}"
    COLUMN_OPTIONAL = "column_optional", "{} is optional, not required"
    COLUMN_REQUIRED = "column_required", "{} is required, not optional"
    COLUMN_ORDER = "column_order", "the columns are in the order {}"
    PARTITIONED = "partitioned", "it is partitioned by {}, not {}"
    KEYED = "keyed", "its keys are {}, not {}"
    PROPERTY = "property", "property {} is {}, not {}"
    VIEW_TEXT = "view_text", "its text was changed by hand"
    WRITTEN_SO = "written_so", "its name is written {}; declare it so"


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason as data; its sentence is ``str(reason)``.

    :ivar facts: names, types and values, in the order of the sentence
    """

    why: Why
    facts: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.why.sentence.format(*self.facts)


def because(why: Why, *facts: object) -> Reason:
    """The reason with its facts as texts."""
    return Reason(why, tuple(map(str, facts)))
