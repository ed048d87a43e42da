"""The text of a unified diff, as git writes it (pure): names quoted, modes said, binary files only named.

What git has no words for (directories, pipes, what was too large to show) stands in lines that start with ``#``.
"""

from __future__ import annotations

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Opcode = tuple[str, int, int, int, int]

MOST_OF_A_FILE = 256 << 10
"""Bytes of one side of a file that are compared line by line."""
MOST_STEPS = 20_000_000
"""What a whole diff may take of comparing; what is above that is shown as replaced. Foreign text can be made so that
comparing it takes the square of its lines, and more."""
OFTEN = 8
"""A line that stands in a file more often than this is no landmark to compare by."""
CONTEXT = 3
_SHORT = {7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}


class Side(Record):
    """A file or link before or after."""

    mode: int
    """As git has it: 0o100644, 0o100755, 0o120000; others are written as they are."""
    data: bytes | None
    """Content, or the target of a link. None: too large to show."""
    size: int


class Difference(Record):
    """One entry: a file with two sides, or a remark in words about what git does not know."""

    path: bytes
    old: Side | None = None
    new: Side | None = None
    remark: str = ""


class Effort:
    """How many steps of comparing are left."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def spend(self, steps: int) -> bool:
        """Whether there is enough left; then it is taken."""
        if steps > self.steps:
            return False
        self.steps -= steps
        return True


def render(differences: Iterable[Difference], total: int, *, limit: int) -> str:
    """The whole text of ``total`` entries; of what does not fit into ``limit`` characters the number is said at the end.

    Entries beyond that are not asked for: each has to be read.
    """
    parts: list[str] = []
    length = 0
    effort = Effort(MOST_STEPS)
    for each in differences:
        text = one(each, effort)
        length += len(text)
        if length > limit:
            break
        parts.append(text)
    left_out = total - len(parts)
    if left_out:
        parts.append(
            f"# {left_out} more {'entry is' if left_out == 1 else 'entries are'} not shown: the diff is cut\n"
        )
    return "".join(parts)


def one(difference: Difference, effort: Effort) -> str:
    """The text of one entry; empty where nothing differs that a diff could show."""
    old, new = difference.old, difference.new
    remark = f"# {difference.remark}: {quoted(difference.path)}\n" if difference.remark else ""
    if old is not None and new is not None and old.mode & 0o170000 != new.mode & 0o170000:
        # git has no change of type: one goes, another comes.
        gone = file_text(difference.path, old, None, effort)
        return remark + gone + file_text(difference.path, None, new, effort)
    return remark + file_text(difference.path, old, new, effort)


def file_text(path: bytes, old: Side | None, new: Side | None, effort: Effort) -> str:
    if old == new or (old is None and new is None):
        return ""
    ours, theirs = quoted(path, b"a/"), quoted(path, b"b/")
    head = [f"diff --git {ours} {theirs}", *mode_lines(old, new)]
    body = list(body_lines(old, new, ours if old else "/dev/null", theirs if new else "/dev/null", effort))
    return "\n".join([*head, *body]) + "\n"


def mode_lines(old: Side | None, new: Side | None) -> list[str]:
    if old is None and new is not None:
        return [f"new file mode {new.mode:06o}"]
    if new is None and old is not None:
        return [f"deleted file mode {old.mode:06o}"]
    assert old is not None
    assert new is not None
    return [] if old.mode == new.mode else [f"old mode {old.mode:06o}", f"new mode {new.mode:06o}"]


def body_lines(old: Side | None, new: Side | None, ours: str, theirs: str, effort: Effort) -> Iterator[str]:
    sides = [side for side in (old, new) if side is not None]
    sizes = f"{old.size if old else 0} to {new.size if new else 0} bytes"
    before, after = (b"" if side is None else side.data for side in (old, new))
    if before is None or after is None:
        yield f"# too large to show: {sizes}"
        return
    if before == after:
        return
    texts = [text_of(side.data or b"") for side in sides]
    if None in texts:
        yield f"Binary files {ours} and {theirs} differ"
        yield f"# binary: {sizes}"
        return
    yield f"--- {name_line(ours)}"
    yield f"+++ {name_line(theirs)}"
    yield from hunks(text_of(before) or "", text_of(after) or "", effort)


def name_line(name: str) -> str:
    """A name with a blank in it ends with a tab, so that what reads it knows where it ends."""
    return name + "\t" if " " in name and not name.startswith('"') else name


def text_of(data: bytes) -> str | None:
    """None for what is no text: a NUL in it, or not UTF-8."""
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def quoted(path: bytes, lead: bytes = b"") -> str:
    """A name as git quotes it: in double quotes where it has control bytes, quotes or bytes above ASCII."""
    whole = lead + path
    if all(0x20 <= byte < 0x7F and byte not in b'"\\' for byte in whole):
        return whole.decode("ascii")
    return '"' + "".join(map(_spelt, whole)) + '"'


def _spelt(byte: int) -> str:
    if byte in _SHORT:
        return _SHORT[byte]
    return chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}"


def hunks(old: str, new: str, effort: Effort) -> Iterator[str]:
    """The lines of all hunks, without their line ends."""
    before, after = lines_of(old), lines_of(new)
    for group in grouped(opcodes(before, after, effort)):
        first, last = group[0], group[-1]
        yield f"@@ -{span(first[1], last[2])} +{span(first[3], last[4])} @@"
        for tag, low, high, new_low, new_high in group:
            if tag == "equal":
                yield from marked(" ", before[low:high])
            else:
                yield from marked("-", before[low:high])
                yield from marked("+", after[new_low:new_high])


def marked(mark: str, lines: list[str]) -> Iterator[str]:
    for line in lines:
        yield mark + line.removesuffix("\n")
        if not line.endswith("\n"):
            yield "\\ No newline at end of file"


def lines_of(text: str) -> list[str]:
    """Split at newlines alone: other separators are part of a line."""
    lines = text.split("\n")
    last = lines.pop()
    return [*(line + "\n" for line in lines), *([last] if last else [])]


def span(low: int, high: int) -> str:
    count = high - low
    start = low + 1 if count else low
    return str(start) if count == 1 else f"{start},{count}"


def opcodes(before: list[str], after: list[str], effort: Effort) -> list[Opcode]:
    """What is equal and what is not. The same beginning and end are taken off first."""
    head = common(before, after)
    tail = common(before[head:][::-1], after[head:][::-1])
    middle, new_middle = before[head : len(before) - tail], after[head : len(after) - tail]
    codes: list[Opcode] = [("equal", 0, head, 0, head)] if head else []
    codes += [
        (tag, low + head, high + head, new_low + head, new_high + head)
        for tag, low, high, new_low, new_high in compared(middle, new_middle, effort)
    ]
    if tail:
        codes.append(("equal", len(before) - tail, len(before), len(after) - tail, len(after)))
    return codes


def common(one: list[str], other: list[str]) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def compared(before: list[str], after: list[str], effort: Effort) -> list[Opcode]:
    if not before and not after:
        return []
    counts: dict[str, int] = {}
    for line in after:
        counts[line] = counts.get(line, 0) + 1
    landmarks = sum(counts[line] for line in before if 0 < counts.get(line, 0) <= OFTEN)
    # Each landmark may have to be looked at once for every line that is found equal.
    if not landmarks or not effort.spend(len(before) + len(after) + landmarks * min(len(before), len(after)) // 2):
        return [("replace", 0, len(before), 0, len(after))]
    import difflib

    matcher = difflib.SequenceMatcher(lambda line: counts[line] > OFTEN, before, after, autojunk=False)
    return list(matcher.get_opcodes())


def grouped(codes: list[Opcode]) -> Iterator[list[Opcode]]:
    """Hunks: changes with a few equal lines around them, apart where there are more than that between them."""
    group: list[Opcode] = []
    for at, (tag, low, high, new_low, new_high) in enumerate(codes):
        if tag != "equal":
            group.append((tag, low, high, new_low, new_high))
            continue
        first, last = at == 0, at == len(codes) - 1
        lead = min(CONTEXT, high - low)
        if first:
            group.append((tag, high - lead, high, new_high - lead, new_high))
        elif last or high - low > 2 * CONTEXT:
            group.append((tag, low, low + lead, new_low, new_low + lead))
            yield group
            group = [] if last else [(tag, high - lead, high, new_high - lead, new_high)]
        else:
            group.append((tag, low, high, new_low, new_high))
    if any(code[0] != "equal" for code in group):
        yield group
