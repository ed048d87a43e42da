"""What a box trusts when its run has an edge, and what of the secrets' sources is seen inside."""

from __future__ import annotations

import base64
import hashlib
import os
import ssl
import struct
from pathlib import Path

import pytest

from stockade.policies.errors import RequestError, SandboxUnavailable
from stockade.sandbox.edge import trust
from stockade.sandbox.edge.box import equipped
from stockade.sandbox.edge.values import Values
from stockade.sandbox.mounts import BIND_RO, MASK, Mount
from stockade.sandbox.plan import Plan

SECRET = "s3cr3t-value-of-the-test"
ONE, TWO = (
    ssl.DER_cert_to_PEM_cert(b"0\x03\x02\x01\x01"),
    ssl.DER_cert_to_PEM_cert(b"0\x03\x02\x01\x02"),
)


def bundle(tmp_path: Path) -> str:
    place = tmp_path / "bundle.pem"
    place.write_text(f"# a comment\n{ONE}")
    return str(place)


def plan(**fields: object) -> Plan:
    made: dict[str, object] = {
        "mounts": (Mount(BIND_RO, "/etc", "/etc"), Mount(BIND_RO, "/srv", "/srv")), "cwd": "/", "argv": ("true",),
        "env": (("HOME", "/nowhere"), ("PATH", "/usr/bin")), "stubs": (), "inner_stubs": (), "protected": (),
        "writable": (), "credentials": None, "user": (1, 1), "leased": True, "fresh_proc": True,
        "proc_read_only": False, "no_new_userns": True, "limits": (), "seccomp": "default", "notes": (),
    }  # fmt: skip
    return Plan(**(made | fields))


def test_the_bundle_of_the_caller_comes_first(tmp_path: Path) -> None:
    assert trust.host_bundle({"SSL_CERT_FILE": bundle(tmp_path)}) == bundle(tmp_path)
    assert trust.host_bundle({"SSL_CERT_FILE": "/nowhere"}) == trust.host_bundle({})


def test_a_host_without_a_bundle_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "BUNDLES", ())
    with pytest.raises(SandboxUnavailable) as caught:
        trust.host_bundle({})
    assert "ca-certificates" in caught.value.remedy


def test_the_authority_is_added_wherever_programs_look(tmp_path: Path) -> None:
    here = os.path.realpath(trust.host_bundle({}))
    made = trust.extend(bundle(tmp_path), TWO, view=lambda path: path, java=False)
    assert {trust.OURS, here} <= {mount.dest for mount in made.mounts}
    assert {mount.data for mount in made.mounts} == {f"# a comment\n{ONE}{TWO}".encode()}
    assert dict(made.variables) == dict.fromkeys(trust.VARIABLES, trust.OURS)


def test_a_place_that_is_not_seen_inside_is_left_alone(tmp_path: Path) -> None:
    made = trust.extend(bundle(tmp_path), TWO, view=lambda _path: None, java=False)
    assert [mount.dest for mount in made.mounts] == [trust.OURS]


def test_java_gets_a_store_with_every_certificate(tmp_path: Path) -> None:
    made = trust.extend(bundle(tmp_path), TWO, view=lambda _path: None, java=True)
    store = next(mount.data for mount in made.mounts if mount.dest == trust.JAVA)
    assert struct.unpack(">III", store[:12]) == (0xFEEDFEED, 2, 2)
    assert b"0\x03\x02\x01\x01" in store
    assert b"0\x03\x02\x01\x02" in store
    body, digest = store[:-20], store[-20:]
    assert hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + body).digest() == digest
    assert trust.JAVA in dict(made.variables)[trust.JAVA_OPTIONS]


def test_variables_that_are_set_stay(tmp_path: Path) -> None:
    made = equipped(plan(env=(("PIP_CERT", "/mine"),)), Values((), (), (), ()), bundle(tmp_path), TWO)
    assert dict(made.env)["PIP_CERT"] == "/mine"
    assert dict(made.env)["CURL_CA_BUNDLE"] == trust.OURS


def test_the_file_of_a_secret_is_covered_where_it_is_seen(tmp_path: Path) -> None:
    values = Values((), (SECRET,), ("/srv/token", "/elsewhere/token"), ())
    made = equipped(plan(), values, bundle(tmp_path), TWO)
    assert [mount.dest for mount in made.mounts if mount.op == MASK] == ["/srv/token"]


@pytest.mark.parametrize(
    "fields",
    [
        {"env": (("TOKEN", SECRET),)},
        {"env": (("URL", f"https://x:{SECRET}@host/"),)},
        {"argv": ("curl", "-H", f"Authorization: {SECRET}")},
        {"env": (("AUTH", base64.b64encode(f"user:{SECRET}".encode()).decode()),)},
        {"argv": ("echo", SECRET.encode().hex())},
    ],
)
def test_a_secret_that_would_be_inside_is_refused_and_not_shown(tmp_path: Path, fields: dict[str, object]) -> None:
    with pytest.raises(RequestError) as caught:
        equipped(plan(**fields), Values((), (SECRET,), (), ()), bundle(tmp_path), TWO)
    assert caught.value.message.startswith("could not keep a secret outside")
    assert SECRET not in str(caught.value)
    assert equipped(plan(), Values((), (SECRET,), (), ()), bundle(tmp_path), TWO).argv == ("true",)
