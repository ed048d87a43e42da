"""The command line of bwrap: golden ones for every preset, and what must hold of any."""

from __future__ import annotations

import difflib
import os
import shlex
from pathlib import Path

import pytest
from fakes import BWRAP, DIR, FACTS, facts, policy, request, tree
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.policies.errors import RequestError
from stockade.policies.resolve import resolve
from stockade.sandbox.argv import (
    FIRST_FD,
    MAX_FDS,
    MAX_WORDS,
    STATUS_FD,
    bind_options,
    check_words,
    mount_options,
    render,
)
from stockade.sandbox.bwrap import REQUIRED_OPTIONS
from stockade.sandbox.mounts import BIND, BIND_RO, DATA, DEV, MASK, PROC, SYMLINK, TMPFS, Mount
from stockade.sandbox.plan import make_plan

GOLDEN = Path(__file__).with_name("golden")
VALUES = {
    "--setenv": 2, "--bind": 2, "--ro-bind": 2, "--bind-fd": 2, "--ro-bind-fd": 2, "--ro-bind-data": 2, "--symlink": 2,
    "--hostname": 1, "--cap-drop": 1, "--tmpfs": 1, "--proc": 1, "--dev": 1, "--perms": 1, "--size": 1,
    "--remount-ro": 1, "--chdir": 1, "--seccomp": 1, "--json-status-fd": 1, "--block-fd": 1, "--sync-fd": 1,
}  # fmt: skip
"""How many values each option of bwrap takes that we use; those not listed take none."""
FLAGS = {
    "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
    "--die-with-parent", "--new-session", "--clearenv", "--disable-userns",
}  # fmt: skip


def line(plan, **changes):
    how = {"supervised": True, "seccomp": True, "by_descriptor": True, "staged": {}, **changes}
    return render(plan, **how)


def parsed(options):
    """Options with their values, as bwrap itself would read them; anything else is an error of ours."""
    rows, words = [], iter(options)
    for word in words:
        assert word in VALUES or word in FLAGS, f"bwrap would take {word!r} for the program"
        rows.append((word, *(next(words) for _ in range(VALUES.get(word, 0)))))
    return rows


def planned(where=FACTS, host=None, argv=("true",), env=(), **changes):
    return make_plan(policy(**changes), request(*argv, env=env), where, host or tree())


# --- golden -----------------------------------------------------------------------------------------------


def preset(name):
    return resolve(
        base=name,
        workspace="/srv/project",
        environ={},
        system_file="/nonexistent",
        user_file="/nonexistent",
        discover_project=False,
    ).resolved


CASES = {
    "read-only": (preset("read-only"), FACTS),
    "workspace-write": (preset("workspace-write"), FACTS),
    "hook": (preset("hook"), FACTS),
    "build": (preset("build"), FACTS),
    "full-access": (preset("full-access").replace(mode="auto"), FACTS),
    "minimal": (preset("read-only").replace(root="minimal", workspace="none"), FACTS),
    "kept-root": (
        preset("workspace-write"),
        facts(uid=0, gid=0, user="root", home="/root", kept_root=True, path=("/usr/bin",)),
    ),
}


def text_of(rules, where):
    rendered = line(make_plan(rules, request(), where, tree()))
    rows = [shlex.join(row) for row in parsed(rendered.options)]
    rows += [f"{each.number}< {each.path or f'({len(each.data)} bytes)'}" for each in rendered.sources]
    return "".join(f"{row}\n" for row in rows)


@pytest.mark.parametrize("name", CASES)
def test_the_command_line_of_each_preset_is_the_golden_one(name):
    """When the change is meant: ``git apply`` takes the printed difference."""
    path = GOLDEN / f"{name}.txt"
    kept = path.read_text() if path.exists() else ""
    found = text_of(*CASES[name])
    label = f"tests/sandbox/golden/{name}.txt"
    difference = "".join(
        difflib.unified_diff(kept.splitlines(True), found.splitlines(True), f"a/{label}", f"b/{label}")
    )
    if difference:
        pytest.fail(f"the command line changed:\n{difference}", pytrace=False)


def test_no_golden_file_is_left_over():
    assert {path.stem for path in GOLDEN.iterdir()} == set(CASES)


# --- what must hold of any --------------------------------------------------------------------------------

