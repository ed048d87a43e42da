"""A hooks file whose commands go through ``stockade hook``, and back. Pure: from bytes to bytes.

Only the values of ``command`` and ``args`` are touched; every other byte stays. Which handlers a file has is told
by the loaders; files are ``ondisk``'s business.
"""

from __future__ import annotations

from stockade.policies.record import Record
from stockade.sandbox.hooks import tomltext
from stockade.sandbox.hooks.rewrite import CannotWrap, Command, check_root, command_of, original, wrapped
from stockade.sandbox.hooks.source import (
    RELAXED,
    Edit,
    HooksFileError,
    add_member,
    apply,
    parse_source,
    path_of,
    shown,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from stockade.sandbox.hooks.model import HookSpec
    from stockade.sandbox.hooks.rewrite import Choice, Needs
    from stockade.sandbox.hooks.source import Member, Node, Source

    Load = Callable[[bytes], Sequence[HookSpec]]
    """The handlers that a file with this content has."""

RUNNABLE = ("shell", "argv")
SKIPPED = {
    "http": "the host sends a request",
    "prompt": "a model is asked",
    "agent": "an agent is started",
    "mcp_tool": "a tool of an MCP server is called",
}
"""What happens instead of a program that could be confined."""


class Handled(Record):
    """What became of one handler."""

    pointer: str
    event: str
    state: str
    """``wrapped``, ``already`` (as it would be written now), ``changed`` (wrapped before, now with other options),
    ``unwrapped``, ``plain`` (nothing to undo) or ``skipped``."""
    reason: str = ""
    line: int = 0


class Rewriting(Record):
    """A file's new content."""

    data: bytes
    handlers: tuple[Handled, ...]


class Spelling(Record):
    """How a command stands in a file, byte for byte."""

    command: str
    args: str | None


def wrap(
    data: bytes,
    path: str,
    choice: Choice,
    load: Load,
    needs: Callable[[HookSpec], Needs],
    originals: Iterable[bytes] = (),
) -> Rewriting:
    """The file with every command behind ``stockade hook``; one that is already is written anew, as ``choice`` says.

    ``needs`` says what one handler's wrapper gets for itself. Raises HooksFileError for a handler that can't be
    wrapped, naming it.
    """
    before = {spec.pointer: spec for spec in load(data)}
    plain = unwrap(data, path, choice.dialect, load, originals).data
    text = Text(plain, path)
    edits: list[Edit] = []
    handled: list[Handled] = []
    for spec in load(plain):
        if alone(spec):
            handled.append(skipped(spec))
            continue
        try:
            now = command_of(spec.raw, choice.dialect)
            if now.form == "shell":
                check_root(now.text, choice.dialect, spec.root)
            new = wrapped(now, spec.raw, choice, needs(spec))
            edits += text.edits(spec.pointer, now, new)
            was = command_of(before[spec.pointer].raw, choice.dialect)
        except CannotWrap as error:
            raise refusal(path, spec, error) from None
        state = "already" if was == new else "wrapped" if was == now else "changed"
        handled.append(Handled(spec.pointer, spec.event, state, line=spec.line))
    return Rewriting(apply(text.text, edits).encode(), tuple(handled))


def unwrap(data: bytes, path: str, dialect: str, load: Load, originals: Iterable[bytes] = ()) -> Rewriting:
    """The file with every wrapper taken away. ``originals``: earlier contents, for how a command was spelt there."""
    spelt = spellings(originals, path, dialect, load)
    text = Text(data, path)
    edits: list[Edit] = []
    handled: list[Handled] = []
    for spec in load(data):
        if alone(spec):
            handled.append(skipped(spec))
            continue
        try:
            now, (old, head) = command_of(spec.raw, dialect), original(spec.raw, dialect)
        except CannotWrap as error:
            raise refusal(path, spec, error) from None
        if head:
            known = spelt.get((spec.pointer, old)) or spelt.get(("", old))
            try:
                edits += text.edits(spec.pointer, now, old, known)
            except CannotWrap as error:
                raise refusal(path, spec, error) from None
        handled.append(Handled(spec.pointer, spec.event, "unwrapped" if head else "plain", line=spec.line))
    return Rewriting(apply(text.text, edits).encode(), tuple(handled))


def alone(spec: HookSpec) -> bool:
    """Whether a handler is to stay as it is."""
    return spec.form not in RUNNABLE or (spec.dialect == "gemini" and not spec.enabled and not spec.name)


def skipped(spec: HookSpec) -> Handled:
    if spec.form in RUNNABLE:
        reason = "it is switched off by its command, another one would be switched on"
    else:
        reason = f"its type is {spec.form}: {SKIPPED.get(spec.form, 'not known here')}"
    return Handled(spec.pointer, spec.event, "skipped", reason, spec.line)


def refusal(path: str, spec: HookSpec, error: CannotWrap) -> HooksFileError:
    where = f"{shown(path)}:{spec.line}" if spec.line else shown(path)
    return HooksFileError(
        f"could not wrap {where}: the handler {shown(spec.pointer)}: {error.cause}",
        remedy=error.remedy, path=path, pointer=spec.pointer, line=spec.line, column=spec.column,
    )  # fmt: skip


def spellings(
    originals: Iterable[bytes], path: str, dialect: str, load: Load
) -> dict[tuple[str, Command], Spelling]:
    """How commands were spelt in earlier contents, by place and, under the place "", by what they are.

    Nothing else of those is ever used: whoever changes a backup changes no command.
    """
    found: dict[tuple[str, Command], Spelling] = {}
    for data in originals:
        try:
            text, specs = Text(data, path), load(data)
        except HooksFileError:
            continue
        for spec in specs:
            if spec.form in RUNNABLE:
                learn(found, text, spec, dialect)
    return found


def learn(found: dict[tuple[str, Command], Spelling], text: Text, spec: HookSpec, dialect: str) -> None:
    try:
        if original(spec.raw, dialect)[1]:
            return
        command = command_of(spec.raw, dialect)
        spelt = text.spelling(spec.pointer, command)
    except CannotWrap:
        return
    found.setdefault((spec.pointer, command), spelt)
    found.setdefault(("", command), spelt)


class Text:
    """A JSON or TOML file's text, and the edits that give a handler another command."""

    def __init__(self, data: bytes, path: str) -> None:
        if path.endswith((".md", ".markdown")):
            raise HooksFileError(
                f"could not rewrite {shown(path)}: its hooks stand in front matter, which is YAML",
                remedy="Write `stockade hook ... --` in front of its commands by hand.",
                path=path,
            )
        self.json = not path.endswith(".toml")
        self.source: Source | None = parse_source(data, path, RELAXED) if self.json else None
        self.text = self.source.text if self.source else data.decode()

    def spelling(self, pointer: str, command: Command) -> Spelling:
        if self.source is None:
            return Spelling(self.toml(pointer, command).text, None)
        member, args = members(self.source, pointer)
        return Spelling(
            self.text[member.node.start : member.node.end],
            self.text[args.node.start : args.node.end] if args else None,
        )

    def edits(self, pointer: str, now: Command, new: Command, known: Spelling | None = None) -> list[Edit]:
        """What gives the handler ``new`` for ``now``; ``known`` is how ``new`` is to be spelt. Raises CannotWrap."""
        if self.source is None:
            place = self.toml(pointer, now)
            return [place.replace(text=known.command if known else tomltext.written(new.text))]
        member, args = members(self.source, pointer)
        first = known.command if known else json_text(new.words[0])
        edits = [Edit(member.node.start, member.node.end, first)]
        if new.form == "shell":
            return edits if now.form == "shell" or args is None else [*edits, removal(self.source, pointer, args)]
        if now.form == "shell":
            return [*edits, add_member(self.source, member, "args", f"[{json_list(new.words[1:])}]")]
        assert args is not None
        if known is not None and known.args is not None:
            return [*edits, Edit(args.node.start, args.node.end, known.args)]
        return [*edits, shifted(self.text, args.node, now, new)]

    def toml(self, pointer: str, command: Command) -> Edit:
        place = tomltext.string_at(self.text, (*path_of(pointer), "command"), command.text)
        if place is None:
            raise CannotWrap("its command is no string on one line", 'Write command = "..." on one line.')
        return place


def members(source: Source, pointer: str) -> tuple[Member, Member | None]:
    """The handler's ``command`` and ``args``."""
    node = source.at(pointer)
    command = node.member("command") if node is not None else None
    if node is None or command is None:
        raise CannotWrap("it has no command")
    return command, node.member("args")


def removal(source: Source, pointer: str, args: Member) -> Edit:
    """Takes ``args`` away with the comma before it, or the one behind it."""
    node = source.at(pointer)
    assert node is not None
    at = node.members.index(args)
    if at:
        return Edit(node.members[at - 1].node.end, args.node.end, "")
    return Edit(args.start, node.members[1].start if len(node.members) > 1 else args.node.end, "")


def shifted(text: str, node: Node, now: Command, new: Command) -> Edit:
    """Puts words in front of a list, or takes them away there; what follows stays as it is laid out."""
    more = len(new.words) - len(now.words)
    start = node.start + 1
    if more > 0:
        return Edit(start, start, json_list(new.words[1 : more + 1]) + (", " if node.items else ""))
    end = node.items[-more - 1].end
    if len(node.items) > -more:
        end = end + 2 if text.startswith(", ", end) else node.items[-more].start
    return Edit(start, end, "")


def json_text(value: str) -> str:
    """A JSON string; letters as they are, but for halves of surrogate pairs, which UTF-8 does not have."""
    import json

    text = json.dumps(value, ensure_ascii=False)
    return (
        text if text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text) else json.dumps(value)
    )


def json_list(words: Sequence[str]) -> str:
    return ", ".join(map(json_text, words))
