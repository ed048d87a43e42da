"""Reading the values of a hooks file by what they should be. What does not fit becomes a finding. Pure."""

from __future__ import annotations

from stockade.policies.text import quoted
from stockade.sandbox.hooks.finding import Finding
from stockade.sandbox.hooks.source import Node, pointer_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Path = tuple[str | int, ...]

WANTED = {
    "text": "a string", "texts": "a list of strings", "number": "a number", "switch": "true or false",
    "table": "an object", "map": "an object of strings", "list": "a list", "null-or-number": "a number or null",
}  # fmt: skip


class Reader:
    """One file being read: what was found, and what is wrong with it."""

    def __init__(self, path: str, dialect: str) -> None:
        self.path, self.dialect = path, dialect
        self.findings: list[Finding] = []

    def tell(self, code: str, severity: str, text: str, node: Node, at: Path, remedy: str, event: str = "") -> None:
        """Add a finding about ``node``, which stands at the steps ``at``."""
        self.findings.append(
            Finding(code, severity, text, self.path, pointer_of(at), node.line, node.column, remedy, event)
        )

    def wrong(self, node: Node, at: Path, wanted: str, remedy: str = "") -> None:
        """The shape is not the one that the host reads."""
        text = f"it is {described(node)}, expected is {wanted}"
        self.tell("wrong_shape", "error", text, node, at, remedy or f"Write {wanted}.")

    def members(self, node: Node, at: Path, wanted: str) -> Iterator[tuple[str, Node]]:
        """The members of an object, each key once, the last that counts."""
        if node.kind != "object":
            self.wrong(node, at, wanted)
            return
        yield from {member.key: member.node for member in node.members}.items()

    def items(self, node: Node, at: Path, wanted: str) -> Iterator[tuple[int, Node]]:
        if node.kind != "array":
            self.wrong(node, at, wanted)
            return
        yield from enumerate(node.items)

    def fits(self, node: Node, at: Path, kind: str) -> bool:
        """Whether a value is of a kind of field; a finding if it is not."""
        if kind == "any" or shaped(node, kind):
            return True
        self.wrong(node, at, WANTED[kind])
        return False


def shaped(node: Node, kind: str) -> bool:
    if kind == "texts":
        return node.kind == "array" and all(each.kind == "string" for each in node.items)
    if kind == "map":
        return node.kind == "object" and all(each.node.kind == "string" for each in node.members)
    if kind == "null-or-number":
        return node.kind in ("null", "number")
    names = {"text": "string", "number": "number", "switch": "boolean", "table": "object", "list": "array"}
    return node.kind == names[kind]


def described(node: Node) -> str:
    """What a value is, for a message."""
    if node.kind in ("object", "array", "null"):
        return {"object": "an object", "array": "a list", "null": "null"}[node.kind]
    name = {"string": "the string", "number": "the number", "boolean": "the truth value"}[node.kind]
    written = str(node.value).lower() if node.kind == "boolean" else quoted(node.value)
    return f"{name} {written}"
