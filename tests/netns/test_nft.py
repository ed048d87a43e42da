"""Loading and reading back: by the library and by the program alike, and never "no rules" for an answer."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from rulesrig import Rig, run_scenario

from stockade.netns import nft as module
from stockade.netns.errors import LeaseFailed
from stockade.netns.nft import Nft, first_message, found_chains, locate_binding, mismatch, open_nft, read_json
from stockade.netns.ruleset import rules_text
from stockade.netns.ruletext import shape
from stockade.policies.errors import StockadeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin:/bin")
TEXTS = {
    kind: rules_text(kind, [], private=False, tcp_port=4444, udp_port=4445) for kind in ("allow", "open", "record")
}


class Fake:
    """An engine that answers what it is told to."""

    def __init__(self, *answers: tuple[int, str, str] | OSError) -> None:
        self.answers = list(answers)

    def cmd(self, text: str, *, reading: bool) -> tuple[int, str, str]:
        answer = self.answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer


# --- in the kernel ------------------------------------------------------------------------------------------------


def engines() -> list[Nft]:
    """The library and the program; both are on a host that is to test them."""
    assert PROGRAM is not None
    return [open_nft(None, locate_binding()), Nft(module._Program(PROGRAM))]


def scenario_each_kind_is_loaded_and_found_again(_rig: Rig) -> None:
    for nft in engines():
        for kind, text in TEXTS.items():
            nft.run(text)
            nft.verify(kind)
            other = "open" if kind == "record" else "record"
            assert_fails(lambda nft=nft, other=other: nft.verify(other), "verify")
            nft.run("delete table inet stockade\n")
            assert_fails(lambda nft=nft, kind=kind: nft.verify(kind), "read packet rules")
            nft._loaded.clear()


def scenario_a_change_behind_the_back_is_found(_rig: Rig) -> None:
    changes = (
        "add rule inet stockade output accept",
        "flush chain inet stockade output",
        "add chain inet stockade output { policy accept; }",
        "add chain inet stockade more { type filter hook output priority -10; policy accept; }",
        "add chain inet stockade more",
    )
    for nft in engines():
        for change in changes:
            nft.run(TEXTS["allow"])
            nft.verify("allow")
            nft.run(change)
            assert_fails(lambda nft=nft: nft.verify("allow"), "verify packet rules")
            nft.run("delete table inet stockade\n")
            nft._loaded.clear()


def scenario_a_transaction_that_fails_does_nothing(_rig: Rig) -> None:
    for nft in engines():
        nft.run(TEXTS["allow"])
        before = nft.query("list table inet stockade")
        for broken in (
            "add rule inet stockade output accept\nadd rule inet stockade nowhere accept\n",
            "add rule inet stockade output accept\nthis is no command\n",
            "add element inet stockade named4_tcp_1_1 { 192.0.2.1 }\n",
        ):
            assert_fails(lambda nft=nft, broken=broken: nft.run(broken), "run packet rules: ")
        assert nft.query("list table inet stockade") == before
        nft.verify("allow")
        nft.run("delete table inet stockade\n")


def scenario_without_power_over_the_namespace_nothing_is_loaded(rig: Rig) -> None:
    """As the program has it: in the network namespace, below a user namespace of its own."""
    import rulesrig

    nft = open_nft(None, locate_binding())
    nft.run(TEXTS["allow"])
    argv = [str(PROGRAM), "flush", "ruleset"]
    below = subprocess.run(["unshare", "-U", "-r", *argv], capture_output=True, text=True)
    assert below.returncode != 0
    assert "not permitted" in below.stderr
    nft.verify("allow")
    rulesrig.set_namespace(rig.box)
    subprocess.run(argv, check=True)
    assert_fails(lambda: nft.verify("allow"), "read packet rules")


def assert_fails(act: Callable[[], object], words: str) -> None:
    with pytest.raises(LeaseFailed) as caught:
        act()
    assert words in caught.value.message
    assert caught.value.part == "nft"


@pytest.mark.kernel
@pytest.mark.parametrize("name", sorted(each[9:] for each in globals() if each.startswith("scenario_")))
def test_scenario(name: str) -> None:
    assert "done" in run_scenario(__file__, name)


@pytest.mark.kernel
def test_the_holder_can_load_rules_with_nothing_but_the_binding() -> None:
    """Isolated, without site-packages."""
    root = Path(__file__).resolve().parent.parent.parent
    program = (
        f"import sys; sys.path.insert(0, {str(root)!r})\n"
        "from stockade.netns.nft import open_nft\n"
        "nft = open_nft(None, sys.argv[1]); nft.run(sys.argv[2]); nft.verify('allow'); print('loaded', 're' in sys.modules)\n"
        "import nftables; print(nftables.json.dumps([1]), 're' in sys.modules)"
    )
    site = locate_binding()
    assert site is not None
    inside = [sys.executable, "-I", "-S", "-c", program, site, TEXTS["allow"]]
    done = subprocess.run(["unshare", "-Urn", *inside], capture_output=True, text=True)
    assert done.stdout == "loaded False\n[1] True\n", done.stderr


# --- without it ---------------------------------------------------------------------------------------------------


def test_the_binding_is_found() -> None:
    site = locate_binding()
    assert site is not None
    assert Path(site, "nftables.py").is_file()


def without_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BINDING", "nftables_that_is_not_there")


def test_neither_library_nor_program_is_a_failed_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    without_binding(monkeypatch)
    assert locate_binding() is None
    with pytest.raises(LeaseFailed, match="neither the nft program nor libnftables") as caught:
        open_nft(None)
    assert caught.value.part == "nft"
    assert caught.value.remedy
    assert isinstance(caught.value, StockadeError)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 1", "nft ended with 1"),
        ("echo 'Error: no such thing' >&2; exit 1", "Error: no such thing"),
        ("printf 'Error: \\033[31mred\\n' >&2; exit 3", "Error: ?[31mred"),
    ],
)
def test_a_program_that_fails_is_a_failed_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    without_binding(monkeypatch)
    program = tmp_path / "nft"
    program.write_text(f"#!/bin/sh\ncat > /dev/null\n{script}\n")
    program.chmod(stat.S_IRWXU)
    with pytest.raises(LeaseFailed) as caught:
        open_nft(str(program)).run(TEXTS["allow"])
    assert words in caught.value.message


def test_a_program_that_does_nothing_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_binding(monkeypatch)
    program = tmp_path / "nft"
    program.write_text("#!/bin/sh\ncat > /dev/null\n")
    program.chmod(stat.S_IRWXU)
    nft = open_nft(str(program))
    nft.run(TEXTS["allow"])
    with pytest.raises(
        LeaseFailed, match=r"chain forward: loaded 0 rules \(type filter hook forward.*found nothing"
    ):
        nft.verify("allow")


def test_a_program_that_is_gone_is_a_failed_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_binding(monkeypatch)
    with pytest.raises(LeaseFailed, match="No such file"):
        open_nft(str(tmp_path / "nft")).run(TEXTS["allow"])


DOCUMENTS = [
    "{}", " [1, -2.5e3, true, null] ", '{"a": {"b": ["\\u00e9", "x\\n"]}}', "\n{}\n", "1", '"text"', "NaN",
    "{", "[1,]", "{} {}", "{'a': 1}", '{"a" 1}', '"\n"', "", "  ", "nul", '{"a": 1}x', "\ufeff{}",
]  # fmt: skip


@pytest.mark.parametrize("text", DOCUMENTS)
def test_json_is_read_as_the_library_reads_it(text: str) -> None:
    try:
        wanted = json.loads(text)
    except ValueError:
        with pytest.raises(ValueError):  # noqa: PT011
            read_json(text)
    else:
        assert repr(read_json(text)) == repr(wanted)


@pytest.mark.parametrize("output", ["{", "[1]", "no"])
def test_an_answer_that_is_no_document_is_refused(output: str) -> None:
    with pytest.raises(LeaseFailed, match="could not read packet rules"):
        Nft(Fake((0, output, ""))).query("list table inet stockade")


def test_nothing_loaded_is_never_verified() -> None:
    for kind in (*TEXTS, "none"):
        with pytest.raises(LeaseFailed, match="no rules were loaded that drop by default on output"):
            Nft(Fake((0, '{"nftables": []}', ""))).verify(kind)


@pytest.mark.parametrize("kind", TEXTS)
def test_a_policy_that_accepts_is_refused_even_if_it_was_meant(kind: str) -> None:
    for hook in ("output", "input", "forward"):
        line = f"type filter hook {hook} priority filter; policy "
        loaded = shape(TEXTS[kind].replace(f"{line}drop;", f"{line}accept;"))
        assert f"drop by default on {hook}" in mismatch(kind, loaded, loaded)


def test_chains_are_read_from_the_document() -> None:
    document = {
        "nftables": [
            {"chain": {"name": "a"}},
            {"chain": {"name": "b", "type": "filter", "hook": "output", "prio": 0, "policy": "drop"}},
            {"rule": {"chain": "b", "expr": []}},
        ]
    }
    assert found_chains(document) == {"a": ("", 0), "b": ("type filter hook output priority 0; policy drop;", 1)}


@pytest.mark.parametrize(
    ("messages", "line"),
    [
        ("", ""),
        ("\n/dev/stdin:1:1-4: Error: syntax error\nthis is\n^^^^\n", "/dev/stdin:1:1-4: Error: syntax error"),
        ("a\x1b[2Jb", "a?[2Jb"),
        ("x" * 1000, "x" * 300),
    ],
)
def test_a_message_is_one_printable_line(messages: str, line: str) -> None:
    assert first_message(messages) == line


if __name__ == "__main__":
    import rulesrig

    rulesrig.main(dict(globals()))
