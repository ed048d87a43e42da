"""Regular expressions of hosts in engines that are there: RE2 first, Python's where RE2 has no such syntax. Pure.

Patterns come from third parties, and a backtracking engine can be kept busy for ever by one. What RE2 does not know
(look-around, back-references) goes to Python only where the pattern can't explode on a text of that length.
"""

from __future__ import annotations

import re
import warnings

from stockade.policies.record import Record
from stockade.policies.text import quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

LONGEST = 2000
"""Characters of a pattern."""
MOST_STEPS = 10_000_000
"""About how often Python's engine may try, worst case."""
MANY = 10
"""A repetition of at least as many counts as one without an end."""
JS_GROUPS = re.compile(r"\(\?(?::|=|!|<=|<!|<(?P<name>[A-Za-z_$][\w$]*)>)")
JS_ESCAPES = re.compile(
    r"\\(?:u\{(?P<long>[0-9a-fA-F]{1,6})\}|u(?P<four>[0-9a-fA-F]{4})|c(?P<control>[A-Za-z])|k<(?P<back>\w+)>)"
)
END = r"(?:\Z)"
"""The end of the text, in Python's spelling; RE2 and Rust spell it with a small letter."""
JS_KNOWN = "dDwWsSbBnrtfv0123456789x"


class BadPattern(ValueError):
    """A pattern that the host would refuse, or that can't be tried here. The text says why."""


class Pattern(Record):
    """A pattern that can be searched for, unanchored."""

    engine: str
    """``re2`` or ``python``."""
    compiled: Any
    power: int = 1
    """How the worst case of Python's engine grows with the text: its length to this power ..."""
    factor: int = 1
    """... times this."""

    def found_in(self, text: str) -> bool:
        """Raises BadPattern where trying it on a text of this length could take for ever."""
        if self.engine == "python" and len(text) ** self.power * self.factor > MOST_STEPS:
            raise BadPattern("the text is too long to try a pattern with this syntax on it")
        return self.compiled.search(text) is not None


def re2_module() -> ModuleType | None:
    """google-re2, where it is installed."""
    try:
        import re2
    except ImportError:
        return None
    found: ModuleType = re2
    return found


def re2_pattern(text: str) -> Pattern:
    """A pattern in RE2's own syntax. Raises BadPattern; and RequestError where google-re2 is not installed."""
    bounded(text)
    module = re2_module()
    if module is None:
        from stockade.policies.errors import RequestError

        raise RequestError(
            "could not match a hook's pattern: the module re2 is not installed",
            remedy="Run: pip install 'stockade[hooks]'",
        )
    compiled = quiet(module, text)
    if compiled is None:
        raise BadPattern("it is no regular expression in RE2's syntax")
    return Pattern("re2", compiled)


def js_pattern(text: str) -> Pattern:
    """A JavaScript pattern (without flags). Raises BadPattern for one that is none, or can't be tried here."""
    bounded(text)
    return compiled(from_js(text))


def rust_pattern(text: str) -> Pattern:
    """A pattern for Rust's regex crate, which has no look-around and no back-references. Raises BadPattern."""
    bounded(text)
    if re.search(r"\(\?(?:[=!]|<[=!])|\\[1-9]|\(\?P=|\(\?P?>|\(\?\(", without_classes(text)):
        raise BadPattern("it has look-around or back-references, which this host's patterns do not have")
    return compiled(re.sub(r"\(\?<(?=[A-Za-z_])", "(?P<", ends_for_python(text)))


def bounded(text: str) -> None:
    if len(text) > LONGEST:
        raise BadPattern(f"it has more than {LONGEST} characters")


def compiled(text: str) -> Pattern:
    """By RE2 if it takes the pattern, else by Python if that is safe. ``text`` is in the syntax that both share."""
    module = re2_module()
    found = quiet(module, text.replace(END, r"(?:\z)")) if module else None
    if found is not None:
        return Pattern("re2", found)
    return Pattern("python", by_python(text), *cost(text))


def by_python(text: str) -> re.Pattern[str]:
    """Python's compiled pattern; it warns of nothing. Raises BadPattern."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return re.compile(text, re.ASCII)
        except (re.error, OverflowError, RecursionError) as error:
            cause = str(error)
            shown = cause if cause.isprintable() else quoted(cause)
            raise BadPattern(f"it is no regular expression: {shown}") from None


def quiet(module: ModuleType, text: str) -> Any:
    """RE2's compiled pattern, or None; it says nothing on stderr."""
    options = module.Options()
    options.log_errors = False
    try:
        return module.compile(text, options=options)
    except (module.error, UnicodeEncodeError):
        return None


def cost(text: str) -> tuple[int, int]:
    """The power and the factor of a pattern. Raises BadPattern where repetitions stand inside one another.

    Python's own parser reads it; that takes no longer than the text is long.
    """
    try:
        from re import _parser  # type: ignore[attr-defined]

        tree = _parser.parse(text, re.ASCII)
    except (ImportError, re.error, RecursionError):
        raise BadPattern("it can't be tried safely") from None
    power, factor = weighed(tree, inside=False)
    return 1 + power, factor


