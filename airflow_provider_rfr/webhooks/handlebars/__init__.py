"""Handlebars as handlebars.js 4.7 understands it with ``{strict: true, noEscape: true}``, without running any code.

A template goes through these modules, each of which knows only the ones before it::

    nodes        what a template is made of; Problem, the error with a place
    values       what JavaScript makes of a value: text, truth, properties, order
    tags         text and tags, by the lexer rules of handlebars.js
    grammar      pybars3's grammar, asked for the structure of one expression
    expressions  the tokens of one tag as an expression
    budget       steps and bytes that one rendering may take
    json_values  values as JSON
    moments      times, for comparing and formatting
    helpers      json, lookup, len, eq ...
    meaning      which names are helpers, block parameters, variables
    whitespace   ``~``, and tags that have a line for themselves
    blocks       tags as a tree
    output       plain text, or JSON that no value can break
    evaluation   the tree and variables as text
    cache        what was read already
    template     a template that has been read; the error with line and column

pybars3 itself pastes parts of a template into Python source and executes it, gets else-if, block parameters and
whitespace wrong, cuts off what it can't read, and is not safe on threads. So none of a template's text ever reaches it.
What it is asked is the structure of one expression with every name and literal in it replaced by a placeholder of the
same kind: ``{{lookup (lookup a 'b') c.d x=1}}`` is asked about as ``{{x (x x "") x xx=0}}``. Names that its grammar
refuses, or gets wrong, therefore work (``null_count``, ``2nd``, ``$x``, ``[a'b]``), as do decimal literals and
one-letter names of arguments; equal structures are asked about only once, and the plainest (``x``, ``x x``) never, as
their answers are written down and tested; and an answer counts only where the grammar has read all of the question.
"""
