"""Where the hide patterns match below a root, and which sockets and FIFOs lie there: one walk for both.

Patterns are like gitignore's, without negation: components separated by ``/``, ``**`` for any number of
directories, ``*``, ``?``, ``[a-z]``, ``[!a-z]`` and ``\\`` inside a component, a final ``/`` for directories
only. A pattern without a slash matches at the root only: any depth is asked for with ``**/``. ``*`` matches
leading dots too, and letters are compared exactly.

Each directory has a *level*: the name tests that apply to its entries, made once per set of pattern positions,
so that the cost of an entry does not grow with the patterns. A link to a directory is entered only where a
pattern spells its name (``secrets/*.pem`` with ``secrets`` a link), which bounds the walk; ``**`` never enters
one. A walk that was cut says so.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from stockade.policies.errors import PolicyError
from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Test = Callable[[bytes], bool]
    Position = tuple[int, int]
    Tokens = tuple[str | tuple[bool, tuple[tuple[str, str], ...]] | None, ...]

_STAR = ""
_CHECK_EVERY = 4096
_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class Expansion(Record):
    """What one walk found. Paths are absolute when the root is; order is that of the path."""

    matches: tuple[bytes, ...]
    """Entries that match a pattern; nothing below a matched directory is looked at."""
    sockets: tuple[bytes, ...]
    """Unix sockets and FIFOs that no pattern matches."""
    complete: bool
    """False when the limit or the deadline cut the walk: entries may be missing from both lists."""
    seen: int
    """Entries looked at."""
    unreadable: tuple[bytes, ...] = ()
    """Directories that could not be listed: nothing is known of what is below them."""


def expand(root: bytes, patterns: Sequence[str], *, limit: int = 200_000, deadline: float) -> Expansion:
    """Walk ``root`` once. ``limit`` counts entries, ``deadline`` is a ``time.monotonic()`` moment in seconds.

    Raises ``PolicyError`` for a pattern that has no meaning below a root (empty, absolute, ``..``, ``!`` first,
    NUL, an unclosed ``[``). Never raises for what it finds on the way.
    """
    levels = Levels(patterns)
    return _Walk(levels, limit, deadline).run(root)


def anchor(pattern: str) -> tuple[str, str]:
    """An absolute pattern as the deepest directory above its first wildcard, and what is left of it."""
    components = [part for part in pattern.split("/") if part not in ("", ".")]
    fixed = 0
    while fixed + 1 < len(components) and not any(mark in components[fixed] for mark in "*?[\\"):
        fixed += 1
    end = "/" if pattern.endswith("/") else ""
    return "/" + "/".join(components[:fixed]), "/".join(components[fixed:]) + end


class Levels:
    """The patterns, compiled; ``first`` is the level of the root."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.rules = tuple(_parse(pattern) for pattern in patterns)
        self._known: dict[frozenset[Position], Level] = {}
        self.first = self.level((index, 0) for index in range(len(self.rules)))

    def level(self, positions: Iterable[Position]) -> Level:
        """The level where these positions are next to be matched."""
        state = frozenset(self._closure(positions))
        if state not in self._known:
            self._known[state] = Level(self, state)
        return self._known[state]

    def _closure(self, positions: Iterable[Position]) -> Iterator[Position]:
        """``**`` may stand for no directory at all: then what follows it is next."""
        for index, step in positions:
            components = self.rules[index][0]
            yield index, step
            while components[step] == "**" and step + 1 < len(components):
                step += 1
                yield index, step


class Level:
    """The tests for the entries of one directory, sorted by shape; ``exact`` and so on mean "this matches"."""

    __slots__ = ("_levels", "_onward", "_stay", "directories", "exact", "other", "prefixes", "suffixes")

    def __init__(self, levels: Levels, state: frozenset[Position]) -> None:
        self._levels = levels
        last = [(levels.rules[index], step) for index, step in state if step + 1 == len(levels.rules[index][0])]
        whole = [components[step] for (components, only_directories), step in last if not only_directories]
        self.exact = frozenset(text for shape, text in map(_shape, whole) if shape == "exact")
        self.prefixes = tuple(text for shape, text in map(_shape, whole) if shape == "prefix")
        self.suffixes = tuple(text for shape, text in map(_shape, whole) if shape == "suffix")
        self.other = tuple(_test(component) for component in whole if _shape(component)[0] == "other")
        self.directories = tuple(
            _test(components[step]) for (components, only_directories), step in last if only_directories
        )
        self._stay = tuple((i, step) for i, step in state if levels.rules[i][0][step] == "**")
        self._onward = tuple(
            (_test(levels.rules[i][0][step]), (i, step + 1))
            for i, step in state
            if levels.rules[i][0][step] != "**" and step + 1 < len(levels.rules[i][0])
        )

    def below(self, name: bytes) -> Level:
        """The level of the directory ``name`` in this one."""
        return self._levels.level((*self._stay, *self._spelt(name)))

    def behind(self, name: bytes) -> Level | None:
        """The level behind the link ``name``: only what patterns spell. None when none does."""
        spelt = self._spelt(name)
        return self._levels.level(spelt) if spelt else None

    def _spelt(self, name: bytes) -> list[Position]:
        return [position for test, position in self._onward if test(name)]


class _Walk:
    """One walk: owns the lists while they grow."""

    def __init__(self, levels: Levels, limit: int, deadline: float) -> None:
        self.first, self.limit, self.deadline = levels.first, limit, deadline
        self.matches: list[bytes] = []
        self.sockets: list[bytes] = []
        self.unreadable: list[bytes] = []
        self.waiting: list[tuple[bytes, Level]] = []
        self.seen = 0

    def run(self, root: bytes) -> Expansion:
        """Everything below ``root``; a missing root holds nothing."""
        self.waiting.append((root.rstrip(b"/") or b"/", self.first))
        complete = True
        while self.waiting and complete:
            path, level = self.waiting.pop()
            try:
                complete = self._scan(path, level)
            except OSError as error:
                if error.errno not in _NOTHING_THERE:
                    self.unreadable.append(path)
        found = (tuple(sorted(paths)) for paths in (self.matches, self.sockets, self.unreadable))
        matches, sockets, unreadable = found
        return Expansion(matches, sockets, complete, self.seen, unreadable)

    def _scan(self, path: bytes, level: Level) -> bool:
        """One directory; False when the limit or the deadline was passed. The hot loop."""
        if time.monotonic() > self.deadline:
            return False
        exact, prefixes, suffixes, other = level.exact, level.prefixes, level.suffixes, level.other
        stop_at, check_at = self.limit - self.seen, _CHECK_EVERY
        count = 0
        with os.scandir(path) as found:
            for count, entry in enumerate(found, 1):
                if count > check_at or count > stop_at:
                    check_at += _CHECK_EVERY
                    if count > stop_at or time.monotonic() > self.deadline:
                        self.seen += count - 1
                        return False
                name = entry.name
                if (
                    name in exact
                    or name.startswith(prefixes)
                    or name.endswith(suffixes)
                    or (other and any(test(name) for test in other))
                ):
                    self.matches.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    self._special(entry, level)
        self.seen += count
        return True

    def _special(self, entry: os.DirEntry[bytes], level: Level) -> None:
        """A directory, a link, a socket, a FIFO or a device."""
        if entry.is_dir(follow_symlinks=False):
            if any(test(entry.name) for test in level.directories):
                self.matches.append(entry.path)
            else:
                self.waiting.append((entry.path, level.below(entry.name)))
        elif entry.is_symlink():
            behind = level.behind(entry.name)
            if behind:
                self.waiting.append((entry.path, behind))
        else:
            try:
                mode = entry.stat(follow_symlinks=False).st_mode
            except OSError:
                return
            if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
                self.sockets.append(entry.path)


def _parse(pattern: str) -> tuple[tuple[str, ...], bool]:
    """Components, and whether only directories match."""
    only_directories = pattern.endswith("/")
    components = tuple(part for part in pattern.split("/") if part not in ("", "."))
    cause = _refusal(pattern, components)
    if cause:
        raise PolicyError(
            f"could not use the pattern {pattern!r}: {cause}",
            remedy="write it relative to the root, for example '**/.env*' or 'secrets/*.pem'",
        )
    for component in components:
        _tokens(component, pattern)
    return components, only_directories


def _refusal(pattern: str, components: tuple[str, ...]) -> str:
    if not components:
        return "it is empty"
    if pattern.startswith("/"):
        return "it is absolute"
    if pattern.startswith("!"):
        return "there is no negation"
    if ".." in components:
        return "'..' leads out of the root"
    return "it contains a NUL byte" if "\0" in pattern else ""


def _shape(component: str) -> tuple[str, bytes]:
    """``exact``, ``prefix`` or ``suffix`` with its text, or ``other``."""
    inner = component.strip("*")
    if any(mark in inner for mark in "*?[\\"):
        return "other", b""
    if not component.startswith("*") and not component.endswith("*"):
        return "exact", os.fsencode(component)
    if not component.startswith("*") or not inner:
        return "prefix", os.fsencode(inner)
    return ("suffix", os.fsencode(inner)) if not component.endswith("*") else ("other", b"")


def _test(component: str) -> Test:
    shape, text = _shape(component)
    if shape == "exact":
        return text.__eq__
    if shape == "prefix":
        return lambda name: name.startswith(text)
    if shape == "suffix":
        return lambda name: name.endswith(text)
    start, _, end = component.partition("*")
    if not any(mark in start + end for mark in "*?[\\"):
        first, final, least = os.fsencode(start), os.fsencode(end), len(os.fsencode(start + end))
        return lambda name: name.startswith(first) and name.endswith(final) and len(name) >= least
    tokens = _tokens(component, component)
    return lambda name: _matches(tokens, os.fsdecode(name))


def _tokens(component: str, pattern: str) -> Tokens:
    """One token per character: itself, ``_STAR``, None for any one, or (negated, ranges) for a class."""
    found: list[str | tuple[bool, tuple[tuple[str, str], ...]] | None] = []
    at = 0
    while at < len(component):
        mark = component[at]
        at += 1
        if mark == "*":
            if not found or found[-1] != _STAR:
                found.append(_STAR)
        elif mark == "?":
            found.append(None)
        elif mark == "[":
            token, at = _class(component, at, pattern)
            found.append(token)
        elif mark == "\\" and at < len(component):
            found.append(component[at])
            at += 1
        else:
            found.append(mark)
    return tuple(found)


def _class(component: str, at: int, pattern: str) -> tuple[tuple[bool, tuple[tuple[str, str], ...]], int]:
    """A ``[...]`` whose first character is at ``at``, and where it ends; a ``]`` that comes first is a member."""
    negated = component[at : at + 1] in ("!", "^")
    first = at + negated
    end = component.find("]", first + 1)
    if end < 0:
        raise PolicyError(
            f"could not use the pattern {pattern!r}: a '[' is not closed",
            remedy="close it, or write '\\[' for the character itself",
        )
    ranges, at = [], first
    while at < end:
        wide = component[at + 1 : at + 2] == "-" and at + 2 < end
        ranges.append((component[at], component[at + 2] if wide else component[at]))
        at += 3 if wide else 1
    return (negated, tuple(ranges)), end + 1


def _matches(tokens: Tokens, name: str) -> bool:
    """Greedy, going back to the last star only: length of name times length of pattern at worst."""
    at = token = 0
    star, resume = -1, 0
    while at < len(name):
        if token < len(tokens) and tokens[token] == _STAR:
            star, resume = token, at
            token += 1
        elif token < len(tokens) and _accepts(tokens[token], name[at]):
            token += 1
            at += 1
        elif star >= 0:
            resume += 1
            token, at = star + 1, resume
        else:
            return False
    return all(rest == _STAR for rest in tokens[token:])


def _accepts(token: str | tuple[bool, tuple[tuple[str, str], ...]] | None, letter: str) -> bool:
    if token is None:
        return True
    if isinstance(token, str):
        return token == letter
    negated, ranges = token
    return negated != any(low <= letter <= high for low, high in ranges)
