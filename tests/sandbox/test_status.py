"""bwrap's status records, judged against the parser of the standard library."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.sandbox.status import StatusReader, parse_record, read_all

REAL = (
    b'{ "child-pid": 4711, "cgroup-namespace": 4026533021, "ipc-namespace": 4026533019, "mnt-namespace": 4026533017,'
    b' "net-namespace": 4026533022, "pid-namespace": 4026533020, "uts-namespace": 4026533018 }\n{ "exit-code": 137 }\n'
)


def state(reader):
    return reader.child_pid, reader.exit_code, reader.namespaces, reader.strange


def test_a_whole_run():
    reader = read_all(REAL)
    assert (reader.child_pid, reader.exit_code, reader.strange) == (4711, 137, False)
    assert reader.namespaces == {
        "cgroup": 4026533021,
        "ipc": 4026533019,
        "mnt": 4026533017,
        "net": 4026533022,
        "pid": 4026533020,
        "uts": 4026533018,
    }


@pytest.mark.parametrize("at", range(len(REAL) + 1))
def test_it_may_come_in_two_pieces(at):
    reader = StatusReader()
    reader.feed(REAL[:at])
    reader.feed(REAL[at:])
    assert state(reader) == state(read_all(REAL))


def test_it_may_come_byte_by_byte():
    reader = StatusReader()
    for at in range(len(REAL)):
        reader.feed(REAL[at : at + 1])
    assert state(reader) == state(read_all(REAL))


def test_a_record_that_is_not_complete_says_nothing_yet():
    reader = StatusReader()
    reader.feed(b'{ "exit-code": 1')
    assert reader.exit_code is None
    reader.feed(b"2 }")
    assert reader.exit_code is None
    reader.feed(b"\n")
    assert reader.exit_code == 12


def test_the_last_record_may_lack_its_newline():
    assert read_all(b'{ "exit-code": 3 }').exit_code == 3
    assert state(read_all(b"")) == (None, None, {}, False)


def test_the_first_of_two_answers_stands():
    reader = read_all(b'{"child-pid": 1}\n{"child-pid": 2}\n{"exit-code": 3}\n{"exit-code": 4}\n')
    assert (reader.child_pid, reader.exit_code) == (1, 3)


@pytest.mark.parametrize(
    ("line", "record"),
    [
        (b'{"exit-code":0}', {"exit-code": 0}),
        (b' { "a" : 1 , "b-c" : 22 } \r', {"a": 1, "b-c": 22}),
        (b'{"exit-code": 255}', {"exit-code": 255}),
    ],
)
def test_what_is_a_record(line, record):
    assert parse_record(line) == record == json.loads(line)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"{",
        b"}",
        b"bwrap: fake",
        b'"exit-code": 1',
        b'{"exit-code": -1}',
        b'{"exit-code": 1.0}',
        b'{"exit-code": 1e2}',
        b'{"exit-code": 007}',
        b'{"exit-code": "1"}',
        b'{"exit-code": null}',
        b'{"exit-code": [1]}',
        b'{"exit-code": 1,}',
        b'{,"exit-code": 1}',
        b'{"exit-code": 1} {"exit-code": 2}',
        b'{"exit-code": 1, "exit-code": 2}',
        b'{"exit-code" 1}',
        b"{exit-code: 1}",
        b'{"": 1}',
        b'{"-": 1}',
        b'{"a\\"b": 1}',
        b'{"\xff": 1}',
        b'{"exit-code":\x0b1}',
        b'{"exit-code":\xd9\xa1}',
        b'{"exit-code": ' + b"9" * 5000 + b"}",
        b"[1]",
        b"\x00",
    ],
)
def test_what_is_none_is_strange_and_never_guessed_at(line):
    assert parse_record(line) is None
    reader = read_all(line + b"\n")
    assert (reader.exit_code, reader.child_pid, reader.strange) == (None, None, line != b"")


@pytest.mark.parametrize("code", [256, 1000, 2**31])
def test_a_code_that_no_process_has_is_strange(code):
    reader = read_all(b'{"exit-code": %d}' % code)
    assert (reader.exit_code, reader.strange) == (None, True)


PIECES = st.sampled_from(
    [
        *(
            b"{",
            b"}",
            b'"',
            b":",
            b",",
            b" ",
            b"\n",
            b"\t",
            b"\x0b",
            b"-",
            b"0",
            b"1",
            b"255",
            b"e",
            b".",
            b"[",
            b"]",
        ),
        *(b"exit-code", b"child-pid", b'"exit-code"', b'"child-pid": 1', b"null", b"\\", b"\xff", b"\x00", b"'"),
    ]
)
KEYS = st.lists(st.text("abz", min_size=1, max_size=5), min_size=1, max_size=3).map("-".join)
BYTES = st.binary(max_size=60) | st.lists(PIECES, max_size=14).map(b"".join)


@settings(deadline=None, max_examples=1000)
@given(BYTES)
def test_nothing_is_taken_that_json_refuses(line):
    record = parse_record(line)
    if record is not None:
        assert json.loads(line) == record


@settings(deadline=None)
@given(
    st.dictionaries(KEYS, st.integers(0, 2**63), min_size=1),
    st.booleans(),
)
def test_every_flat_object_of_integers_is_taken(record, spaced):
    text = json.dumps(record, separators=(" , ", " : ") if spaced else (",", ":"))
    assert parse_record(text.encode()) == record


@settings(deadline=None, max_examples=300)
@given(st.lists(BYTES, max_size=5).map(b"\n".join), st.lists(st.integers(0, 200), max_size=4))
def test_it_never_raises_and_pieces_make_no_difference(data, cuts):
    pieces, at = [], 0
    for cut in sorted(cuts):
        pieces.append(data[at:cut])
        at = max(at, cut)
    reader = StatusReader()
    for piece in [*pieces, data[at:], b"\n"]:
        reader.feed(piece)
    assert state(reader) == state(read_all(data))
