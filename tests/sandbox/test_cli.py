"""The command line as a process: what goes to which stream, exit codes, documents, and files left alone."""

from __future__ import annotations

import base64
import json
import os
import pty
import signal
import subprocess
import sys

import pytest
from clirun import BOX, STOCKADE

from stockade.sandbox.cli import doctor, main, policy, run

pytestmark = pytest.mark.kernel


def text(done):
    return done.stdout.decode(), done.stderr.decode()


def document(done):
    """The only thing on stdout."""
    return json.loads(done.stdout)


def good(done):
    assert done.returncode == 0, done.stderr
    return done


# --- help and version -------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"]])
def test_help_names_every_command(place, words):
    out, err = text(good(place.call(*words)))
    assert all(f"\n  {name} " in out for name in main.COMMANDS)
    assert err == ""


def test_without_a_command_the_help_is_shown_and_that_is_a_failure(place):
    done = place.call()
    assert (done.returncode, done.stdout) == (125, place.call("--help").stdout)


@pytest.mark.parametrize(
    ("command", "options"), [("run", run.OPTIONS), ("policy", policy.OPTIONS), ("doctor", doctor.OPTIONS)]
)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_of_a_command_names_every_option_within_the_width(place, command, options, flag):
    out, err = text(good(place.call(command, flag)))
    assert out.startswith(f"usage: stockade {command}")
    assert all(spelling in out for option in options for spelling in option.flags)
    assert max(map(len, out.splitlines())) <= 100
    assert err == ""


def test_help_wins_over_what_stands_before_the_command(place):
    assert good(place.call("run", "--timeout", "5", "--help")).stdout.startswith(b"usage:")
    assert good(place.call("run", "--", "printf", "%s", "--help")).stdout == b"--help"


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version(place, flag):
    import stockade

    out, _err = text(good(place.call(flag)))
    assert out.startswith(f"stockade {stockade.__version__} (Python 3.")
    assert out.count("\n") == 1


# --- exit codes -------------------------------------------------------------------------------------------

CODES = [
    (("true",), 0, None),
    (("sh", "-c", "exit 7"), 7, None),
    (("sh", "-c", "exit 124"), 124, None),
    (("sh", "-c", "exit 125"), 125, None),
    (("sh", "-c", "exit 255"), 255, None),
    (("sh", "-c", "kill -SEGV $$"), 128 + signal.SIGSEGV, "SIGSEGV"),
    (("sh", "-c", "kill -KILL $$"), 128 + signal.SIGKILL, "SIGKILL"),
    (("no-such-program",), 127, "not_executed"),
    (("./none",), 127, "not_executed"),
    (("./data",), 126, "not_executed"),
    (("/usr",), 126, "not_executed"),
]


@pytest.mark.parametrize(("command", "code", "said"), CODES)
@pytest.mark.parametrize("trusted", [False, True])
def test_the_exit_code_is_the_programs_own_or_the_reason_it_has_none(place, command, code, said, trusted):
    place.put("ws/data", "no program\n")
    done = place.call("run", *(["--trusted"] if trusted else []), "--", *command)
    assert (done.returncode, done.stdout) == (code, b"")
    if said is None:
        assert done.stderr == b""
    else:
        assert said in done.stderr.decode()