TEXT = st.text(
    st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=12
) | st.sampled_from(["--share-net", "--bind", "--", "-", "--setenv", "\n", "--cap-add", "a b", "\udcff"])
NAMES = TEXT.filter(lambda text: text and "=" not in text)
PLANS = st.builds(
    planned,
    where=st.builds(
        facts,
        credentials=st.none() | st.just((65534, 65534)),
        kept_root=st.booleans(),
        fresh_proc=st.booleans(),
        bwrap=st.sampled_from([BWRAP, BWRAP.replace(options=())]),
        environ=st.lists(st.tuples(NAMES, TEXT), max_size=3).map(tuple),
    ),
    argv=st.lists(TEXT.filter(bool), min_size=1, max_size=3),
    env=st.lists(st.tuples(NAMES, TEXT), max_size=3),
    env_pass=st.just(("*",)),
    env_set=st.lists(st.tuples(NAMES, TEXT), max_size=3).map(tuple),
    root=st.sampled_from(["host", "minimal"]),
    workspace=st.sampled_from(["read-only", "read-write", "none"]),
)
HOW = st.fixed_dictionaries({"supervised": st.booleans(), "seccomp": st.booleans(), "by_descriptor": st.booleans()})


@settings(deadline=None, max_examples=150)
@given(PLANS, HOW)
def test_every_command_line_isolates_whatever_text_is_in_it(plan, how):
    rendered = line(plan, **how)
    rows = parsed(rendered.options)
    flags = {row[0] for row in rows}
    assert flags >= {
        "--unshare-user",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
        "--unshare-uts",
        "--die-with-parent",
        "--new-session",
        "--clearenv",
    }
    assert [row for row in rows if row[0] == "--cap-drop"] == [("--cap-drop", "ALL")]
    assert not flags & {"--share-net", "--cap-add", "--unshare-all", "--unshare-user-try", "--dev-bind", "--userns"}
    assert ("--disable-userns" in flags) == plan.no_new_userns
    assert [row[1] for row in rows if row[0] == "--chdir"] == [plan.cwd]


@settings(deadline=None, max_examples=150)
@given(PLANS)
def test_variables_arrive_exactly(plan):
    rows = parsed(line(plan).options)
    assert [row[1:] for row in rows if row[0] == "--setenv"] == list(plan.env)
    first = next(at for at, row in enumerate(rows) if row[0] == "--setenv")
    assert ("--clearenv",) in rows[:first]


@settings(deadline=None)
@given(PLANS)
def test_no_word_of_the_command_is_among_the_options(plan):
    marked = plan.replace(argv=("MARK-0", "MARK-1"))
    assert line(marked).options == line(plan).options


@settings(deadline=None)
@given(PLANS, HOW)
def test_descriptors_are_numbered_in_order_and_named_once(plan, how):
    rendered = line(plan, **how)
    numbers = [each.number for each in rendered.sources]
    assert numbers == list(range(FIRST_FD, FIRST_FD + len(numbers)))
    named = [
        int(row[1]) for row in parsed(rendered.options) if row[0] in ("--bind-fd", "--ro-bind-fd", "--ro-bind-data")
    ]
    assert named == numbers


@settings(deadline=None)
@given(PLANS)
def test_other_numbers_for_descriptors_change_nothing_else(plan):
    odd = plan.replace(env=(*plan.env, ("X", "--ro-bind-data"), ("20", "20"), ("--bind-fd", "20")))
    rendered = line(odd)
    given_numbers = [900 + at for at in range(len(rendered.sources))]
    found = rendered.renumbered(given_numbers)
    changed = [at for at, (old, new) in enumerate(zip(rendered.options, found, strict=True)) if old != new]
    assert changed == list(rendered.places)
    named = [int(row[1]) for row in parsed(found) if row[0] in ("--bind-fd", "--ro-bind-fd", "--ro-bind-data")]
    assert named == given_numbers
    with pytest.raises(ValueError, match="zip"):
        rendered.renumbered([*given_numbers, 1])


def test_what_is_frozen_is_remounted_after_every_mount():
    rows = parsed(line(planned(workspace="read-write")).options)
    kinds = [row[0] for row in rows]
    last_mount = max(
        at for at, kind in enumerate(kinds) if kind in ("--bind-fd", "--ro-bind", "--ro-bind-fd", "--tmpfs")
    )
    frozen = [at for at, kind in enumerate(kinds) if kind == "--remount-ro"]
    assert min(frozen) > last_mount
    assert rows[max(frozen)] == ("--remount-ro", "/")


def test_gate_and_status_belong_to_a_supervised_start_alone():
    loose = parsed(line(planned(), supervised=False, seccomp=False).options)
    assert not {row[0] for row in loose} & {"--json-status-fd", "--block-fd", "--sync-fd", "--seccomp"}
    assert ("--json-status-fd", str(STATUS_FD)) in parsed(line(planned()).options)


