"""A shell text taken apart into its simple commands, well enough to judge it. Pure; nothing is ever executed.

This is for reading what others wrote: where the text is odder than this reader, it says less, never something wrong
with confidence. What decides what is run is ``words``.
"""

from __future__ import annotations

from stockade.policies.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BLANKS = " \t"
OPERATORS = ("&&", "||", ";;", "|&", "\n", ";", "|", "&", "(", ")")
REDIRECTS = ("&>>", "<<<", "<<-", ">>", "<<", ">&", "<&", "<>", ">|", "&>", ">", "<")
KEYWORDS = frozenset(("if", "then", "elif", "else", "fi", "do", "done", "while", "until", "{", "}", "!", "time"))
MOST_NESTED = 6


class Word(Record):
    """One word of a shell text."""

    raw: str
    text: str | None
    """What it expands to; None where that is not known."""
    names: tuple[str, ...] = ()
    """The variables in it."""
    bare: tuple[str, ...] = ()
    """Those of them outside of quotes."""
    quoted: tuple[str, ...] = ()
    """Those of them inside double quotes."""
    inner: tuple[str, ...] = ()
    """The texts of its command substitutions."""


class Command(Record):
    """One simple command."""

    words: tuple[Word, ...]
    before: str = ""
    """The operator before it."""
    after: str = ""
    """The operator behind it."""
    redirects: tuple[tuple[str, Word], ...] = ()
    assigned: tuple[Word, ...] = ()
    nested: bool = False
    """Whether it is part of a substitution or of an inner shell's text."""

    @property
    def name(self) -> str:
        """The program's own name, without its directory; empty where it is not known."""
        text = self.words[0].text if self.words else None
        return text.rpartition("/")[2] if text else ""

    def texts(self) -> tuple[str, ...]:
        """The words as far as they are known; one that is not stands as it is written."""
        return tuple(word.raw if word.text is None else word.text for word in self.words)


class Lexer:
    """Words and operators, one after another."""

    def __init__(self, text: str, env: Mapping[str, str]) -> None:
        self.text, self.env, self.at = text, env, 0
        self.broken = False
        """Whether a quote or bracket was never closed."""

    def tokens(self) -> Iterator[Word | str]:
        """Words, operators and redirections (``>`` with a leading descriptor number)."""
        text = self.text
        while self.at < len(text):
            if text.startswith("\\\n", self.at):
                self.at += 2
            elif text[self.at] in BLANKS:
                self.at += 1
            elif text[self.at] == "#":
                self.at = end_of(text, "\n", self.at)
            elif (found := self.redirect()) or (found := self.operator()):
                yield found
            else:
                yield self.word()

    def operator(self) -> str:
        found = next((each for each in OPERATORS if self.text.startswith(each, self.at)), "")
        self.at += len(found)
        return found

    def redirect(self) -> str:
        """A redirection with the descriptor before it, such as ``2>``."""
        start = end = self.at
        while end < len(self.text) and self.text[end].isdecimal():
            end += 1
        found = next((each for each in REDIRECTS if self.text.startswith(each, end)), "")
        if not found:
            return ""
        self.at = end + len(found)
        return self.text[start : self.at]

    def word(self) -> Word:
        start, made = self.at, Making(self)
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter in BLANKS or letter in "\n;|&()<>":
                break
            made.take(letter)
        if self.at == start:
            self.at += 1
        return made.word(self.text[start : self.at])

    def until(self, close: str, start: int) -> str:
        """The text up to a bracket that closes what is open, past nested ones and quotes; the place moves behind it."""
        opening = {")": "(", "}": "{"}[close]
        deep, at = 1, start
        while at < len(self.text):
            letter = self.text[at]
            if letter == "\\":
                at += 1
            elif letter == '"' or (letter == "'" and close == ")"):
                at = end_of(self.text, letter, at + 1)
            elif letter in (opening, close):
                deep += 1 if letter == opening else -1
                if not deep:
                    self.at = at + 1
                    return self.text[start:at]
            at += 1
        self.broken, self.at = True, len(self.text)
        return self.text[start:]