def test_timed_out_is_124(place):
    done = place.call("run", "--timeout", "300ms", "--", "sleep", "60")
    assert done.returncode == 124
    assert done.stderr.decode().startswith("stockade: timed_out: timed out after 0.3 s")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_to_us_is_passed_on(place, number, code):
    command = [*STOCKADE, "run", "--", "sh", "-c", "echo ready; exec sleep 60"]
    with subprocess.Popen(
        command, cwd=place.ws, env=place.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(timeout=30) == code


# --- streams ----------------------------------------------------------------------------------------------


def test_streams_are_passed_through_byte_for_byte(place):
    data = bytes(range(256)) * 300
    done = good(place.call("run", "--", "sh", "-c", "cat; printf 'err\\377' >&2", input=data))
    assert (done.stdout, done.stderr) == (data, b"err\xff")


def test_nothing_is_said_about_a_run_that_simply_ended(place):
    assert place.call("run", "--", "sh", "-c", "exit 3").stderr == b""


def test_verbose_ends_with_the_verdict_on_stderr(place):
    out, err = text(place.call("run", "-v", "--", "sh", "-c", "echo out; exit 3"))
    assert out == "out\n"
    assert err.startswith("stockade: exited: exited with code 3\n")
    assert "enforcement full (policy read-only, network none), decided by rule executed" in err


@pytest.mark.parametrize(
    "words", [["policy", "list"], ["--help"], ["run", "--help"], ["doctor"], ["run", "--json", "--", "true"]]
)
def test_a_reader_that_went_away_is_no_traceback(place, words):
    read, write = os.pipe()
    os.close(read)
    done = place.call(*words, stdout=write)
    os.close(write)
    assert done.returncode == 125
    assert b"Traceback" not in done.stderr
    assert b"internal error" not in done.stderr
    assert b"Exception ignored" not in done.stderr


def test_nor_is_one_that_reads_nothing_of_the_programs_output(place):
    command = f"{' '.join(STOCKADE)} run -- seq 1 100000 | head -c0; echo ${{PIPESTATUS[0]}}"
    done = place.call(command, command=("bash", "-c"))
    assert done.stdout == b"141\n"
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("numbers", [(0,), (1,), (2,), (0, 1, 2)])
def test_streams_that_are_closed_from_the_start_stay_out_of_it(place, numbers):
    """Else our own pipes get their numbers, and the program gets our pipes."""
    closing = " ".join(f"{number}>&-" for number in numbers)
    probe = "ls -l /proc/self/fd > seen; echo out; echo err >&2; exit 5"
    line = f"{' '.join(STOCKADE)} run --policy workspace-write -- sh -c '{probe}' {closing}"
    done = place.call(line, command=("sh", "-c"))
    assert done.returncode == 5
    assert b"internal error" not in done.stderr
    with open(place.path("ws", "seen")) as file:
        seen = dict(row.split()[-3::2] for row in file if "->" in row)
    assert {"0", "1", "2"} <= set(seen) <= {"0", "1", "2", "3"}
    assert all(seen[str(number)] == "/dev/null" for number in numbers if number != 1)


@pytest.mark.parametrize("words", [["policy", "list"], ["doctor", "--json"], ["--version"]])
def test_a_command_without_stdout_or_stderr_ends_in_order(place, words):
    done = place.call(f"{' '.join((*STOCKADE, *words))} >&- 2>&-", command=("sh", "-c"))
    assert done.returncode == 0


def at_terminal(place, *words, **env):
    """What it prints on a terminal."""
    outer, inner = pty.openpty()
    process = subprocess.Popen(
        [*STOCKADE, *words],
        cwd=place.ws,
        env={**place.env, "TERM": "xterm", **env},
        stdin=inner,
        stdout=inner,
        stderr=inner,
    )
    os.close(inner)
    shown = b""
    try:
        while data := os.read(outer, 65_536):
            shown += data
    except OSError:
        pass  # EIO: the other end was closed
    process.wait(timeout=30)
    os.close(outer)
    return shown.decode()


def test_colours_are_for_terminals_that_want_them(place):
    assert "\x1b[32m" in at_terminal(place, "doctor")
    assert "\x1b" not in at_terminal(place, "doctor", NO_COLOR="1")
    assert "\x1b" not in at_terminal(place, "doctor", TERM="dumb")
    assert b"\x1b" not in good(place.call("doctor", env={"TERM": "xterm"})).stdout


def test_letters_that_stdout_lacks_are_spelt_out(place):
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    out = good(place.call("policy", "explain", "--write", "é", env=ascii_only)).stdout
    assert rb"\xe9" in out
    done = good(place.call("run", "--json", "--", "printf", "é", env=ascii_only))
    assert done.stdout.isascii()
    assert document(done)["stdout"] == "é"


# --- mistakes in the command line -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said", "remedy"),
    [
        (["rum"], "could not understand the command 'rum'", "Did you mean `stockade run`?"),
        (["docter"], "could not understand the command 'docter'", "Did you mean `stockade doctor`?"),
        (["frobnicate"], "could not understand the command", "stockade --help"),
        (["--verbos"], "could not understand the command", "stockade --help"),
        (["run"], "could not run anything: no command was given", "Usage: stockade run"),
        (["run", "--"], "could not run anything: no command was given", "Usage: stockade run"),
        (["run", "--timeot", "5", "--", "true"], "could not read the option '--timeot'", "did you mean --timeout?"),
        (["run", "--timeout"], "could not read the option '--timeout': its value is missing", "--timeout TIME"),
        (["run", "--mode=auto", "--mode=off", "true"], "given twice", "give it once"),
        (["run", "--trusted=yes", "true"], "it takes no value", "write --trusted alone"),
        (["run", "--json=", "true"], "the file name is empty", "write --json alone"),
        (["run", "--frobnicate", "true"], "could not read the option '--frobnicate'", "--help lists the options"),
        (["run", "-t", "5", "true"], "could not read the option '-t'", "did you mean -"),
        (["run", "--allow", "a.example", "--record-egress", "true"], "could not combine", "Use one of them"),
        (["policy", "frob"], "could not understand `policy frob`", "Usage: stockade policy"),
        (["policy", "show"], "could not understand `policy show`", "Usage: stockade policy"),
        (["policy", "list", "x"], "could not understand", "Usage: stockade policy"),
        (["policy", "show", "nope"], "could not find the policy 'nope'", "read-only"),
        (["doctor", "x"], "could not use the argument 'x'", "leave it out"),
        (["doctor", "--json=x"], "could not use --json=FILE here", "Write --json."),
        (["policy", "list", "--json=x"], "could not use --json=FILE here", "Write --json."),
        (["run", "--dry-run", "--json=x", "true"], "could not use --json=FILE here", "Write --json."),
    ],
)
def test_a_mistake_is_said_with_what_to_do(place, words, said, remedy):
    done = place.call(*words)
    first, second = done.stderr.decode().splitlines()[:2]
    assert (done.returncode, done.stdout) == (125, b"")
    assert first.startswith("stockade: could not")
    assert said in first
    assert remedy in second
    assert os.listdir(place.ws) == []


