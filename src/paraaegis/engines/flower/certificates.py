"""Certificates and node keys for a trial on one machine. For production, use those of your organisation."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from paraaegis.crypto.keys import write_secret

_DAYS = 30


def make_certificates(folder: Path, host: str) -> tuple[Path, Path, Path]:
    """Create an authority and a server certificate for an IP address; return authority, certificate and key files."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority = _certificate("ParaAegis trial authority", authority_key, None, authority_key, host)
    server = _certificate(host, server_key, authority, authority_key, host)
    files = folder / "ca.pem", folder / "server.pem", folder / "server.key"
    files[0].write_bytes(authority.public_bytes(Encoding.PEM))
    files[1].write_bytes(server.public_bytes(Encoding.PEM))
    _write_private(files[2], server_key)
    return files


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey,
    host: str,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if issuer is not None:
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host)), x509.DNSName("localhost")])
        builder = builder.add_extension(names, critical=False).add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
    return builder.sign(issuer_key, hashes.SHA384())


def make_node_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Create the key pair by which Flower authenticates a node; return its private and public key files."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = ec.generate_private_key(ec.SECP384R1())
    private, public = folder / name, folder / f"{name}.pub"
    _write_private(private, key, PrivateFormat.OpenSSH)
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    return private, public


def _write_private(
    path: Path, key: ec.EllipticCurvePrivateKey, kind: PrivateFormat = PrivateFormat.TraditionalOpenSSL
) -> None:
    write_secret(path, key.private_bytes(Encoding.PEM, kind, NoEncryption()))
