"""What strace wrote about a run: files opened, programs executed. Pure."""

from __future__ import annotations

import re
import shlex

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CALLS = ("open", "openat", "creat", "execve", "execveat")
LINE = re.compile(r"^(?:\[pid +(\d+)\] )?(.*)$")
CALL = re.compile(r"^(open|openat|creat|execve|execveat)\((.*)\) += (.*)$")
RESUMED = re.compile(r"^<\.\.\. \w+ resumed>(.*)$")
UNFINISHED = " <unfinished ...>"
TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"(\.\.\.)?')
ESCAPE = re.compile(r"\\(x[0-9a-f]{2}|[0-7]{1,3}|.)", re.DOTALL)
LETTERS = {"n": "\n", "t": "\t", "r": "\r", "v": "\v", "f": "\f", "a": "\a", "b": "\b", "e": "\x1b"}
RESULT = re.compile(r"^(\d+)<(.*)>(?:\(deleted\))?$")
FOLDER = re.compile(r"^(?:AT_FDCWD|\d+)<(.*?)>, ")
SYSTEM = (
    "/usr/lib", "/lib", "/usr/share/locale", "/usr/share/zoneinfo", "/usr/share/icu", "/etc/ld.so", "/usr/local/lib",
    "/etc/localtime", "/dev/null", "/etc/nsswitch.conf", "/usr/share/nodejs", "/usr/share/perl", "/usr/include",
)  # fmt: skip
"""Where programs look on their own account."""
LIBRARY = re.compile(r"\.so(\.\d+)*$|/(site-packages|lib/python3[.\d]*|lib/node_modules)/|/(gconv|locale)/")
MOST_OPENED = 400
MOST_COMMANDS = 200
LONGEST_COMMAND = 4000


class Opened(Record):
    """One file that was opened, or tried."""

    path: str
    worked: bool
    reads: bool
    writes: bool


class Trace(Record):
    """What one run did."""

    opened: tuple[Opened, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()
    """Argument lists of what was really executed."""

    def read(self) -> set[str]:
        """Paths of the files that were opened for reading."""
        return {each.path for each in self.opened if each.worked and each.reads}

    def looked_at(self) -> tuple[str, ...]:
        """Paths that were opened or tried, each once, without what every program opens."""
        paths = dict.fromkeys(each.path for each in self.opened if not is_system(each.path))
        return tuple(paths)[:MOST_OPENED]

    def command_lines(self) -> tuple[str, ...]:
        """As a shell would take them; control characters are left to whoever shows them."""
        return tuple(shlex.join(words)[:LONGEST_COMMAND] for words in self.commands[:MOST_COMMANDS])


def is_system(path: str) -> bool:
    return path.startswith(SYSTEM) or LIBRARY.search(path) is not None


def parse(data: bytes) -> Trace:
    """The trace of ``-f -y`` with the calls above. What can't be read is left out."""
    opened: dict[tuple[str, bool, bool, bool], Opened] = {}
    commands: list[tuple[str, ...]] = []
    for name, arguments, result in calls(data.decode("utf-8", "surrogateescape").split("\n")):
        if name.startswith("exec"):
            if result == "0" or result.startswith("0 "):
                commands.append(words_of(arguments))
            continue
        seen = opening(name, arguments, result)
        if seen is not None:
            opened.setdefault((seen.path, seen.worked, seen.reads, seen.writes), seen)
    return Trace(tuple(opened.values()), tuple(commands))


def calls(lines: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Name, arguments and result of every whole call, those put together that others came between."""
    waiting: dict[str, str] = {}
    for line in lines:
        found = LINE.match(line)
        if found is None:
            continue
        who, text = found[1] or "", found[2]
        if text.endswith(UNFINISHED):
            waiting[who] = text.removesuffix(UNFINISHED)
            continue
        rest = RESUMED.match(text)
        if rest is not None:
            # A thread that is alone loses its number: its call is the one that still waits.
            begun = waiting.pop(who, None)
            if begun is None and len(waiting) == 1:
                begun = waiting.popitem()[1]
            text = (begun or "") + rest[1]
        call = CALL.match(text)
        if call is not None:
            yield call[1], call[2], call[3]


def opening(name: str, arguments: str, result: str) -> Opened | None:
    text = TEXT.search(arguments)
    if text is None:
        return None
    landed = RESULT.match(result)
    path = plain(landed[2]) if landed else placed(arguments, plain(text[1]))
    flags = arguments[text.end() :]
    writes = name == "creat" or "O_WRONLY" in flags or "O_RDWR" in flags
    reads = name != "creat" and "O_WRONLY" not in flags and "O_PATH" not in flags and "O_DIRECTORY" not in flags
    return Opened(path, landed is not None, reads, writes)


def placed(arguments: str, path: str) -> str:
    """A path that was not opened, from where it was looked for."""
    folder = FOLDER.match(arguments)
    return path if path.startswith("/") or folder is None else f"{plain(folder[1])}/{path}"


def words_of(arguments: str) -> tuple[str, ...]:
    """The argument list of an execve: between the brackets."""
    start = arguments.find("[")
    words = []
    at = start + 1
    while start >= 0 and (found := TEXT.match(arguments, at)):
        words.append(plain(found[1]) + (found[2] or ""))
        at = found.end() + 2
    return tuple(words)


def plain(text: str) -> str:
    """A C string's letters."""
    if "\\" not in text:
        return text
    raw = ESCAPE.sub(letter, text)
    return raw.encode("latin-1", "replace").decode("utf-8", "replace") if not raw.isascii() else raw


def letter(found: re.Match[str]) -> str:
    code = found[1]
    if code[0] == "x" and len(code) == 3:
        return chr(int(code[1:], 16))
    if code[0] in "01234567":
        return chr(int(code, 8) & 0xFF)
    return LETTERS.get(code, code)