def test_only_options_that_were_checked_for_are_used():
    """What is not in REQUIRED_OPTIONS is as old as bwrap's first releases, or asked for before it is used."""
    old = {
        "--setenv", "--bind", "--ro-bind", "--ro-bind-data", "--symlink", "--hostname", "--tmpfs", "--proc", "--dev",
        "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
    }  # fmt: skip
    asked = {"--bind-fd", "--ro-bind-fd", "--disable-userns", "--seccomp", "--size"}
    plans = [make_plan(rules, request(), where, tree()) for rules, where in CASES.values()]
    used = {row[0] for plan in plans for row in parsed(line(plan).options)}
    assert used <= old | asked | set(REQUIRED_OPTIONS)


# --- one mount --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mount", "options"),
    [
        (Mount(BIND, "/a", "/b"), ["--bind", "/b", "/a"]),
        (Mount(BIND_RO, "/a", "/b"), ["--ro-bind", "/b", "/a"]),
        (Mount(MASK, "/a"), ["--ro-bind", "/dev/null", "/a"]),
        (Mount(SYMLINK, "/bin", "usr/bin"), ["--symlink", "usr/bin", "/bin"]),
        (Mount(PROC, "/proc"), ["--proc", "/proc"]),
        (Mount(DEV, "/dev"), ["--dev", "/dev"]),
        (Mount(TMPFS, "/"), []),
        (Mount(TMPFS, "/a"), ["--tmpfs", "/a"]),
        (Mount(TMPFS, "/a", size=9), ["--size", "9", "--tmpfs", "/a"]),
        (Mount(TMPFS, "/a", perms=0o1777), ["--perms", "1777", "--tmpfs", "/a"]),
        (Mount(TMPFS, "/a", perms=0o5, size=1), ["--perms", "0005", "--size", "1", "--tmpfs", "/a"]),
        (Mount(DATA, "/a", data=b"x"), ["--perms", "0444", "--ro-bind-data", "20", "/a"]),
        (Mount(BIND, "/a", "/b", pinned=True), ["--bind-fd", "20", "/a"]),
        (Mount(BIND_RO, "/a", "/b", pinned=True), ["--ro-bind-fd", "20", "/a"]),
        (Mount(BIND, "--share-net", "--bind"), ["--bind", "--bind", "--share-net"]),
    ],
)
def test_the_options_of_a_mount(mount, options):
    assert mount_options(mount, [], by_descriptor=True, staged={}) == options


def test_an_operation_nobody_knows_is_never_skipped():
    with pytest.raises(AssertionError):
        mount_options(Mount("teleport", "/a"), [], by_descriptor=True, staged={})


@pytest.mark.parametrize(
    ("by_descriptor", "staged", "options"),
    [
        (False, {}, ["--bind", "/b", "/a"]),
        (True, {"/b": "/dev/shm/0"}, ["--bind", "/dev/shm/0", "/a"]),
        (False, {"/b": "/dev/shm/0"}, ["--bind", "/dev/shm/0", "/a"]),
    ],
)
def test_a_staged_source_or_an_old_bwrap_takes_the_path(by_descriptor, staged, options):
    sources = []
    found = bind_options(Mount(BIND, "/a", "/b", pinned=True), sources, by_descriptor=by_descriptor, staged=staged)
    assert (found, sources) == (options, [])


def test_of_very_many_pinned_sources_the_rest_goes_by_path():
    sources = []
    mounts = [Mount(BIND_RO, f"/{number}", f"/{number}", pinned=True) for number in range(MAX_FDS + 5)]
    found = [bind_options(mount, sources, by_descriptor=True, staged={})[0] for mount in mounts]
    assert (found.count("--ro-bind-fd"), found.count("--ro-bind")) == (MAX_FDS, 5)


def test_each_file_has_a_descriptor_of_its_own():
    host = tree(**{f"/srv/project/d{number}": DIR for number in range(5)})
    rendered = line(
        planned(host=host, where=facts(home="/home/other"), read=tuple(f"d{number}" for number in range(5)))
    )
    data = [each for each in rendered.sources if each.data]
    assert len(data) == 1
    assert len({each.number for each in rendered.sources}) == len(rendered.sources)
    assert os.fsdecode(data[0].data).startswith("ann:x:1000:1000::/home/other")


@pytest.mark.parametrize(
    ("options", "arguments", "good"), [(200, 1, True), (200, MAX_WORDS - 200, True), (200, MAX_WORDS - 199, False)]
)
def test_more_words_than_bwrap_takes_are_refused_by_number(options, arguments, good):
    if good:
        check_words(options, arguments)
        return
    with pytest.raises(
        RequestError, match=f"it has {arguments} arguments, bubblewrap takes {MAX_WORDS - options} here"
    ):
        check_words(options, arguments)


def test_variables_count_among_them():
    many = tuple((f"N{number}", "x") for number in range(3000))
    with pytest.raises(RequestError, match="bubblewrap takes"):
        line(planned(env_set=many))
