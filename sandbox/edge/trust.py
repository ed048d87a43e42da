"""What the box trusts: the host's bundle of certificates with the authority of this run added, and who reads it.

Reads the host's bundle; makes values (mounts, variables, a Java store) out of it and writes nothing.
"""

from __future__ import annotations

import os

from stockade.policies.errors import SandboxUnavailable
from stockade.policies.record import Record
from stockade.sandbox.mounts import DATA, Mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # Fedora, RHEL: where the others lead
    "/etc/pki/tls/cert.pem",
    "/etc/ca-certificates/extracted/tls-ca-bundle.pem",  # Arch: where the others lead
    "/etc/ssl/ca-bundle.pem",  # openSUSE
    "/var/lib/ca-certificates/ca-bundle.pem",
    "/etc/ssl/cert.pem",  # Alpine, Arch
)
"""Where distributions keep the certificates that programs trust."""
OURS = "/run/stockade/ca-bundle.pem"
JAVA = "/run/stockade/ca-bundle.jks"
VARIABLES = (
    "SSL_CERT_FILE",  # OpenSSL, Python's ssl, Go, Rust
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "DENO_CERT",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
)
JAVA_OPTIONS = "JAVA_TOOL_OPTIONS"
JAVA_FLAGS = " ".join(
    f"-Djavax.net.ssl.trustStore{name}={value}"
    for name, value in (("", JAVA), ("Type", "JKS"), ("Password", "changeit"))
)
LARGEST = 8 << 20


class Trust(Record):
    """What is to be mounted and set for a box to trust one more authority."""

    mounts: tuple[Mount, ...]
    variables: tuple[tuple[str, str], ...]


def host_bundle(environ: Mapping[str, str]) -> str:
    """Path of the bundle that the caller's programs trust. Raises SandboxUnavailable where there is none."""
    places = (environ.get("SSL_CERT_FILE", ""), *BUNDLES)
    found = next((path for path in places if path and os.path.isfile(path) and os.access(path, os.R_OK)), None)
    if found is None:
        raise SandboxUnavailable(
            "could not use network.edge: this host has no bundle of certificates to check servers against",
            mode="auto",
            missing=("edge",),
            remedy="Install the package ca-certificates, or name a bundle in SSL_CERT_FILE.",
        )
    return found


def extend(bundle: str, authority: str, *, view: Callable[[str], str | None], java: bool) -> Trust:
    """``bundle``: path of the host's; ``authority``: one certificate (PEM). ``view`` tells what of the host is seen inside.

    A place of the system that is seen inside gets the longer bundle too: some programs read no variable.
    """
    with open(bundle, "rb") as file:
        data = file.read(LARGEST).rstrip() + b"\n" + authority.encode()
    seen = {os.path.realpath(path) for path in BUNDLES if view(path) is not None and os.path.isfile(path)}
    inside = [path for path in sorted(seen) if view(path) is not None]
    mounts = [
        Mount(DATA, path, reason="with the authority of this run", data=data, perms=0o444)
        for path in (OURS, *inside)
    ]
    variables = [(name, OURS) for name in VARIABLES]
    if java:
        store = java_store(data)
        mounts.append(Mount(DATA, JAVA, reason="with the authority of this run", data=store, perms=0o444))
        variables.append((JAVA_OPTIONS, JAVA_FLAGS))
    return Trust(tuple(mounts), tuple(variables))


def java_store(bundle: bytes) -> bytes:
    """The certificates of a PEM bundle as a Java key store (JKS, version 2) with Java's usual password.

    The format: java.base/sun/security/provider/JavaKeyStore; the digest is no secret.
    """
    import hashlib

    certificates = list(dict.fromkeys(der_of(bundle)))
    parts = [0xFEEDFEED.to_bytes(4, "big"), (2).to_bytes(4, "big"), len(certificates).to_bytes(4, "big")]
    for number, der in enumerate(certificates):
        alias, kind = f"stockade-{number}".encode(), b"X.509"
        parts += [(2).to_bytes(4, "big"), len(alias).to_bytes(2, "big"), alias, bytes(8)]
        parts += [len(kind).to_bytes(2, "big"), kind, len(der).to_bytes(4, "big"), der]
    body = b"".join(parts)
    return body + hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()  # noqa: S324


def der_of(bundle: bytes) -> list[bytes]:
    import base64

    found = []
    for part in bundle.split(b"-----BEGIN CERTIFICATE-----")[1:]:
        text = part.partition(b"-----END CERTIFICATE-----")[0]
        found.append(base64.b64decode(b"".join(text.split())))
    return found
