"""Where the value of a header comes from: a variable, a file, a command's output, or the policy itself.

Read when a run begins, never kept. An error names the source and never the value. Its grammar is judged by
``policies.edgefields`` before anything gets here.
"""

from __future__ import annotations

import os

from stockade.policies.errors import RequestError
from stockade.policies.record import Record
from stockade.policies.text import quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable, Mapping

    from stockade.policies.edge import EdgeRule, Header

LARGEST = 64 << 10
"""Bytes of a value; more than any server takes."""
SHORTEST = 4
"""A secret below that would be found in every answer."""
COMMAND_SECONDS = 30.0


class Filled(Record):
    """One entry with its headers' values."""

    rule: EdgeRule
    headers: tuple[tuple[str, str], ...]
    """Name and whole value, in the order of the entry."""


class Values(Record):
    """All entries of a policy, filled in, and what of that must stay outside."""

    entries: tuple[Filled, ...]
    secrets: tuple[str, ...]
    """Raw and formatted values, each once; literals are no secrets."""
    files: tuple[str, ...]
    """Real paths of the files that values were read from."""
    variables: tuple[str, ...]
    """The caller's variables that values were read from."""


def fill(rules: Iterable[EdgeRule], environ: Mapping[str, str], until: float | None = None) -> Values:
    """Read every value. Raises RequestError for one that can't be had or sent; nothing was run then.

    ``until``, a time of ``time.monotonic``, is when the run has to be over: no command is waited for longer.
    """
    entries: list[Filled] = []
    secrets: dict[str, None] = {}
    files: dict[str, None] = {}
    variables: dict[str, None] = {}
    known: dict[str, str] = {}
    for rule in rules:
        headers = []
        for header in rule.headers:
            kind, _, text = header.source.partition(":")
            raw = known[header.source] = known.get(header.source) or read(header, rule, environ, until)
            whole = formatted(header.format, raw)
            headers.append((header.name, whole))
            if kind != "literal":
                secrets |= dict.fromkeys((raw, whole))
            if kind == "file":
                files[os.path.realpath(expanded(text, environ))] = None
            if kind == "env":
                variables[text] = None
        entries.append(Filled(rule, tuple(headers)))
    return Values(tuple(entries), tuple(secrets), tuple(files), tuple(variables))


def read(header: Header, rule: EdgeRule, environ: Mapping[str, str], until: float | None = None) -> str:
    """The raw value of one header."""
    kind, _, text = header.source.partition(":")
    where = f"{header.name} for {rule.host.text}"
    if kind == "literal":
        return text
    if kind == "env":
        value = from_variable(text, where, environ)
    elif kind == "file":
        value = from_file(expanded(text, environ), where)
    else:
        value = from_command(text, where, environ, until)
    return checked(value, where, header.source)


def formatted(form: str, raw: str) -> str:
    """The whole value: ``{}`` stands for the raw one, ``{base64}`` for that in base64."""
    if "{base64}" in form:
        import base64

        return form.replace("{base64}", base64.b64encode(raw.encode()).decode(), 1)
    return form.replace("{}", raw, 1)


def expanded(path: str, environ: Mapping[str, str]) -> str:
    home = environ.get("HOME", "")
    return f"{home}{path[1:]}" if path.startswith("~/") and home else path


def from_variable(name: str, where: str, environ: Mapping[str, str]) -> str:
    value = environ.get(name)
    if not value:
        state = "is not set" if value is None else "is empty"
        raise RequestError(
            f"could not read {where}: the variable {quoted(name)} {state}", remedy=f"Set it: export {name}=..."
        )
    return value


def from_file(path: str, where: str) -> str:
    try:
        with open(path, "rb") as file:
            names = os.fstat(file.fileno()).st_nlink
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise RequestError(
            f"could not read {where} from {quoted(path)}: {(error.strerror or str(error)).lower()}",
            remedy="Name a file that you can read.",
        ) from None
    if names > 1:
        raise RequestError(
            f"could not keep {where} outside: {quoted(path)} has another name (a hard link), which is not known",
            remedy="Copy it to a file that has only one, and remove the others.",
        )
    return as_text(data, f"{where} from {quoted(path)}")


def from_command(line: str, where: str, environ: Mapping[str, str], until: float | None = None) -> str:
    """Standard output of a command of the caller's own, unconfined, without the last line end."""
    import shlex
    import subprocess
    import time

    argv = shlex.split(line)
    shown = f"{where} from the command {quoted(argv[0])}"
    seconds = COMMAND_SECONDS if until is None else max(0.0, min(COMMAND_SECONDS, until - time.monotonic()))
    try:
        process = subprocess.Popen(argv, env=dict(environ), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    except OSError as error:
        raise RequestError(
            f"could not read {shown}: {(error.strerror or str(error)).lower()}", remedy="Name it with its path."
        ) from None
    with process:
        try:
            deadline = time.monotonic() + seconds
            data = said(process, deadline)
            code = 0 if len(data) > LARGEST else process.wait(max(0.0, deadline - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired):
            raise RequestError(f"could not read {shown}: it took more than {seconds:.3g} s") from None
        finally:
            process.kill()
    if code != 0:
        raise RequestError(f"could not read {shown}: it ended with {code}", remedy="Run it by hand.")
    return as_text(data, shown)


def said(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    """What a command prints until it closes its output; no more than a little over what is taken. Raises TimeoutError."""
    import select
    import time

    assert process.stdout is not None
    fd, data = process.stdout.fileno(), b""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while len(data) <= LARGEST:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError
        if not (more := os.read(fd, LARGEST)):
            break
        data += more
    return data


def as_text(data: bytes, shown: str) -> str:
    if len(data) > LARGEST:
        raise RequestError(f"could not read {shown}: it is longer than {LARGEST >> 10} KiB")
    try:
        return data.decode("ascii").rstrip("\r\n")
    except UnicodeDecodeError:
        raise RequestError(f"could not read {shown}: it is not ASCII text") from None


def checked(value: str, where: str, source: str) -> str:
    """A value that can stand in a header, and be found again."""
    shown = f"{where} from {quoted(source.partition(' ')[0])}"
    if not all(" " <= letter <= "~" for letter in value) or value != value.strip(" "):
        raise RequestError(
            f"could not send {shown}: it has control or non-ASCII characters, or blanks around it",
            remedy="A header's value is one line of printable ASCII.",
        )
    if len(value) < SHORTEST:
        raise RequestError(
            f"could not protect {shown}: it is shorter than {SHORTEST} characters",
            remedy="Write it as literal: if it is no secret.",
        )
    return value
