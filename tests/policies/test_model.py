"""Policy texts: what is accepted, and that every fault names the file, the key and what is allowed."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.policies.edge import read_edge
from stockade.policies.errors import PolicyError
from stockade.policies.fields import ATTRIBUTES, PARSERS
from stockade.policies.model import (
    Environment,
    Filesystem,
    Limits,
    Network,
    Policy,
    checked,
    parse_policy,
    parsed,
    stated,
)

DOCUMENT = """
extends = "hook"
mode = "auto"
[filesystem]
root = "minimal"
workspace = "overlay"
write = ["out", "~/.cache/x", "/var/x"]
read = ["~/.config/git"]
hide = ["**/.env*", "secrets/[ab]?"]
protect = [".git/hooks"]
home = "~/sandbox-home"
toolchains = "none"
[environment]
pass = ["LANG", "LC_*"]
set = { CI = "1", "A B" = "" }
[network]
egress = "allow"
allow = ["Registry.npmjs.org", "udp://time.example:123", { host = "A.example:80", check = "name" }, { host = "b.example" }]
private = true
check = "auto"
mask_queries = true
connector = "pasta"
[[network.edge]]
host = "api.example"
[limits]
timeout = "10s"
cpu = "1500ms"
memory = "2G"
processes = 256
file_size = 1024
tmp = "512M"
output = "1M"
open_files = "none"
[syscalls]
filter = "strict"
[process]
user = "unprivileged"
"""


def test_every_key_is_read() -> None:
    policy = parse_policy(DOCUMENT, "p.toml")
    assert policy.extends == "hook"
    values = parsed(policy, "p.toml")
    assert set(values) == set(ATTRIBUTES)
    names = ("a.example:80 check=name", "b.example")
    assert values["network.allow"] == ("registry.npmjs.org", "udp://time.example:123", *names)
    assert (values["network.check"], values["network.mask_queries"], len(values["network.edge"])) == (
        "auto",
        True,
        1,
    )
    assert (values["limits.timeout"], values["limits.cpu"]) == (10.0, 1.5)
    assert values["limits.open_files"] is None
    assert values["environment.set"] == {"CI": "1", "A B": ""}


def test_only_what_is_said_is_carried() -> None:
    policy = parse_policy(b'[network]\negress = "none"\n', "p.toml")
    assert stated(policy) == {"network.egress": "none"}
    assert policy.filesystem is msgspec.UNSET


def test_model_and_tables_agree() -> None:
    assert set(PARSERS) == set(ATTRIBUTES)
    keys = [
        key
        for name in ("filesystem", "environment", "network", "limits", "syscalls", "process")
        for key in _keys(name)
    ]
    assert [*keys] == [key for key in ATTRIBUTES if "." in key]


def _keys(section: str) -> list[str]:
    import stockade.policies.model as model

    struct = getattr(model, section.capitalize())
    return [f"{section}.{field}" for field in struct.__struct_encode_fields__]


def test_frozen() -> None:
    policy = parse_policy(DOCUMENT, "p.toml")
    with pytest.raises(AttributeError):
        policy.mode = "off"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        ("moed = 'auto'", "moed", "did you mean mode?"),
        ("timeout = '10s'", "timeout", "did you mean limits.timeout?"),
        ("[filesystem]\nroots = 'host'", "filesystem.roots", "filesystem.root"),
        ("[network]\nzzz = 1", "network.zzz", "network.egress"),
        ("[zzz]\na = 1", "zzz", "known here"),
        ("filesystem = 'host'", "filesystem", "[filesystem]"),
        ("[[filesystem]]\nroot = 'host'", "filesystem", "[filesystem]"),
        ("extends = 3", "extends", "preset"),
        ("mode = 'on'", "mode", '"auto", "strict" or "off"'),
        ("mode = true", "mode", '"auto"'),
        ("[mode]", "mode", '"auto"'),
        ("[filesystem]\nroot = 'guest'", "filesystem.root", '"host" or "minimal"'),
        ("[filesystem]\nworkspace = 'rw'", "filesystem.workspace", '"read-write"'),
        ("[filesystem]\nwrite = 'out'", "filesystem.write", "list"),
        ("[filesystem]\nwrite = ['out', 3]", "filesystem.write", "list"),
        ("[filesystem]\nwrite = ['/']", "filesystem.write", "path"),
        ("[filesystem]\nwrite = ['//./']", "filesystem.write", "path"),
        ("[filesystem]\nwrite = ['']", "filesystem.write", "path"),
        ("[filesystem]\nwrite = ['a/../b']", "filesystem.write", "path"),
        ("[filesystem]\nread = ['../b']", "filesystem.read", "path"),
        ("[filesystem]\nread = ['a\\u0000']".replace("'", '"'), "filesystem.read", "path"),
        ("[filesystem]\nwrite = ['out/*']", "filesystem.write", "wildcards"),
        ("[filesystem]\nwrite = ['~other/x']", "filesystem.write", "path"),
        ("[filesystem]\nhide = ['../x']", "filesystem.hide", "glob"),
        ("[filesystem]\nhide = ['/']", "filesystem.hide", "glob"),
        ("[filesystem]\nprotect = ['..']", "filesystem.protect", "path"),
        ("[filesystem]\nhome = '/'", "filesystem.home", '"empty"'),
        ("[filesystem]\nhome = ''", "filesystem.home", '"empty"'),
        ("[filesystem]\ntoolchains = 'all'", "filesystem.toolchains", '"auto" or "none"'),
        ("[environment]\npass = ['*']", "environment.pass", "prefix"),
        ("[environment]\npass = ['']", "environment.pass", "prefix"),
        ("[environment]\npass = ['A*B']", "environment.pass", "prefix"),
        ("[environment]\npass = ['A=B']", "environment.pass", "prefix"),
        ("[environment.set]\n'A=B' = 'x'", "environment.set", "table"),
        ("[environment.set]\n'' = 'x'", "environment.set", "table"),
        ("[environment.set]\nA = 1", "environment.set", "table"),
        ('[environment.set]\nA = "x\\u0000"', "environment.set", "table"),
        ("[environment]\nset = ['A']", "environment.set", "table"),
        ("[network]\negress = 'all'", "network.egress", '"none", "record", "allow" or "open"'),
        ("[network]\nprivate = 'yes'", "network.private", "true or false"),
        ("[network]\nallow = ['https://a/b']", "network.allow", "*.example.com"),
        ("[network]\nallow = ['169.254.169.254']", "network.allow", "write a name"),
        ("[network]\nallow = [{ host = 'a.example', chek = 'name' }]", "network.allow", "check ="),
        ("[network]\nallow = [{ check = 'name' }]", "network.allow", "host ="),
        (
            "[network]\nallow = [{ host = 'a.example', check = 'maybe' }]",
            "network.allow",
            '"address", "auto" or "name"',
        ),
        (
            "[network]\nallow = [{ host = 'a.example', check = true }]",
            "network.allow",
            '"address", "auto" or "name"',
        ),
        ("[network]\nallow = [{ host = 'a.example check=name', check = 'name' }]", "network.allow", "host ="),
        ("[network]\nallow = [{ host = '192.0.2.1', check = 'name' }]", "network.allow", "write a name"),
        ("[network]\nallow = [{ host = 3 }]", "network.allow", "host ="),
        ("[network]\nallow = [[]]", "network.allow", "list"),
        ("[network]\ncheck = 'names'", "network.check", '"auto", "name" or "address"'),
        ("[network]\ncheck = true", "network.check", '"auto", "name" or "address"'),
        ("[network]\nmask_queries = 'yes'", "network.mask_queries", "true or false"),
        ("[network]\nedge = 'api.example'", "network.edge", "[[network.edge]]"),
        ("[network]\nedge = ['api.example']", "network.edge", "[[network.edge]]"),
        ("[network.edge]\nhost = 'api.example'", "network.edge", "[[network.edge]]"),
        ("[limits]\ntimeout = 0", "limits.timeout", '"10s"'),
        ("[limits]\ntimeout = -1", "limits.timeout", '"10s"'),
        ("[limits]\ntimeout = nan", "limits.timeout", '"10s"'),
        ("[limits]\ntimeout = inf", "limits.timeout", '"10s"'),
        ("[limits]\ntimeout = 'soon'", "limits.timeout", '"10s"'),
        ("[limits]\ntimeout = true", "limits.timeout", '"10s"'),
        ("[limits]\ntimeout = 1979-05-27", "limits.timeout", '"10s"'),
        ("[limits]\nmemory = 1.5", "limits.memory", '"64K"'),
        ("[limits]\nmemory = '2GB'", "limits.memory", '"64K"'),
        ("[limits]\nmemory = 99999999999999999999999", "limits.memory", '"64K"'),
        ("[limits]\nprocesses = '256'", "limits.processes", "whole number"),
        ("[limits]\nprocesses = 0", "limits.processes", "whole number"),
        ("[syscalls]\nfilter = 'none'", "syscalls.filter", '"default", "strict" or "off"'),
        ("[process]\nuser = 'root'", "process.user", '"auto", "caller" or "unprivileged"'),
    ],
)
def test_fault_names_file_key_and_remedy(text: str, key: str, says: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, "some/p.toml")
    assert "some/p.toml" in caught.value.message
    assert key in caught.value.message
    assert says in caught.value.remedy
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mode = ", "line 1, column 8"),
        ('mode = "auto"\nmode = "off"', "line 2"),
        ("a = [" + "[" * 5000, "deep"),
        ("\x00", "TOML"),
        (b"mode = '\xff'", "UTF-8"),
        ("mode = '\ud800'", "UTF-8"),
        ("", "says nothing"),
        (b"", "says nothing"),
        ("# nothing\n", "says nothing"),
        ("[filesystem]\n", "says nothing"),
        ("[limits]\ntimeout = " + "9" * 5000, "TOML"),
        ('mode = "off"\n[network]\negress = "open"', "contradict"),
        ('[network]\ncheck = "name"\nallow = ["udp://a.example"]', "network.check"),
        ('[network]\negress = "record"\nallow = ["a.example"]', "network.allow"),
    ],
)
def test_unreadable(text: str | bytes, says: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, "p.toml")
    assert "p.toml" in caught.value.message
    assert says in caught.value.message


def test_only_extends_says_something() -> None:
    assert parse_policy("extends = 'hook'", "p.toml").extends == "hook"


@pytest.mark.parametrize(
    "policy",
    [
        Policy(filesystem=Filesystem(root="guest")),  # type: ignore[arg-type]
        Policy(filesystem=Filesystem(write=("/",))),
        Policy(limits=Limits(timeout=0)),
        Policy(network=Network(allow=("*",))),
        Policy(environment=Environment(set={"A": object()})),  # type: ignore[dict-item]
        Policy(),
    ],
)
def test_a_policy_made_in_python_is_judged_too(policy: Policy) -> None:
    with pytest.raises(PolicyError, match="policy of the call"):
        checked(policy, "policy of the call")


def test_a_good_policy_made_in_python() -> None:
    policy = Policy(mode="strict", environment=Environment(pass_=("LANG",)))
    assert checked(policy, "here") == policy


def test_a_good_network_made_in_python() -> None:
    edge = {"host": "api.example", "methods": ("GET",), "headers": {"Authorization": "env:API_TOKEN"}}
    network = Network(egress="allow", allow=("a.example", {"host": "b.example", "check": "name"}), edge=(edge,))
    values = parsed(checked(Policy(network=network), "here"), "here")
    assert values["network.allow"] == ("a.example", "b.example check=name")
    assert [read_edge(line).host.text for line in values["network.edge"]] == ["api.example"]
    with pytest.raises(PolicyError, match=r"network\.edge\[1\]\.host of here: it is missing"):
        checked(Policy(network=Network(edge=({},))), "here")


def policy_or_fault(text: str | bytes) -> Policy | PolicyError:
    try:
        return parse_policy(text, "p.toml")
    except PolicyError as error:
        return error


VALUES = st.one_of(
    st.text().map(repr),
    st.sampled_from(
        [
            '"auto"',
            "'off'",
            "true",
            "1",
            "-1",
            "nan",
            "1979-05-27T07:32:00Z",
            "[]",
            "{}",
            "['a']",
            "[[",
            "'/'",
            "[1]",
        ]
    ),
    st.integers().map(str),
    st.floats().map(str),
)
LINES = st.one_of(
    st.tuples(st.sampled_from([key.rpartition(".")[2] for key in ATTRIBUTES]) | st.text(), VALUES).map(" = ".join),
    st.tuples(st.sampled_from(list(ATTRIBUTES)), VALUES).map(" = ".join),
    st.sampled_from(
        ["[filesystem]", "[environment]", "[network]", "[limits]", "[environment.set]", "[[limits]]", "#"]
    ),
    st.text(),
)


@given(st.lists(LINES, max_size=6).map("\n".join) | st.text() | st.binary())
def test_only_policy_errors(text: str | bytes) -> None:
    policy = policy_or_fault(text)
    if isinstance(policy, PolicyError):
        assert policy.message.isprintable()
        return
    assert checked(policy, "p.toml") == policy