def weighed(tree: Any, *, inside: bool) -> tuple[int, int]:
    """The endless repetitions in a parsed pattern, and how many ways the rest of it can be tried."""
    power, factor = 0, 1
    for operator, argument in tree:
        name = str(operator)
        most = int(argument[1]) if "REPEAT" in name else 1
        endless = most >= MANY
        if inside and (endless or name in ("BRANCH", "GROUPREF")):
            raise BadPattern("it has repetitions or choices inside of repetitions, which can take for ever")
        for inner in subtrees(argument):
            more, ways = weighed(inner, inside=inside or endless)
            power, factor = power + more, factor * (ways if endless else ways**most)
        if name == "BRANCH":
            factor *= len(argument[1])
        if endless:
            power += 1
        elif "REPEAT" in name:
            factor *= most - int(argument[0]) + 1
        if factor > MOST_STEPS or power > 6:
            raise BadPattern("it can be tried in too many ways")
    return power, factor


def subtrees(argument: Any) -> list[Any]:
    """The parsed patterns inside an operator's argument."""
    if type(argument).__name__ == "SubPattern":
        return [argument]
    if isinstance(argument, tuple | list):
        return [inner for each in argument for inner in subtrees(each)]
    return []


def from_js(text: str) -> str:
    """A JavaScript pattern in the syntax that RE2 and Python share. Raises BadPattern for what JavaScript refuses."""
    made: list[str] = []
    at, in_class = 0, False
    while at < len(text):
        piece, at, in_class = js_piece(text, at, in_class)
        made.append(piece)
    return "".join(made)


def js_piece(text: str, at: int, in_class: bool) -> tuple[str, int, bool]:
    """One element of a pattern, where the next begins, and whether that is inside a class."""
    letter = text[at]
    if letter == "\\":
        return (*js_escape(text, at, in_class), in_class)
    if in_class:
        if letter == "[":
            return r"\[", at + 1, True
        return letter, at + 1, letter != "]"
    if letter == "[":
        return js_class(text, at)
    if text.startswith("(?", at):
        found = JS_GROUPS.match(text, at)
        if not found:
            raise BadPattern("it has a group that JavaScript does not have")
        return (f"(?P<{found['name']}>" if found["name"] else found.group()), found.end(), False
    if letter == "$":
        return END, at + 1, False
    if text[at + 1 : at + 2] in ("*", "+") and at > 0 and repeats(text, at):
        raise BadPattern("there is nothing to repeat")
    return letter, at + 1, False


def repeats(text: str, at: int) -> bool:
    """Whether a repetition ends at ``at``: Python reads a second sign behind it as "possessive"."""
    if text[at] == "}":
        return re.search(r"\{\d+(?:,\d*)?\}$", text[max(at - 12, 0) : at + 1]) is not None
    return text[at] in "*+?"


def js_class(text: str, at: int) -> tuple[str, int, bool]:
    """The beginning of a class; JavaScript has an empty one and one of everything."""
    if text.startswith("[]", at):
        return r"[^\s\S]", at + 2, False
    if text.startswith("[^]", at):
        return r"[\s\S]", at + 3, False
    return ("[^", at + 2, True) if text.startswith("[^", at) else ("[", at + 1, True)


def js_escape(text: str, at: int, in_class: bool) -> tuple[str, int]:
    """One escape; a letter that has no meaning stands for itself."""
    if at + 1 >= len(text):
        raise BadPattern("it ends with a backslash")
    found = JS_ESCAPES.match(text, at)
    if found and found["back"]:
        return f"(?P={found['back']})", found.end()
    if found and found["long"] is None:
        number = int(found["four"], 16) if found["four"] else ord(found["control"]) % 32
        if 0xD800 <= number < 0xE000:
            raise BadPattern("it has half a surrogate pair")
        return re.escape(chr(number)), found.end()
    letter = text[at + 1]
    if letter == "b" and in_class:
        return r"\x08", at + 2
    if letter in "pPu":
        raise BadPattern(rf"\{letter} means something else in each release")
    if letter == "0":
        return r"\x00", at + 2
    if letter in JS_KNOWN and not (letter == "x" and not re.match(r"x[0-9a-fA-F]{2}", text[at + 1 : at + 4])):
        return "\\" + letter, at + 2
    return re.escape(letter), at + 2


def ends_for_python(text: str) -> str:
    """A Rust pattern with its ends of text as Python spells them."""
    made, in_class, at = [], False, 0
    while at < len(text):
        letter = text[at]
        step = text[at : at + 2] if letter == "\\" else letter
        if not in_class and (step == "$" or step == r"\z"):
            made.append(END)
        else:
            made.append(step)
        in_class = step == "[" or (in_class and step != "]")
        at += len(step)
    return "".join(made)


def without_classes(text: str) -> str:
    """A pattern with escaped backslashes and classes taken out, to look for syntax in it."""
    return re.sub(r"\[(?:\\.|[^\]\\])*\]|\\\\", "", text)