def test_control_characters_of_a_mistake_are_made_visible(place):
    done = place.call("run\x1b[2J")
    assert b"\x1b" not in done.stderr
    assert rb"run\x1b[2J" in done.stderr.replace(rb"\\x1b", rb"\x1b")


def test_words_after_the_command_are_its_own(place):
    assert good(place.call("run", "echo", "--timeout", "--json", "--", "-v")).stdout == b"--timeout --json -- -v\n"


# --- environment ------------------------------------------------------------------------------------------

SHOW = ("--", "sh", "-c", 'printf "%s|" "${A-unset}" "${B-unset}"')


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ([], b"unset|unset|"),
        (["--env", "A"], b"caller|unset|"),
        (["--env", "A=given"], b"given|unset|"),
        (["--env", "A="], b"|unset|"),
        (["--env=A=x=y"], b"x=y|unset|"),
        (["--env", "A=1", "--env", "B=2"], b"1|2|"),
        (["--env", "A=1", "--env", "A=2"], b"2|unset|"),
        (["--env", b"A=\xff\xfe \n$(id)"], b"\xff\xfe \n$(id)|unset|"),
    ],
)
def test_variables(place, options, shown):
    assert good(place.call("run", *options, *SHOW, env={"A": "caller"})).stdout == shown


def test_the_callers_environment_is_not_handed_on(place):
    out = good(
        place.call("run", "--", "env", env={"SECRET": "sk-1", "LC_ALL": "C.UTF-8", "PYTHONPATH": "/x"})
    ).stdout
    assert b"sk-1" not in out
    assert b"LC_ALL=C.UTF-8" in out
    assert b"PYTHONPATH" not in out
    assert b"SECRET=sk-1" in good(place.call("run", "--trusted", "--", "env", env={"SECRET": "sk-1"})).stdout


# --- paths ------------------------------------------------------------------------------------------------


def test_write_opens_one_more_place(place):
    other = place.path("other")
    assert place.call("run", "--", "touch", f"{other}/x").returncode == 1
    assert os.listdir(other) == []
    good(place.call("run", "--write", other, "--", "touch", f"{other}/x"))
    assert os.listdir(other) == ["x"]
    assert place.call("run", "--write", other, "--", "touch", "x").returncode == 1
    assert os.listdir(place.ws) == []


def test_read_shows_one_more_place(place):
    secret = place.put("home/notes/secret", "found\n")
    assert place.call("run", "--", "cat", secret).returncode == 1
    assert good(place.call("run", "--read", "~/notes", "--", "cat", secret)).stdout == b"found\n"
    assert place.call("run", "--read", "~/notes", "--", "sh", "-c", f"echo x > {secret}").returncode != 0
    with open(secret) as file:
        assert file.read() == "found\n"


