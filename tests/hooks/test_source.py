"""Reading hooks files: places that are true, faults that are named, edits that touch nothing else."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.sandbox.hooks import source
from stockade.sandbox.hooks.source import COMMENTS, RELAXED, STRICT, Edit, HooksFileError, Node, parse_source

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
layouts = st.sampled_from([{}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}])


def nodes(node: Node, pointer: tuple = ()):
    yield pointer, node
    for member in node.members:
        yield from nodes(member.node, (*pointer, member.key))
    for number, item in enumerate(node.items):
        yield from nodes(item, (*pointer, number))


def encoded(value, layout) -> bytes:
    return json.dumps(value, **layout).encode("utf-8", "replace")


@given(values, layouts)
def test_every_document_is_read_as_json_reads_it(value, layout):
    data = encoded(value, layout)
    for syntax in (STRICT, COMMENTS, RELAXED):
        assert parse_source(data, "f", syntax).root.value == json.loads(data)


@given(values, layouts)
def test_each_span_is_the_text_of_its_value(value, layout):
    read = parse_source(encoded(value, layout), "f")
    for pointer, node in nodes(read.root):
        assert json.loads(read.text[node.start : node.end]) == node.value
        assert read.at(source.pointer_of(pointer)) is node
        assert source.path_of(source.pointer_of(pointer)) == tuple(map(str, pointer))
        for member in node.members:
            assert json.loads(read.text[member.start : member.end]) == member.key


@given(values, layouts, st.data())
def test_a_replaced_value_changes_nothing_else(value, layout, data):
    read = parse_source(encoded(value, layout), "f")
    _pointer, node = data.draw(st.sampled_from(list(nodes(read.root))))
    new = source.replaced(read.text, node, '"put here"')
    assert new[: node.start] == read.text[: node.start]
    assert new[node.start :].startswith('"put here"')
    assert new[node.start + len('"put here"') :] == read.text[node.end :]
    json.loads(new)


def refuse(name: str) -> None:
    raise ValueError(name)


def as_json_reads_it(data: bytes):
    try:
        return (json.loads(data.decode("utf-8-sig"), parse_constant=refuse),)
    except ValueError:
        return None


@given(st.binary(max_size=60) | st.text("{}[]\":,/*\\ntrue01.-eE'\n ", max_size=40).map(str.encode))
def test_any_bytes_are_a_document_or_a_fault_with_a_place(data):
    expected = as_json_reads_it(data)
    if expected is None:
        with pytest.raises(HooksFileError) as caught:
            parse_source(data, "f")
        error = caught.value
        assert error.remedy
        assert error.message.startswith(f"could not read f:{error.line}:{error.column}: ")
        assert min(error.line, error.column) >= 1
    else:
        read = parse_source(data, "f")
        assert (read.root.value,) == expected
        assert read.text.encode() == data


FAULTS = [
    ("", 1, 1, "the file is empty"),
    ("{'a': 1}", 1, 2, "a key in ' quotes"),
    ("{\"a\": 'x'}", 1, 7, "a string in ' quotes"),
    ("{\n  a: 1}", 2, 3, "the key 'a' without quotes"),
    ('{"a": yes}', 1, 7, "'yes' without quotes"),
    ('{"a": True}', 1, 7, "True is not JSON"),
    ('{"a": NaN}', 1, 7, "no JSON number"),
    ('{"a": 0x10}', 1, 7, "no JSON number"),
    ('{"a": .5}', 1, 7, "no JSON number"),
    ('{"a": +1}', 1, 7, "no JSON number"),
    ('{"a": 01}', 1, 7, "no JSON number"),
    ('{"a": [1,\n 2,]}', 2, 3, "a comma after the last entry"),
    ('{"a": 1,}', 1, 8, "a comma after the last entry"),
    ("// why\n{}", 1, 1, "a comment"),
    ("{} /* why */", 1, 4, "a comment"),
    ("{} # why", 1, 4, "a # comment"),
    ('{"a": "x\ny"}', 1, 9, "a line break inside a string"),
    ('{"a": "\\x41"}', 1, 8, "an escape that JSON does not have"),
    ('{"a": "b}', 1, 7, "a string that never ends"),
    ('{"a" 1}', 1, 6, "where a colon is due"),
    ('{"a": 1 "b": 2}', 1, 9, "where a comma or } is due"),
    ('{"a": {"b": 1}', 1, 15, "the file ends inside what begins at line 1, column 1"),
    ("{} {}", 1, 4, "follows the document"),
    ("{\u201ca\u201d: 1}", 1, 2, "a key in \u201c quotes"),
    ("[" * 3000, 1, 102, "levels of nesting"),
    ("[1,,2]", 1, 4, "where a value is due"),
    ("\ufeff{x: 1}", 1, 2, "the key 'x' without quotes"),
]


@pytest.mark.parametrize(("text", "line", "column", "says"), FAULTS)
def test_a_fault_is_named_with_its_place(text, line, column, says):
    with pytest.raises(HooksFileError) as caught:
        parse_source(text.encode(), "h.json")
    assert (caught.value.line, caught.value.column) == (line, column)
    assert says in caught.value.message
    assert caught.value.remedy


def test_bytes_that_are_not_utf_8_have_a_place():
    with pytest.raises(HooksFileError, match=r"h\.json:2:3: it is not UTF-8"):
        parse_source(b'{\n "\xff": 1}', "h.json")


@pytest.mark.parametrize(
    ("text", "syntax", "codes"),
    [
        ("{} // end", COMMENTS, ["comment"]),
        ("/* a\n b */ {/**/} // x\n// y", RELAXED, ["comment"]),
        ('{"a": [1,], }', RELAXED, ["trailing_comma", "trailing_comma"]),
        ('{"a": "// no comment", "b": "/* none */"}', STRICT, []),
        ('{"a": 1, "a": 2}', STRICT, ["duplicate_key"]),
        ("\ufeff{}", STRICT, ["bom"]),
    ],
)
def test_what_was_taken_all_the_same_is_told(text, syntax, codes):
    assert [each.code for each in parse_source(text.encode(), "h", syntax).oddities] == codes


def test_of_repeated_keys_the_last_counts_and_both_are_there():
    read = parse_source(b'{"a": {"b": 1, "b": 2}}', "h")
    assert read.root.value == {"a": {"b": 2}}
    assert [each.node.value for each in read.root.get("a").members] == [1, 2]
    assert read.at("/a/b").value == 2
    assert read.oddities[0].pointer == "/a/b"
    assert (read.oddities[0].line, read.oddities[0].column) == (1, 16)


WINDOWS = '\ufeff{\r\n\t"a": 1,\t// one\r\n\t"b": [2],\r\n}\r\n'


def test_line_ends_byte_order_mark_and_comments_stay():
    read = parse_source(WINDOWS.encode(), "h", RELAXED)
    assert (read.at("/b").line, read.at("/b").column) == (3, 7)
    new = source.replaced(read.text, read.at("/b/0"), '"x"')
    assert new == WINDOWS.replace("[2]", '["x"]')
    added = source.apply(read.text, [source.add_member(read, read.root.member("a"), "args", "[]")])
    assert added == WINDOWS.replace("1,\t// one", '1,\r\n\t"args": [],\t// one')


def test_a_member_added_on_one_line_stays_on_it():
    read = parse_source(b'{"a":1}', "h")
    assert source.apply(read.text, [source.add_member(read, read.root.member("a"), "b", "2")]) == '{"a":1, "b":2}'


@pytest.mark.parametrize("edits", [[Edit(0, 2, ""), Edit(1, 3, "")], [Edit(2, 1, "")], [Edit(0, 9, "")]])
def test_edits_that_overlap_are_refused(edits):
    with pytest.raises(ValueError, match="overlap"):
        source.apply("abcd", edits)


def test_files_that_are_none_are_refused(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    large = tmp_path / "large"
    with open(large, "wb") as file:
        file.truncate(source.LARGEST + 1)
    for path, says in [
        (tmp_path / "none", "No such file"),
        (tmp_path, "not a regular file"),
        (fifo, "not a regular file"),
        (large, "more than 2 MiB"),
        ("a\0b", "null"),
    ]:
        with pytest.raises(HooksFileError, match=says):
            source.read_source(str(path))


def test_a_hostile_file_name_is_quoted():
    with pytest.raises(HooksFileError) as caught:
        parse_source(b"", "a\x1b[31m")
    assert "\x1b" not in str(caught.value)
