"""Where header values come from: read once a run, checked, and never shown."""

from __future__ import annotations

import base64
import os
import sys

import pytest

from stockade.policies.edge import EdgeRule, Header
from stockade.policies.errors import RequestError
from stockade.policies.hosts import parse_rule
from stockade.sandbox.edge import values

SECRET = "s3cr3t-value-of-the-test"


def rule(*headers: Header, host: str = "api.example") -> EdgeRule:
    return EdgeRule(parse_rule(host), "https", (), (), headers)


def filled(source: str, environ: dict[str, str] | None = None, form: str = "{}") -> values.Values:
    return values.fill([rule(Header("Authorization", source, form))], environ or {})


def test_a_variable_is_read() -> None:
    found = filled("env:TOKEN", {"TOKEN": SECRET})
    assert found.entries[0].headers == (("Authorization", SECRET),)
    assert found.secrets == (SECRET,)
    assert found.variables == ("TOKEN",)


@pytest.mark.parametrize(
    ("form", "whole"),
    [
        ("Bearer {}", f"Bearer {SECRET}"),
        ("Basic {base64}", f"Basic {base64.b64encode(SECRET.encode()).decode()}"),
        ("{}", SECRET),
    ],
)
def test_a_value_is_put_into_its_format(form: str, whole: str) -> None:
    found = filled("env:TOKEN", {"TOKEN": SECRET}, form)
    assert found.entries[0].headers == (("Authorization", whole),)
    assert set(found.secrets) == {SECRET, whole}


def test_a_value_with_braces_is_not_a_format() -> None:
    assert filled("env:TOKEN", {"TOKEN": "{base64}{}"}).entries[0].headers[0][1] == "{base64}{}"


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_file_is_read_without_its_line_end(tmp_path, end: str) -> None:
    place = tmp_path / "token"
    place.write_text(SECRET + end)
    link = tmp_path / "link"
    link.symlink_to(place)
    found = filled(f"file:{link}")
    assert found.entries[0].headers[0][1] == SECRET
    assert found.files == (os.path.realpath(place),), "the file itself is what has to be covered"


def test_a_command_is_not_waited_for_longer_than_the_run_may_take() -> None:
    import time

    ask = [rule(Header("Authorization", "command:sleep 20", "{}"))]
    with pytest.raises(RequestError, match=r"took more than 0\.\d+ s"):
        values.fill(ask, dict(os.environ), time.monotonic() + 0.2)


def test_a_file_with_a_second_name_is_refused(tmp_path) -> None:
    """Only the name that is known can be covered."""
    place = tmp_path / "token"
    place.write_text(SECRET)
    os.link(place, tmp_path / "other")
    with pytest.raises(RequestError, match="has another name") as caught:
        filled(f"file:{place}")
    assert SECRET not in str(caught.value)
    (tmp_path / "other").unlink()
    assert filled(f"file:{place}").secrets == (SECRET,)


def test_a_file_below_home_is_read(tmp_path) -> None:
    (tmp_path / "token").write_text(SECRET)
    assert filled("file:~/token", {"HOME": str(tmp_path)}).secrets == (SECRET,)


def test_a_command_is_run_once_for_several_headers(tmp_path) -> None:
    script = tmp_path / "say"
    script.write_text(f"#!/bin/sh\necho x >>{tmp_path}/runs\necho {SECRET}\n")
    script.chmod(0o755)
    both = rule(Header("A", f"command:{script}", "{}"), Header("B", f"command:{script}", "Bearer {}"))
    found = values.fill([both], dict(os.environ))
    assert found.entries[0].headers == (("A", SECRET), ("B", f"Bearer {SECRET}"))
    assert (tmp_path / "runs").read_text() == "x\n"


def test_a_command_is_split_and_not_given_to_a_shell(tmp_path) -> None:
    line = f"command:{sys.executable} -c 'import sys; print(sys.argv[1:])' 'a b' ';' '$HOME'"
    assert filled(line, dict(os.environ)).secrets == ("['a b', ';', '$HOME']",)


def test_a_literal_is_no_secret() -> None:
    found = filled("literal:v1")
    assert found.entries[0].headers == (("Authorization", "v1"),)
    assert found.secrets == ()


FAULTS = {
    "env:TOKEN": "the variable 'TOKEN' is not set",
    "env:EMPTY": "the variable 'EMPTY' is empty",
    "env:SHORT": "shorter than 4 characters",
    "env:LINES": "control or non-ASCII characters",
    "env:BLANK": "blanks around it",
    "env:ODD": "control or non-ASCII characters",
    "file:/nowhere/token": "no such file or directory",
    "command:/nowhere/tool": "no such file or directory",
    "command:false": "it ended with 1",
}
ENVIRON = {
    "EMPTY": "", "SHORT": "abc", "LINES": f"{SECRET}\nX-Other: 1", "BLANK": f"{SECRET} ", "ODD": f"{SECRET}\u00fc",
    "PATH": os.environ["PATH"],
}  # fmt: skip


@pytest.mark.parametrize(("source", "cause"), FAULTS.items())
def test_a_value_that_can_not_be_had_is_an_error_without_it(source: str, cause: str) -> None:
    with pytest.raises(RequestError) as caught:
        filled(source, ENVIRON)
    assert cause in caught.value.message
    assert caught.value.message.startswith("could not ")
    assert "Authorization" in caught.value.message
    assert SECRET not in str(caught.value)


def test_a_command_that_fails_does_not_show_what_it_printed() -> None:
    with pytest.raises(RequestError) as caught:
        filled(f"command:sh -c 'echo {SECRET}; exit 3'", ENVIRON)
    assert SECRET not in str(caught.value)


def test_a_command_that_does_not_stop_printing_is_ended() -> None:
    with pytest.raises(RequestError, match="longer than 64 KiB"):
        filled("command:yes an-endless-secret", ENVIRON)


def test_a_file_that_is_too_long_is_an_error(tmp_path) -> None:
    (tmp_path / "token").write_text("x" * (values.LARGEST + 1))
    with pytest.raises(RequestError, match="longer than 64 KiB"):
        filled(f"file:{tmp_path}/token")