@pytest.mark.parametrize("exists", [False, True])
def test_a_writable_place_does_not_open_our_own_state_in_it(place, exists):
    """A policy file left there would be the next run's own."""
    config = place.path("other")
    env = {"XDG_CONFIG_HOME": config}
    if exists:
        os.mkdir(place.path("other", "stockade"), 0o755)
    attack = (
        "touch ok; mkdir -p stockade; echo 'mode = \"off\"' > stockade/policy.toml;"
        " mv stockade s; rmdir stockade; ln -s /tmp stockade; ls -A"
    )
    done = good(place.call("run", "--cwd", config, *BOX, "--", "sh", "-c", attack, env=env))
    assert "ok" in done.stdout.decode().split()
    assert sorted(os.listdir(config)) == (["ok", "stockade"] if exists else ["ok"])
    assert not exists or os.listdir(place.path("other", "stockade")) == []
    assert document(place.call("run", "--json", "--", "true", env=env))["enforcement"] == "full"


def test_hide_covers_what_matches(place):
    place.put("ws/keys/a.pem", "secret\n")
    place.put("ws/keys/b.txt", "plain\n")
    place.put("ws/.env", "token\n")
    show = ("--", "sh", "-c", "cat keys/* .env")
    assert place.call("run", *show).stdout == b"secret\nplain\n"
    assert place.call("run", "--hide", "**/*.pem", *show).stdout == b"plain\n"
    assert good(place.call("run", "--hide", "keys", "--", "ls", "keys")).stdout == b""


def test_cwd_is_the_workspace(place):
    other = place.path("other")
    place.put("other/file", "x")
    out = good(place.call("run", "--cwd", other, "--", "sh", "-c", "pwd; ls")).stdout.decode()
    assert out == f"{other}\nfile\n"
    assert good(place.call("run", "--cwd", "../other", "--", "pwd")).stdout.decode() == f"{other}\n"


def test_workspace_says_what_may_be_done_in_it(place):
    good(place.call("run", "--workspace", "read-write", "--", "touch", "made"))
    assert os.listdir(place.ws) == ["made"]
    assert place.call("run", "--workspace", "read-only", "--", "touch", "more").returncode == 1
    assert place.call("run", "--workspace", "none", "--", "ls", place.ws).stdout.decode() in ("", "made\n")
    assert good(place.call("run", "--workspace", "none", "--", "pwd")).stdout.decode() == f"{place.home}\n"
    assert os.listdir(place.ws) == ["made"]


# --- documents --------------------------------------------------------------------------------------------


def test_json_captures_both_streams_and_prints_only_the_document(place):
    done = place.call("run", "--json", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    found = document(done)
    assert (done.returncode, done.stderr) == (3, b"")
    assert found["schema"] == "stockade.result/1"
    assert [found[name] for name in ("outcome", "exit_code", "returncode", "started", "enforcement")] == [
        "exited",
        3,
        3,
        True,
        "full",
    ]
    assert (found["stdout"], found["stderr"], found["argv"][0]) == ("out\n", "err\n", "sh")
    assert found["duration"] > 0
    assert found["usage"]["peak_rss"] > 100_000


def test_json_keeps_bytes_that_are_no_text(place):
    found = document(place.call("run", "--json", "--", "printf", "a\\377é"))
    assert found["stdout"] == "a\N{REPLACEMENT CHARACTER}é"
    assert base64.b64decode(found["stdout_base64"]) == b"a\xff\xc3\xa9"


def test_json_of_words_that_are_no_text_can_be_read(place):
    os.mkdir(os.fsencode(place.ws) + b"/odd-\xff")
    done = place.call("run", "--json", "--env", b"X=\xff", "--write", b"odd-\xff", "--", "true", b"\xff\xc3\xa9")
    assert document(done)["argv"] == ["true", r"\xffé"]
    assert document(done)["policy"]["filesystem"]["write"][0].endswith(r"odd-\xff")
    plan = document(place.call("run", "--json", "--dry-run", "--write", b"odd-\xff", "--", "true", b"\xff"))
    assert plan["argv"] == ["true", r"\xff"]
    fields = document(place.call("policy", "explain", "--json", "--write", b"odd-\xff"))["fields"]
    assert any(each["key"] == "filesystem.write" for each in fields)


def test_json_lists_what_was_written(place):
    place.put("ws/old", "1", 0o666)
    found = document(place.call("run", *BOX, "--json", "--", "sh", "-c", "echo 2 > old; mkdir d; touch d/new"))
    written = {(os.path.relpath(each["path"], place.ws), each["kind"]) for each in found["files_written"]}
    assert written == {("old", "changed"), ("d", "created"), ("d/new", "created")}
    assert document(place.call("run", "--json", "--", "true"))["files_written"] == []
    assert document(place.call("run", "--json", "--trusted", "--", "true"))["files_written"] is None


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        (("sh", "-c", "kill -TERM $$"), "signalled"),
        (("none",), "not_executed"),
        (("sleep", "60"), "timed_out"),
    ],
)
def test_json_of_other_ends(place, command, outcome):
    done = place.call("run", "--json", "--timeout", "400ms", "--", *command)
    assert document(done)["outcome"] == outcome
    assert document(done)["returncode"] == done.returncode


