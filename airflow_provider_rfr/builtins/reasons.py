"""The reasons in a plan: an enum and its facts, and the sentences that both become."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Why(str, Enum):
    """The meaning of a reason: its code in a plan's JSON, and its sentence, with a placeholder for each fact."""

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
    LISTS_OBJECTS = "lists_objects", "lists the objects, and there are others: {}"
    NOT_RECORDED = "not_recorded", "it is there with our marker, though not recorded"
    UNFINISHED = "unfinished", "a deploy that did not finish left it so"
    CHANGED_BY_HAND = "changed_by_hand", "changed by hand"
    ADOPTED = "adopted", "as declared; takes our marker"
    DECLARED_NAME = "declared_name", "declared name"
    REMOVED = "removed", "no longer declared"
    # What readers and sinks notice.
    CURSOR_KEPT = "cursor_kept", "{} kept, nothing is sent again"
    SINK_UNDECIDED = "sink_undecided", "{}: say what it is to do, by sinks: {{{}: hold | resume_from_new | resend}}"
    EMPTIED_UNFINISHED = "emptied_unfinished", "{} was emptied by deploy {}, which did not finish"
    EMPTIED = "emptied", "{} is emptied"
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
    FIELD_TAKEN = (
        "field_taken",
        "a field of {} is to take the name of one that is still there: rename that one too, "
        "or drop it in a release before",
    )
    MAYBE_RENAMED_OBJECT = "maybe_renamed_object", "{} comes and is like it. If it is the same, write id: {} there"
    WOULD_LOSE = (
        "would_lose",
        "{} would be lost: accept that by a document {{kind: removed, name: {}}}, "
        "or for one deploy by accept_data_loss: {}",
    )
    KEPT = "kept", "{} would be lost, and it is kept: {}. To lose it, deploy it without that reason first"
    NOT_UNDONE = "not_undone", "{} was changed by hand in a way that can't be undone without inventing values"
    DOWNGRADE = "downgrade", "downgrade not supported: recorded by {}, this is {}"
    NAME_TAKEN = "name_taken", "the name of the {} {} is taken: {}; rename one of the two, or adopt what has no marker"
    NOT_ADOPTABLE = "not_adoptable", "{} can't be adopted: {}"
    NOT_OURS = "not_ours", "the {} {} is there and lacks our marker: no deploy made it"
    MARKED_OTHER = "marked_other", "the {} {} is there and carries the marker of {}, not of {}"
    NOT_REMOVED = "not_removed", "it is not dropped: {}. Forget {} instead"
    EXPORTED = "exported", "the sink {} exports it"
    GONE_ADOPT = "gone_adopt", "it is gone from the catalog: remove or forget it, or let it be repaired"
    DECLARE_NAME = "declare_name", "it is called {} now: declare that name, or repair it"
    DECLARE_IT = "declare_it", "{}, and adopting that means to declare it so"
    NO_SUCH_SOURCE = "no_such_source", "its source {} is not declared"
    USER_VIEW_BREAKS = "user_view_breaks", "change the view, or let it break with break_views: {}"
    TEXT = "text", "{}"
    # What was changed by hand.
    GONE = "gone", "it is gone from the catalog"
    IS_OTHER_KIND = "is_other_kind", "it is a {}, not a {}"
    CALLED = "called", "it is called {} now"
    DIFFERS = "differs", "{}: {} -> {}"
    VIEW_TEXT = "view_text", "its text was changed by hand"


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
    """Return a reason with its facts as texts."""
    return Reason(why, tuple(map(str, facts)))