class Making:
    """One word while it is put together."""

    def __init__(self, lexer: Lexer) -> None:
        self.lexer = lexer
        self.pieces: list[str] = []
        self.known = True
        self.bare: list[str] = []
        self.quoted: list[str] = []
        self.inner: list[str] = []

    def word(self, raw: str) -> Word:
        text = "".join(self.pieces) if self.known else None
        names = tuple(dict.fromkeys((*self.bare, *self.quoted)))
        return Word(raw, text, names, tuple(self.bare), tuple(self.quoted), tuple(self.inner))

    def take(self, letter: str) -> None:
        lexer = self.lexer
        if letter == "'":
            end = end_of(lexer.text, "'", lexer.at + 1)
            lexer.broken |= end >= len(lexer.text)
            self.pieces.append(lexer.text[lexer.at + 1 : end])
            lexer.at = end + 1
        elif letter == '"':
            lexer.at += 1
            self.double()
        elif letter == "\\":
            self.pieces.append(lexer.text[lexer.at + 1 : lexer.at + 2].strip("\n"))
            lexer.at += 2
        elif letter in "$`":
            self.expansion(self.bare)
        elif letter == "~" and not self.pieces and lexer.text[lexer.at + 1 : lexer.at + 2] in ("/", "", " "):
            self.pieces.append(lexer.env.get("HOME", "~"))
            lexer.at += 1
        else:
            self.known = self.known and letter not in "*?["
            self.pieces.append(letter)
            lexer.at += 1

    def double(self) -> None:
        """Up to the closing double quote."""
        lexer = self.lexer
        while lexer.at < len(lexer.text):
            letter = lexer.text[lexer.at]
            if letter == '"':
                lexer.at += 1
                return
            if letter == "\\" and lexer.text[lexer.at + 1 : lexer.at + 2] in tuple('"\\$`'):
                self.pieces.append(lexer.text[lexer.at + 1])
                lexer.at += 2
            elif letter in "$`":
                self.expansion(self.quoted)
            else:
                self.pieces.append(letter)
                lexer.at += 1
        lexer.broken = True

    def expansion(self, names: list[str]) -> None:
        """``$NAME``, ``${...}``, ``$(...)``, backticks; a lone ``$`` is itself."""
        lexer = self.lexer
        rest = lexer.text[lexer.at : lexer.at + 3]
        if rest.startswith("`"):
            end = end_of(lexer.text, "`", lexer.at + 1)
            self.inner.append(lexer.text[lexer.at + 1 : end])
            lexer.at, self.known = end + 1, False
        elif rest.startswith("$("):
            found = lexer.until(")", lexer.at + 2)
            self.known = False
            if not rest.startswith("$(("):
                self.inner.append(found)
        elif rest.startswith("${"):
            self.braced(lexer.until("}", lexer.at + 2), names)
        else:
            self.plain(names)

    def braced(self, found: str, names: list[str]) -> None:
        name = leading_name(found.lstrip("!#"))
        if not name:
            self.known = False
            return
        names.append(name)
        rest = found[len(name) :]
        if name in self.lexer.env and (found == name or rest.startswith((":-", "-"))):
            self.pieces.append(self.lexer.env[name])
        else:
            self.known = False

    def plain(self, names: list[str]) -> None:
        lexer = self.lexer
        name = leading_name(lexer.text[lexer.at + 1 : lexer.at + 200])
        if name:
            names.append(name)
            lexer.at += 1 + len(name)
            self.known = self.known and name in lexer.env
            self.pieces.append(lexer.env.get(name, ""))
        elif lexer.text[lexer.at + 1 : lexer.at + 2] in tuple("@*#?$!-0123456789"):
            lexer.at += 2
            self.known = False
        else:
            self.pieces.append("$")
            lexer.at += 1


def leading_name(text: str) -> str:
    end = 0
    while end < len(text) and text[end].isascii() and (text[end].isalnum() or text[end] == "_"):
        end += 1
    return "" if text[:1].isdecimal() else text[:end]


def end_of(text: str, mark: str, start: int) -> int:
    """Where the next unescaped ``mark`` is (escaped only inside double quotes and backticks), or the text's end."""
    at = start
    while at < len(text) and text[at] != mark:
        at += 2 if text[at] == "\\" and mark in '"`' else 1
    return min(at, len(text))


def commands(text: str, env: Mapping[str, str], nested: int = 0) -> list[Command]:
    """The simple commands of a text in order, those of substitutions and of inner shells' texts behind their own."""
    lexer = Lexer(text, env)
    found: list[Command] = []
    gather = Gather("")
    for piece in lexer.tokens():
        if isinstance(piece, Word):
            gather.word(piece)
        elif piece.lstrip("0123456789") in REDIRECTS:
            gather.pending = piece
        else:
            found += gather.command(piece, nested)
            gather = Gather(piece)
            if piece == "\n":
                lexer.at = past_documents(text, lexer.at, marks(found))
    found += gather.command("", nested)
    return [each for one in found for each in (one, *inside(one, env, nested))]


class Gather:
    """The words of one command as they come."""

    def __init__(self, before: str) -> None:
        self.before, self.pending = before, ""
        self.words: list[Word] = []
        self.redirects: list[tuple[str, Word]] = []
        self.assigned: list[Word] = []

    def word(self, word: Word) -> None:
        if self.pending:
            self.redirects.append((self.pending, word))
            self.pending = ""
        elif not self.words and word.raw in KEYWORDS:
            return
        elif not self.words and assigns(word.raw):
            self.assigned.append(word)
        else:
            self.words.append(word)

    def command(self, after: str, nested: int) -> list[Command]:
        if not (self.words or self.redirects or self.assigned):
            return []
        return [
            Command(
                tuple(self.words), self.before, after, tuple(self.redirects), tuple(self.assigned), nested > 0
            )
        ]  # fmt: skip


def assigns(raw: str) -> bool:
    name, equals, _value = raw.partition("=")
    return bool(equals) and leading_name(name) == name and bool(name)


def marks(found: list[Command]) -> list[str]:
    """The end marks of here-documents that the last line opened."""
    if not found:
        return []
    return [
        word.raw.strip("'\"\\") for sign, word in found[-1].redirects if sign.lstrip("0123456789") in ("<<", "<<-")
    ]


def past_documents(text: str, at: int, ends: list[str]) -> int:
    """Past the lines of here-documents."""
    for mark in ends:
        while at < len(text):
            end = end_of(text, "\n", at)
            line, at = text[at:end], min(end + 1, len(text))
            if line.lstrip("\t") == mark:
                break
    return at


def inside(command: Command, env: Mapping[str, str], nested: int) -> Iterator[Command]:
    """The commands of a command's substitutions and of the text that it gives to a shell."""
    if nested >= MOST_NESTED:
        return
    words = (*command.words, *command.assigned, *(word for _sign, word in command.redirects))
    for text in [text for word in words for text in word.inner]:
        yield from commands(text, env, nested + 1)
    from stockade.sandbox.hooks.words import SHELLS, inline_text

    if command.name in SHELLS or command.name == "eval":
        texts = command.texts()[1:]
        inner = " ".join(texts) if command.name == "eval" else inline_text(texts)
        if inner:
            yield from commands(inner, env, nested + 1)


def unfinished(text: str) -> bool:
    """Whether a quote or bracket in a text is never closed."""
    lexer = Lexer(text, {})
    for _each in lexer.tokens():
        pass
    return lexer.broken