def test_json_suspects_a_denial_only_of_a_program_that_failed(place):
    failed = document(place.call("run", "--json", "--", "touch", "/usr/x"))
    assert failed["denied"] is True
    assert (failed["denials"][0]["kind"], failed["denials"][0]["certainty"]) == ("filesystem", "suspected")
    forged = document(place.call("run", "--json", "--", "echo", "touch: /usr/x: Read-only file system"))
    assert (forged["denied"], forged["denials"]) == (False, [])


@pytest.mark.parametrize(
    "options",
    [
        ["--policy", "nope"],
        ["--policy", "./missing.toml"],
        ["--cwd", "/nonexistent"],
        ["--timeout", "0"],
        ["--write", "missing"],
        ["--env", "NOT_SET"],
        ["--env", "=x"],
        ["--cwd", "/", "--workspace", "read-write"],
    ],
)
def test_json_of_a_refusal_is_a_document_too(place, options):
    done = place.call("run", "--json", *options, "--", "touch", "marker")
    found = document(done)
    assert done.returncode == 125
    assert (found["schema"], found["outcome"], found["started"], found["exit_code"]) == (
        "stockade.result/1",
        "runner_failed",
        False,
        None,
    )
    assert (found["returncode"], found["denied"], found["enforcement"]) == (125, False, "none")
    assert found["argv"] == ["touch", "marker"]
    assert found["error"]["message"] == found["reason"]
    assert done.stderr.decode().startswith("stockade: could not")
    assert os.listdir(place.ws) == []


def test_a_mistake_in_the_options_themselves_is_no_document(place):
    """Whether --json was meant is not known then."""
    assert place.call("run", "--json", "--frob", "true").stdout == b""


# --- a document in a file ---------------------------------------------------------------------------------


def read(path):
    with open(path) as file:
        return json.load(file)


