"""A table of options, and what reads it: the parser and the help text. No argparse: that is 6 ms.

Pure. What the values mean is the commands' business; this file knows only their shape.
"""

from __future__ import annotations

from stockade.policies.errors import RequestError
from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import NoReturn

FLAG, VALUE, APPEND, OPTIONAL_FILE = "flag", "value", "append", "optional-file"
_DEFAULTS: dict[str, object] = {FLAG: False, VALUE: None, APPEND: (), OPTIONAL_FILE: None}
_LEFT_MOST, _INDENT = 30, 2


class UsageError(RequestError):
    """The command line can't be understood. Nothing was run."""


class Option(Record):
    """One row of the table."""

    flags: tuple[str, ...]
    """All spellings, with their dashes: ``("-t", "--timeout")``."""
    dest: str
    """The key of the value."""
    kind: str = FLAG
    """``flag`` (False or True), ``value`` (None or text, once), ``append`` (a tuple of texts),
    ``optional-file`` (None, True when alone, text after ``=``)."""
    metavar: str = ""
    help: str = ""
    group: str = "Options"
    """The heading of the help text under which it stands."""


class Parsed(Record):
    """What a command line says."""

    values: dict[str, object]
    """By ``dest``, one for every option of the table."""
    rest: tuple[str, ...]
    """The command, or the other words."""


def parse(options: Sequence[Option], argv: Sequence[str], *, rest: str) -> Parsed:
    """Read ``argv`` (without the program and subcommand names) by the table.

    ``rest`` says what the first word that is no option is: ``command``, it and everything after it are left
    alone; ``args``, a word like others, before and between options; ``none``, an error. ``--`` ends the options
    (for ``none``, nothing may follow it). Raises ``UsageError``.
    """
    table = {flag: option for option in options for flag in option.flags}
    values: dict[str, object] = {option.dest: _DEFAULTS[option.kind] for option in options}
    given: set[str] = set()
    words: list[str] = []
    at = 0
    while at < len(argv):
        word = argv[at]
        at += 1
        if word == "--":
            words += argv[at:]
            break
        if not word.startswith("-") or word == "-":
            words.append(word)
            if rest == "command":
                words += argv[at:]
                break
            continue
        flag, equals, text = word.partition("=") if word.startswith("--") else (word, "", "")
        option = table.get(flag) or _unknown(flag, table)
        if option.kind in (VALUE, APPEND) and not equals:
            text = _following(flag, argv[at : at + 1], table)
            at += 1
        _store(values, given, option, flag, text if equals or option.kind in (VALUE, APPEND) else None)
    if words and rest == "none":
        raise UsageError(f"could not use the argument {words[0]!r}: none is expected here", remedy="leave it out")
    return Parsed(values, tuple(words))


def _following(flag: str, following: Sequence[str], table: dict[str, Option]) -> str:
    """The value that stands after ``flag``; what is itself an option was hardly meant as one."""
    for word in following:
        if word != "--" and word.partition("=")[0] not in table:
            return word
    hint = f"write {flag} {_metavar(table[flag])}"
    if following and flag.startswith("--"):
        hint += f", or {flag}={following[0]} if that is the value"
    raise UsageError(f"could not read the option {flag!r}: its value is missing", remedy=hint)


def _store(values: dict[str, object], given: set[str], option: Option, flag: str, text: str | None) -> None:
    if option.kind == FLAG and text is not None:
        raise UsageError(f"could not read the option {flag!r}: it takes no value", remedy=f"write {flag} alone")
    if option.kind == OPTIONAL_FILE and text == "":
        raise UsageError(
            f"could not read the option {flag!r}: the file name is empty", remedy=f"write {flag} alone"
        )
    if option.dest in given and option.kind in (VALUE, OPTIONAL_FILE):
        raise UsageError(f"could not read the option {flag!r}: it is given twice", remedy="give it once")
    given.add(option.dest)
    if option.kind == APPEND:
        before = values[option.dest]
        assert isinstance(before, tuple)
        values[option.dest] = (*before, text)
    else:
        values[option.dest] = True if text is None else text


def _unknown(flag: str, table: dict[str, Option]) -> NoReturn:
    near = min(table, key=lambda known: (edit_distance(flag, known), known), default="")
    close = near and edit_distance(flag, near) <= max(1, len(flag) // 3)
    if close:
        remedy = f"did you mean {near}?"
    elif not flag.startswith("--") and flag[:2] in table:
        remedy = f"options of one letter stand alone: {flag[:2]} {flag[2:]!r}"
    else:
        remedy = "--help lists the options; -- ends them"
    raise UsageError(f"could not read the option {flag!r}: there is no such option", remedy=remedy)


def edit_distance(one: str, two: str) -> int:
    """How many letters have to be inserted, deleted, replaced or swapped with the next; long texts are cut."""
    one, two = one[:40], two[:40]
    older: list[int] = []
    row = list(range(len(two) + 1))
    for i, a in enumerate(one, 1):
        before, older_still, older = row, older, row
        row = [i]
        for j, b in enumerate(two, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b)))
            if i > 1 and j > 1 and a == two[j - 2] and one[i - 2] == b:
                row[j] = min(row[j], older_still[j - 2] + 1)
    return row[-1]


def render_help(usage: str, summary: str, options: Sequence[Option], epilog: str, *, width: int = 80) -> str:
    """The help text: usage, summary, the options aligned under their groups, epilog.

    ``width`` is the terminal's; 80 to 100 columns of it are used. Paragraphs of ``summary`` and ``epilog`` are
    wrapped, except indented lines, which stay as they are (examples).
    """
    width = min(max(width, 80), 100)
    left = min(_LEFT_MOST, max((len(_spelt(option)) for option in options), default=0))
    blocks = [f"usage: {usage}", *_paragraphs(summary, width)]
    for group in dict.fromkeys(option.group for option in options):
        rows = [line for option in options if option.group == group for line in _row(option, left, width)]
        blocks.append("\n".join((f"{group}:", *rows)))
    blocks += _paragraphs(epilog, width)
    return "\n\n".join(blocks) + "\n"


def _metavar(option: Option) -> str:
    return option.metavar or option.dest.upper().replace("_", "-")


def _spelt(option: Option) -> str:
    """``-t, --timeout SECONDS``."""
    value = {VALUE: " " + _metavar(option), APPEND: " " + _metavar(option), OPTIONAL_FILE: f"[={_metavar(option)}]"}
    return ", ".join(option.flags) + value.get(option.kind, "")


def _row(option: Option, left: int, width: int) -> Iterator[str]:
    """One option: its spelling, and beside it (below it when that is long) its help."""
    spelt = _spelt(option)
    lines = wrap(option.help, width - left - 2 * _INDENT)
    if len(spelt) > left or not lines:
        yield " " * _INDENT + spelt
    else:
        yield f"{'':{_INDENT}}{spelt:{left}}{'':{_INDENT}}{lines.pop(0)}"
    for line in lines:
        yield " " * (left + 2 * _INDENT) + line


def _paragraphs(text: str, width: int) -> Iterator[str]:
    for paragraph in text.strip("\n").split("\n\n"):
        if paragraph.startswith(" ") or "\n " in paragraph:
            yield paragraph
        elif paragraph.strip():
            yield "\n".join(wrap(paragraph, width))


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most ``width`` columns; a word that is longer has a line of its own."""
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += " " + word
        else:
            lines.append(word)
    return lines
