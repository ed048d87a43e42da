"""Pinned hooks: what was recorded, what is noticed, and that what changed is not run."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.policies.errors import StockadeError
from stockade.sandbox import state
from stockade.sandbox.hooks import config, pin
from stockade.sandbox.hooks.pin import decoded, encoded, require, store_pins, verify_command, verify_spec
from stockade.sandbox.hooks.pinned import Pin, PinBroken, Pins, Script, compare, matches
from stockade.sandbox.hooks.rewrite import Command

GUARD = "import json, sys\njson.load(sys.stdin)\nprint('guarded', file=sys.stderr)\n"
COMMAND = 'python3 "$CLAUDE_PROJECT_DIR"/scripts/guard.py'


def settings(command: str = COMMAND, **more: object) -> str:
    entry = {"type": "command", "command": command, **more}
    return json.dumps({"hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [entry]}]}}, indent=2)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a guard, and a state directory of the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name, text in (("scripts/guard.py", GUARD), (".claude/settings.json", settings())):
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "project"


def specs(project):
    return config.load(str(project / ".claude/settings.json")).specs


def pinned(project) -> Pins:
    found = pin.pins_now(str(project / ".claude/settings.json"), "claude", specs(project))
    store_pins(found)
    return found


def words(changes):
    return [(each.what, each.text.rpartition("/")[2]) for each in changes]


def test_a_pin_records_the_entry_and_the_script(project):
    (one,) = pinned(project).handlers
    assert one.entry == {
        "event": "PreToolUse", "matcher": "Bash", "handler": {"type": "command", "command": COMMAND}
    }  # fmt: skip
    (script,) = one.scripts
    assert script == Script(str(project / "scripts/guard.py"), pin.digest(GUARD.encode()), GUARD)


def test_nothing_changed_nothing_said(project):
    (one,) = pinned(project).handlers
    (spec,) = specs(project)
    assert verify_spec(spec) == []
    assert verify_command(("sh", "-c", COMMAND), one.id) == []
    require((one.id,), ("sh", "-c", COMMAND))


def test_a_file_without_pins_is_none_of_our_business(project):
    (spec,) = specs(project)
    assert verify_spec(spec) == []


def test_a_script_that_was_exchanged_is_named_with_what_differs(project):
    (one,) = pinned(project).handlers
    with open(project / "scripts/guard.py", "a") as file:
        file.write("print('evil')\n")
    (spec,) = specs(project)
    for changes in (verify_spec(spec), verify_command(("sh", "-c", COMMAND), one.id)):
        assert words(changes) == [("script", "guard.py has changed")]
        assert "\n+print('evil')\n" in changes[0].diff
    with pytest.raises(PinBroken, match=r"guard\.py has changed") as caught:
        require((one.id,), ("sh", "-c", COMMAND))
    assert "--check" in caught.value.remedy


def test_a_script_that_is_gone_and_one_that_came(project):
    os.rename(project / "scripts/guard.py", project / "scripts/other.py")
    (one,) = pinned(project).handlers
    assert one.scripts[0].sha256 == ""
    os.rename(project / "scripts/other.py", project / "scripts/guard.py")
    (spec,) = specs(project)
    assert words(verify_spec(spec)) == [("script", "guard.py was not there")]
    pinned(project)
    os.unlink(project / "scripts/guard.py")
    assert words(verify_spec(specs(project)[0])) == [("script", "guard.py is gone")]


@pytest.mark.parametrize("kind", ["fifo", "directory", "link to another"])
def test_a_script_of_another_kind_has_changed(project, kind):
    pinned(project)
    path = project / "scripts/guard.py"
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        (project / "evil.py").write_text("evil")
        path.symlink_to(project / "evil.py")
    assert [each.what for each in verify_spec(specs(project)[0])] == ["script"]


@pytest.mark.parametrize(
    "changed",
    [
        settings("python3 evil.py"), settings(timeout=1), settings(**{"async": True}),
        settings().replace("Bash", "Nothing"),
    ],
)  # fmt: skip
def test_another_entry_is_told(project, changed):
    pinned(project)
    (project / ".claude/settings.json").write_text(changed)
    changes = verify_spec(specs(project)[0])
    assert changes[0].what == "entry"
    assert changes[0].diff


def test_another_layout_of_the_same_entry_is_the_same(project):
    pinned(project)
    (project / ".claude/settings.json").write_text(json.dumps(json.loads(settings()), sort_keys=True))
    assert verify_spec(specs(project)[0]) == []


def test_a_handler_that_moved_is_still_the_same_and_a_new_one_was_never_pinned(project):
    before = pinned(project)
    tree = json.loads(settings())
    tree["hooks"]["PreToolUse"].insert(0, {"hooks": [{"type": "command", "command": "evil"}]})
    (project / ".claude/settings.json").write_text(json.dumps(tree))
    (new, old) = specs(project)
    assert verify_spec(old) == []
    assert [each.what for each in verify_spec(new)] != []
    now = pin.pins_now(str(project / ".claude/settings.json"), "claude", specs(project))
    assert [each.what for each in compare(before, now.handlers)] == ["new"]
    assert [each.what for each in compare(now, before.handlers)] == ["gone"]


def test_another_command_behind_a_pin_is_refused(project):
    (one,) = pinned(project).handlers
    assert [each.what for each in verify_command(("sh", "-c", "evil"), one.id)] == ["command"]


@pytest.mark.parametrize(
    "name", ["", "x", "no.such", "../../etc/passwd.x", "0123456789abcdef.0123456789abcdef", "a/b.c"]
)
def test_a_pin_that_nobody_has_is_refused(project, name):
    pinned(project)
    assert [each.what for each in verify_command(("true",), name)] == ["record"]
    with pytest.raises(PinBroken, match="there is no pin"):
        require((name,), ("true",))


@pytest.mark.parametrize(
    ("command", "argv", "same"),
    [
        (Command("shell", ("a b",)), ("sh", "-c", "a b"), True),
        (Command("shell", ("a b",)), ("bash", "-c", "a b"), True),
        (Command("shell", ("a b",)), ("a", "b"), True),
        (Command("shell", ("a b",)), ("sh", "-c", "a b; evil"), False),
        (Command("shell", ("a b",)), ("sh", "-c", "a b", "c"), False),
        (Command("shell", ("a $x",)), ("sh", "-c", "a /evil"), False),
        (Command("shell", ("$GEMINI_PROJECT_DIR/x",)), ("bash", "-c", "'/my place'/x"), True),
        (Command("shell", ("a ${PLUGIN_ROOT}/x",)), ("zsh", "-c", "a /root/x"), True),
        (Command("shell", ("a ${PLUGIN_ROOT}/x",)), ("zsh", "-c", "b /root/x"), False),
        (Command("shell", ("a\n",)), ("bash", "-c", "a\n#"), True),
        (Command("exec", ("node", "${CLAUDE_PLUGIN_ROOT}/x", "y")), ("node", "/a b/x", "y"), True),
        (Command("exec", ("node", "x")), ("node", "x", "evil"), False),
        (Command("exec", ("node", "x")), ("evil", "x"), False),
    ],
)
def test_what_counts_as_the_pinned_command(command, argv, same):
    assert matches(command, argv) is same


def test_wrapping_does_not_break_pins_but_a_wrapper_that_is_changed_behind_our_back_does(project):
    from stockade.sandbox.hooks.rewrite import Choice, Needs
    from stockade.sandbox.hooks.wrap import wrap

    path = project / ".claude/settings.json"
    (one,) = pinned(project).handlers
    done = wrap(
        path.read_bytes(), str(path), Choice("claude"), lambda data: config.parse(data, str(path)).specs,
        lambda _spec: Needs(pins=(one.id,)),
    )  # fmt: skip
    path.write_bytes(done.data)
    (spec,) = specs(project)
    assert [each.what for each in verify_spec(spec)] == ["wrapper"]
    found = pinned(project)
    assert found.handlers[0].id == one.id
    assert found.handlers[0].scripts == one.scripts
    path.write_bytes(done.data.replace(b"hook --dialect", b"hook --mode off --dialect"))
    (change,) = verify_spec(specs(project)[0])
    assert change.what == "wrapper"
    assert "+stockade hook --mode off" in change.diff


# --- where they are kept ---------------------------------------------------------------------------------------------


def place_of(project) -> str:
    (name,) = os.listdir(pin.pins_directory())
    return os.path.join(pin.pins_directory(), name)


def test_pins_lie_in_a_directory_of_the_users_own(project):
    pinned(project)
    assert os.stat(pin.pins_directory()).st_mode & 0o777 == 0o700
    assert os.stat(place_of(project)).st_mode & 0o777 == 0o600
    assert not (project / "state").exists()


@pytest.mark.parametrize("harm", ["damaged", "writable by others", "another schema", "a link", "another type"])
def test_pins_that_cant_be_trusted_are_an_error_never_none(project, harm):
    (one,) = pinned(project).handlers
    path = place_of(project)
    data = state.read_private(*os.path.split(path))
    if harm == "writable by others":
        os.chmod(path, 0o666)
    elif harm == "a link":
        os.rename(path, f"{path}.real")
        os.symlink(f"{path}.real", path)
    else:
        changed = {
            "damaged": data[:-20],
            "another schema": data.replace(b"pins/1", b"pins/9"),
            "another type": b"[]",
        }
        with open(path, "wb") as file:
            file.write(changed[harm])
    (spec,) = specs(project)
    for ask in (lambda: verify_spec(spec), lambda: require((one.id,), ("sh", "-c", COMMAND))):
        with pytest.raises(StockadeError, match="could not read the pins"):
            ask()


def test_what_can_not_be_kept_is_an_error(project, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    with pytest.raises(StockadeError, match="could not keep the pins"):
        pinned(project)
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "")
    with pytest.raises(StockadeError, match="HOME is not set"):
        pinned(project)


def test_long_scripts_are_pinned_by_their_hash_alone(project):
    (project / "scripts/guard.py").write_text("#" * (pin.LARGEST_TEXT + 1))
    (one,) = pinned(project).handlers
    assert one.scripts[0].text is None
    (project / "scripts/guard.py").write_text("evil")
    (change,) = verify_spec(specs(project)[0])
    assert "-sha256 " in change.diff


def test_texts_are_left_out_before_the_pins_get_too_long_to_read():
    scripts = tuple(Script(f"/s{number}", "0" * 64, "x" * 60_000) for number in range(40))
    pins = Pins("/f", "claude", (Pin("a.b", "/p", "E", {"handler": {}}, Command("shell", ("x",)), (), scripts),))
    data = encoded(pins)
    assert len(data) <= state.MOST
    assert [each.sha256 for each in decoded(data).handlers[0].scripts] == ["0" * 64] * 40


names = st.text(max_size=8)


@given(
    st.builds(
        Pin,
        names, names, names,
        st.dictionaries(names, st.one_of(names, st.integers(), st.none()), max_size=2),
        st.builds(Command, st.sampled_from(["shell", "exec"]), st.lists(names, min_size=1, max_size=2).map(tuple)),
        st.lists(names, max_size=2).map(tuple),
        st.lists(st.builds(Script, names, names, st.none() | names), max_size=2).map(tuple),
    )
)  # fmt: skip
def test_what_is_kept_is_what_is_read(one):
    pins = Pins("/a/file", "claude", (one,))
    assert decoded(encoded(pins)) == pins


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def shop(place):
    place.env["XDG_STATE_HOME"] = place.path("state")
    place.put("ws/scripts/guard.py", GUARD)
    place.file = place.put("ws/.claude/settings.json", settings())
    return place


def test_pin_shows_writes_checks_and_updates(shop):
    shown = shop.call("hooks", "pin", shop.file)
    assert (shown.returncode, os.path.exists(shop.path("state"))) == (0, False)
    assert b"scripts/guard.py" in shown.stdout
    assert shop.call("hooks", "pin", "--check", shop.file).returncode == 1
    assert shop.call("hooks", "pin", "--write", shop.file).returncode == 0
    assert shop.call("hooks", "pin", "--check", shop.file).returncode == 0

    shop.put("ws/scripts/guard.py", GUARD + "evil()\n")
    for words_ in (("--check",), ("--write",), ()):
        done = shop.call("hooks", "pin", *words_, shop.file)
        assert done.returncode == 1, words_
        assert b"\n+evil()\n" in done.stdout
    assert shop.call("hooks", "pin", "--check", shop.file).returncode == 1

    updated = shop.call("hooks", "pin", "--update", shop.file)
    assert updated.returncode == 0
    assert b"\n+evil()\n" in updated.stdout
    assert shop.call("hooks", "pin", "--check", shop.file).returncode == 0
    assert shop.call("hooks", "pin", "--forget", shop.file).returncode == 0
    assert shop.call("hooks", "pin", "--check", shop.file).returncode == 1


def test_as_a_document(shop):
    shop.call("hooks", "pin", "--write", shop.file)
    shop.put("ws/scripts/guard.py", "evil\n")
    told = json.loads(shop.call("hooks", "pin", "--check", "--json", shop.file).stdout)
    assert told["schema"] == "stockade.pin/1"
    (file,) = told["files"]
    assert (file["state"], [each["what"] for each in file["changes"]]) == ("changed", ["script"])
    assert len(file["handlers"][0]["scripts"][0]["sha256"]) == 64


def test_all_files_of_a_directory(shop):
    shop.put(
        "ws/.cursor/hooks.json", '{"version": 1, "hooks": {"preToolUse": [{"command": "./scripts/guard.py"}]}}'
    )
    assert shop.call("hooks", "pin", "--write", shop.ws).returncode == 0
    assert shop.call("hooks", "pin", "--check", shop.ws).returncode == 0
    shop.put("ws/scripts/guard.py", "evil\n")
    told = json.loads(shop.call("hooks", "pin", "--check", "--json", shop.ws).stdout)
    assert [each["state"] for each in told["files"]] == ["changed", "changed"]
    shop.put("ws/.gemini/settings.json", "{ broken")
    broken = shop.call("hooks", "pin", "--check", shop.ws)
    assert (broken.returncode, b"settings.json:1" in broken.stderr) == (125, True)
    nothing = shop.call("hooks", "pin", "--check", shop.path("victim"))
    assert (nothing.returncode, b"could not find hooks" in nothing.stderr) == (125, True)


def test_two_wishes_at_once_are_refused(shop):
    done = shop.call("hooks", "pin", "--check", "--update", shop.file)
    assert (done.returncode, b"could not combine" in done.stderr) == (125, True)


def test_what_a_terminal_would_obey_is_spelt_out(shop):
    shop.call("hooks", "pin", "--write", shop.file)
    shop.put("ws/scripts/guard.py", "evil \x1b[2J\u202e\n")
    done = shop.call("hooks", "pin", "--check", shop.file)
    assert b"\x1b" not in done.stdout
    assert "\u202e" not in done.stdout.decode()


@pytest.mark.kernel
def test_a_wrapped_and_pinned_hook_is_refused_once_its_script_has_changed(shop):
    """The control is the same call before the change."""
    assert shop.call("hooks", "pin", "--write", shop.file).returncode == 0
    assert shop.call("hooks", "wrap", "--write", shop.file).returncode == 0
    assert shop.call("hooks", "pin", "--check", shop.file).returncode == 0, "wrap tells the pins of itself"
    with open(shop.file) as file:
        line = json.load(file)["hooks"]["PreToolUse"][0]["hooks"][0]["command"]
    assert "--pinned" in line
    told = {
        "session_id": "s", "cwd": shop.ws, "hook_event_name": "PreToolUse", "tool_name": "Bash",
        "tool_input": {"command": "ls"}, "tool_use_id": "t",
    }  # fmt: skip

    def as_the_host():
        return shop.call(
            "-c", line, command=("sh",), input=json.dumps(told).encode(), env={"CLAUDE_PROJECT_DIR": shop.ws}
        )

    before = as_the_host()
    assert (before.returncode, before.stdout, before.stderr) == (0, b"", b"guarded\n")
    marker = shop.path("ws", "ran")
    os.chmod(shop.ws, 0o777)
    shop.put("ws/scripts/guard.py", f"open({marker!r}, 'w')\n")
    after = as_the_host()
    assert b"guarded" not in after.stderr
    assert b"not as it was pinned" in after.stdout + after.stderr
    assert b"guard.py has changed" in after.stdout + after.stderr
    assert '"deny"' in after.stdout.decode() or after.returncode == 2
    assert not os.path.exists(marker)
    shop.put("ws/scripts/guard.py", GUARD)
    assert as_the_host().stderr == b"guarded\n"


@pytest.mark.kernel
def test_a_hook_whose_pins_are_gone_is_refused(shop):
    assert shop.call("hooks", "pin", "--write", shop.file).returncode == 0
    assert shop.call("hooks", "wrap", "--write", shop.file).returncode == 0
    assert shop.call("hooks", "pin", "--forget", shop.file).returncode == 0
    with open(shop.file) as file:
        line = json.load(file)["hooks"]["PreToolUse"][0]["hooks"][0]["command"]
    told = {
        "hook_event_name": "PreToolUse",
        "session_id": "s",
        "cwd": shop.ws,
        "tool_name": "Bash",
        "tool_input": {},
    }
    done = shop.call("-c", line, command=("sh",), input=json.dumps(told).encode())
    assert b"there is no pin" in done.stdout + done.stderr
    assert '"deny"' in done.stdout.decode() or done.returncode == 2
    assert shop.call("hooks", "wrap", "--write", shop.file).returncode == 0
    with open(shop.file) as file:
        assert "--pinned" not in file.read()