def test_a_file_gets_the_document_and_the_streams_are_left_alone(place):
    target = place.path("other", "out.json")
    done = place.call("run", f"--json={target}", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
    assert (read(target)["exit_code"], read(target)["stdout"]) == (3, "")


@pytest.mark.parametrize("name", ["out.json", "./out.json", "new/out.json"])
def test_a_relative_file_lies_where_we_are(place, name):
    os.mkdir(place.path("ws", "new"))
    good(place.call("run", f"--json={name}", "--", "true"))
    assert read(place.path("ws", name))["outcome"] == "exited"


def test_an_old_file_is_replaced_whole(place):
    target = place.put("other/out.json", "x" * 100_000)
    good(place.call("run", f"--json={target}", "--", "true"))
    assert read(target)["outcome"] == "exited"


def test_a_refusal_goes_into_the_file_too(place):
    target = place.path("other", "out.json")
    done = place.call("run", f"--json={target}", "--write", "missing", "--", "touch", "marker")
    assert (done.returncode, done.stdout) == (125, b"")
    assert read(target)["outcome"] == "runner_failed"
    assert os.listdir(place.ws) == []


def plant(place, kind):
    """What an earlier run could have left in the workspace, and the file to name. All of it leads to the victim."""
    victim = place.path("victim")
    if kind == "the file":
        os.symlink(f"{victim}/out.json", place.path("ws", "out.json"))
        return "out.json"
    if kind == "a dangling file":
        os.symlink(f"{victim}/new.json", place.path("ws", "out.json"))
        return "out.json"
    os.symlink(victim, place.path("ws", "out"))
    if kind == "a directory":
        return "out/out.json"
    if kind == "a directory, absolute":
        return place.path("ws", "out", "out.json")
    if kind == "a directory further up":
        os.mkdir(place.path("victim", "deep"))
        return "out/deep/out.json"
    if kind == "through a link of the callers own":
        os.symlink(place.ws, place.path("other", "link"))
        return place.path("other", "link", "out", "out.json")
    assert kind == "a link to the link"
    os.symlink(place.path("ws", "out"), place.path("other", "link"))
    return place.path("other", "link", "out.json")


KINDS = [
    "the file",
    "a dangling file",
    "a directory",
    "a directory, absolute",
    "a directory further up",
    "through a link of the callers own",
    "a link to the link",
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_link_is_refused_and_nothing_is_written_through_it(place, kind):
    place.put("victim/out.json", "precious")
    target = plant(place, kind)
    before = sorted(os.walk(place.path("victim")))
    done = place.call("run", *BOX, f"--json={target}", "--", "touch", "marker")
    assert done.returncode == 125
    assert done.stderr.decode().startswith("stockade: could not write")
    assert "symlink" in done.stderr.decode() or "symbolic link" in done.stderr.decode()
    with open(place.path("victim", "out.json")) as file:
        assert file.read() == "precious"
    assert sorted(os.walk(place.path("victim"))) == before
    assert not os.path.exists(place.path("ws", "marker"))


def test_a_link_of_the_callers_own_is_followed(place):
    os.symlink(place.path("other"), place.path("link"))
    os.symlink(place.path("other", "real.json"), place.path("other", "out.json"))
    good(place.call("run", f"--json={place.path('link', 'out.json')}", "--", "true"))
    assert read(place.path("other", "real.json"))["outcome"] == "exited"


def test_a_link_in_another_writable_place_is_refused_too(place):
    os.symlink(place.path("victim"), place.path("other", "out"))
    target = place.path("other", "out", "x.json")
    done = place.call("run", "--write", place.path("other"), f"--json={target}", "--", "true")
    assert done.returncode == 125
    assert os.listdir(place.path("victim")) == []
    good(place.call("run", f"--json={target}", "--", "true"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("/nonexistent/x.json", "no such file or directory"),
        ("/usr", "is a directory"),
        ("fifo", "no such device or address"),
        ("a\nb/x", "no such file or directory"),
    ],
)
def test_a_file_that_can_not_be_written_is_said_before_anything_runs(place, name, said):
    os.mkfifo(place.path("ws", "fifo"))
    done = place.call("run", *BOX, f"--json={name}", "--", "touch", "marker")
    assert done.returncode == 125
    first = done.stderr.decode().splitlines()[0]
    assert first.startswith("stockade: could not write")
    assert said in first
    assert os.listdir(place.ws) == ["fifo"]


def test_a_document_that_the_program_put_another_in_place_of_is_not_passed_off_as_ours(place):
    forge = 'rm out.json; echo \'{"outcome": "exited", "denied": false}\' > out.json'
    done = place.call("run", *BOX, "--json=out.json", "--", "sh", "-c", forge)
    assert done.returncode == 125
    assert "the program put something else in its place" in done.stderr.decode()


def test_a_document_that_the_program_wrote_into_is_still_whole(place):
    """The file is made by us before the run; open to all here, so that a root caller's run can write it."""
    os.close(os.open(place.path("ws", "out.json"), os.O_CREAT, 0o666))
    os.chmod(place.path("ws", "out.json"), 0o666)
    spoil = "seq 1 100000 > out.json"
    done = good(place.call("run", *BOX, "--json=out.json", "--", "sh", "-c", spoil))
    assert read(place.path("ws", "out.json"))["outcome"] == "exited"
    assert done.stdout == b""


def test_a_descriptor_of_the_shell_will_do(place):
    line = f"{' '.join(STOCKADE)} run --json=/dev/fd/3 -- echo out 3>{place.path('other', 'o')}"
    assert good(place.call(line, command=("sh", "-c"))).stdout == b"out\n"
    assert read(place.path("other", "o"))["outcome"] == "exited"


# --- dry run ----------------------------------------------------------------------------------------------


def test_dry_run_shows_the_plan_and_runs_nothing(place):
    done = good(place.call("run", *BOX, "--env", "K=v", "--timeout", "5s", "--dry-run", "--", "touch", "marker"))
    out, err = text(done)
    parts = (
        "mounts\n",
        "environment\n",
        "process\n",
        "  K=v\n",
        "the same by hand",
        "/bwrap --unshare-user",
        " touch marker",
    )
    assert [part for part in parts if part not in out] == []
    assert ["bind", place.ws, "the"] in [line.split()[:3] for line in out.splitlines()]
    assert err == ""
    assert os.listdir(place.ws) == []


def test_dry_run_as_a_document(place):
    found = document(good(place.call("run", *BOX, "--json", "--dry-run", "--", "touch", "marker")))
    assert found["schema"] == "stockade.plan/1"
    assert (found["confined"], found["cwd"], found["argv"]) == (True, place.ws, ["touch", "marker"])
    assert {"op", "dest", "source", "reason"} <= set(found["mounts"][0])
    assert ["HOME", place.home] in found["env"]
    assert place.ws in found["writable"]
    assert " touch marker" in found["replay"]
    assert os.listdir(place.ws) == []


def test_dry_run_of_a_direct_run(place):
    assert (
        "directly, unconfined"
        in good(place.call("run", "--trusted", "--dry-run", "touch", "marker")).stdout.decode()
    )
    found = document(good(place.call("run", "--trusted", "--dry-run", "--json", "touch", "marker")))
    assert (found["schema"], found["confined"], found["argv"]) == ("stockade.plan/1", False, ["touch", "marker"])
    assert os.listdir(place.ws) == []


def test_dry_run_refuses_what_a_run_would(place):
    done = place.call("run", "--write", "missing", "--dry-run", "--", "true")
    assert (done.returncode, done.stdout) == (125, b"")


# --- policy -----------------------------------------------------------------------------------------------


def test_policy_list(place):
    out, _err = text(good(place.call("policy", "list")))
    names = [line.split()[0] for line in out.splitlines()]
    assert names == ["read-only", "workspace-write", "hook", "build", "full-access"]
    found = document(good(place.call("policy", "list", "--json")))
    assert found["schema"] == "stockade.presets/1"
    assert [each["name"] for each in found["presets"]] == names
    assert all(each["about"] for each in found["presets"])


@pytest.mark.parametrize("name", ["read-only", "hook", "full-access"])
def test_policy_show(place, name):
    import tomllib

    shown = tomllib.loads(good(place.call("policy", "show", name)).stdout.decode())
    assert shown == document(good(place.call("policy", "show", name, "--json")))
    assert shown["limits"]["timeout"] == ("10s" if name == "hook" else "none")


def test_what_is_shown_is_a_policy_that_says_the_same(place):
    place.put("ws/p.toml", good(place.call("policy", "show", "build")).stdout.decode())
    assert good(place.call("policy", "check", "p.toml")).stdout == b"p.toml: ok\n"
    assert place.call("policy", "show", "./p.toml").stdout == place.call("policy", "show", "build").stdout


def test_policy_check(place):
    place.put("ws/good.toml", 'extends = "hook"\n')
    place.put("ws/bad.toml", "[limits]\ntimeot = 5\n")
    done = place.call("policy", "check", "good.toml", "bad.toml", "none.toml")
    out, err = text(done)
    assert (done.returncode, err) == (1, "")
    assert out.startswith("good.toml: ok\nbad.toml: could not")
    assert "timeot" in out
    found = document(place.call("policy", "check", "--json", "good.toml", "bad.toml", "none.toml"))
    assert found["schema"] == "stockade.check/1"
    assert [(each["file"], each["ok"]) for each in found["policies"]] == [
        ("good.toml", True),
        ("bad.toml", False),
        ("none.toml", False),
    ]
    assert all(each["ok"] or each["message"] for each in found["policies"])


def test_policy_explain(place):
    place.put("home/.config/stockade/policy.toml", "[limits]\nmemory = '1G'\n")
    place.put("ws/.stockade.toml", "[filesystem]\nhide = ['secret']\n")
    words = ["policy", "explain", "--policy", "hook", "--timeout", "3s"]
    rows = {line.split()[0]: line for line in good(place.call(*words)).stdout.decode().splitlines()}
    assert rows["limits.timeout"].endswith("options")
    assert "user " in rows["limits.memory"]
    assert "project " in rows["filesystem.hide"]
    assert rows["network.egress"].rstrip().endswith("hook")
    assert rows["cgroup"].split()[1] in ("ok:", "missing:")
    found = document(good(place.call(*words, "--json")))
    assert found["schema"] == "stockade.explain/1"
    assert {each["key"]: each["layer"] for each in found["fields"]}["limits.timeout"] == "options"
    assert place.path("ws", ".stockade.toml") in found["looked_at"]


def test_policy_explain_tells_which_way_a_host_goes(place):
    place.put("home/.config/stockade/policy.toml", '[[network.edge]]\nhost = "api.example"\nmethods = ["GET"]\n')
    words = [
        "policy",
        "explain",
        "--allow",
        "a.example",
        "--allow",
        "b.example:80 check=address",
        "--check",
        "name",
    ]
    rows = {line.split("  ")[0]: line for line in good(place.call(*words)).stdout.decode().splitlines()}
    assert rows["network.check"].split()[1:] == ['"name"', "options"]
    assert rows["a.example"].endswith("  allow      name checked (network.check)")
    assert rows["b.example:80 check=address"].endswith("packets by address")
    assert rows["api.example"].endswith("edge: GET to every path")
    found = document(good(place.call(*words, "--json")))
    assert found["routes"][0] == {"entry": "a.example", "kind": "allow", "way": "name checked (network.check)"}
    assert [each["kind"] for each in found["routes"]] == ["allow", "allow", "edge"]
    assert document(good(place.call("policy", "explain", "--json")))["routes"][0]["way"].startswith("idle")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--check", "names"], "network.check"),
        (["--check", "auto", "--allow", "a.example check=no"], "check='no'"),
        (["--check", "name", "--allow", "udp://a.example"], "can't be seen in UDP"),
        (["--allow", "192.0.2.7 check=name"], "only check=address fits"),
    ],
)
def test_checks_that_are_refused(place, words, says):
    for command in (["run"], ["run", "--dry-run"], ["policy", "explain"]):
        done = place.call(*command, *words, *(["--", "true"] if command[0] == "run" else []))
        assert done.returncode == 125
        assert says in done.stderr.decode()
        assert done.stdout == b""


