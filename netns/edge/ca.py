"""The certificate authority of one session, and the TLS contexts (proxy only: needs cryptography and pyOpenSSL).

Keys are made here and never leave the memory of the process. The authority is good for the hosts of its session
alone, by name constraints, and for a day.
"""

from __future__ import annotations

import datetime
import ipaddress
import re

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from OpenSSL import SSL, crypto

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BEFORE, AFTER = datetime.timedelta(hours=1), datetime.timedelta(hours=24)
NAME = "Stockade edge, one run"
MOST_LEAVES = 256
LONGEST_COMMON_NAME = 63
PROTOCOLS = (b"h2", b"http/1.1")
BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class Authority:
    """Signs for ``names`` and what is below them. The certificate is ``pem``."""

    def __init__(self, names: Iterable[str]) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._cert = _sign_authority(self._key, sorted(set(names)))
        self._contexts: dict[str, SSL.Context] = {}
        self.pem = self._cert.public_bytes(serialization.Encoding.PEM).decode("ascii")

    def context(self, host: str) -> SSL.Context:
        """What answers as ``host``. Made once a host."""
        found = self._contexts.get(host)
        if found is None:
            if len(self._contexts) >= MOST_LEAVES:
                del self._contexts[next(iter(self._contexts))]
            found = self._contexts[host] = self._make_context(host)
        return found

    def leaf(self, host: str) -> x509.Certificate:
        """A certificate for ``host``, whether the constraints allow it or not."""
        subject = [x509.NameAttribute(NameOID.COMMON_NAME, host)] if len(host) <= LONGEST_COMMON_NAME else []
        builder = _begun(x509.Name(subject), self._cert.subject, self._leaf_key.public_key())
        names = x509.SubjectAlternativeName([x509.DNSName(host)])
        builder = builder.add_extension(names, critical=not subject)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return builder.add_extension(identifier, critical=False).sign(self._key, hashes.SHA256())

    def _make_context(self, host: str) -> SSL.Context:
        context = SSL.Context(SSL.TLS_SERVER_METHOD)
        context.set_min_proto_version(SSL.TLS1_2_VERSION)
        context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION)
        context.use_certificate(crypto.X509.from_cryptography(self.leaf(host)))
        context.use_privatekey(crypto.PKey.from_cryptography_key(self._leaf_key))
        context.set_alpn_select_callback(_select_protocol)
        return context


def client_context(bundle: bytes) -> SSL.Context:
    """What verifies servers against the certificates (PEM) of ``bundle``; a ``ValueError`` if there are none."""
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION)
    context.set_verify(SSL.VERIFY_PEER)
    store = context.get_cert_store()
    assert store is not None
    added = 0
    for block in BLOCK.findall(bundle):
        try:
            store.add_cert(crypto.load_certificate(crypto.FILETYPE_PEM, block))
        except crypto.Error:
            continue  # one that OpenSSL can't read verifies nobody
        added += 1
    if not added:
        raise ValueError("the bundle of trusted certificates holds none")
    return context


def dial(context: SSL.Context, host: str, protocols: Sequence[bytes]) -> SSL.Connection:
    """A connection to ``host`` that has yet to be carried: its name is asked for and verified."""
    connection = SSL.Connection(context)
    name = host.encode("ascii")
    connection.set_tlsext_host_name(name)
    library = SSL._lib
    parameters = library.SSL_get0_param(connection._ssl)
    flags = library.X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS
    flags |= getattr(library, "X509_CHECK_FLAG_NEVER_CHECK_SUBJECT", 0)
    library.X509_VERIFY_PARAM_set_hostflags(parameters, flags)
    if library.X509_VERIFY_PARAM_set1_host(parameters, name, len(name)) != 1:
        raise ValueError("the name can't be verified")
    if protocols:
        connection.set_alpn_protos(list(protocols))
    connection.set_connect_state()
    return connection


def _sign_authority(key: ec.EllipticCurvePrivateKey, names: Sequence[str]) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    everywhere = [x509.IPAddress(ipaddress.ip_network(each)) for each in ("0.0.0.0/0", "::/0")]
    limits = x509.NameConstraints([x509.DNSName(name) for name in names], everywhere)
    builder = _begun(subject, subject, key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    builder = builder.add_extension(limits, critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return builder.sign(key, hashes.SHA256())


def _begun(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - BEFORE).not_valid_after(now + AFTER)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _select_protocol(_connection: SSL.Connection, offered: list[bytes]) -> object:
    """The first that the program offers and the proxy speaks."""
    return next((each for each in offered if each in PROTOCOLS), SSL.NO_OVERLAPPING_PROTOCOLS)