def test_a_check_needs_no_network(place):
    assert (
        document(good(place.call("run", "--check", "name", "--json", "--", "true")))["policy"]["network"]["check"]
        == "name"
    )


# --- doctor -----------------------------------------------------------------------------------------------


def test_doctor(place):
    out, err = text(good(place.call("doctor")))
    assert err == ""
    states = dict(line.split()[:2] for line in out.split("\n\n")[0].splitlines())
    assert states["bwrap"] == states["user-namespaces"] == states["mount-isolation"] == "ok"
    assert "Commands are confined here with full enforcement." in out


def test_doctor_as_a_document(place):
    found = document(good(place.call("doctor", "--json")))
    assert (found["schema"], found["confinement"]) == ("stockade.host/1", "full")
    assert os.path.isabs(found["bwrap"])
    for each in found["capabilities"]:
        assert set(each) == {"name", "state", "detail", "remedy"}
        assert each["detail"]
        assert each["state"] == "ok" or each["remedy"]


def test_doctor_leaves_the_workspace_alone(place):
    place.call("doctor")
    assert os.listdir(place.ws) == []


# --- in a process of somebody else ------------------------------------------------------------------------


def test_main_returns_its_code_and_leaves_the_process_alone(place):
    program = (
        "import os, signal, sys; from stockade.sandbox.cli.main import main\n"
        "before = [signal.getsignal(n) for n in (1, 2, 15)], sorted(os.listdir('/proc/self/fd'))\n"
        "print(main(['run', '--', 'sh', '-c', 'exit 3']), main(['rum']), main(['run', '--timeout', '0', 'true']))\n"
        "from stockade.sandbox.keeperlink import end_keeper; end_keeper()\n"
        "after = [signal.getsignal(n) for n in (1, 2, 15)], sorted(os.listdir('/proc/self/fd'))\n"
        "print(before == after)\n"
    )
    done = good(place.call("-c", program, command=(sys.executable,)))
    assert done.stdout == b"3 125 125\nTrue\n"
