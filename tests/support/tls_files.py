"""An authority and a certificate that it signed, as PEM files."""

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey


def write_tls_files(folder: Path, *, passphrase: bytes | None = None, days: int = 1) -> dict[str, str]:
    """Write ca.pem, cert.pem and key.pem; the settings of `cluster.security` that name them."""
    folder.mkdir(parents=True, exist_ok=True)
    authority, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    lock = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    contents = {
        "ca_file": _certificate("authority", authority, "authority", authority, 1, is_authority=True).public_bytes(pem),
        "cert": _certificate("learner", own, "authority", authority, days).public_bytes(pem),
        "key": own.private_bytes(pem, serialization.PrivateFormat.PKCS8, lock),
    }
    for name, data in contents.items():
        (folder / f"{name}.pem").write_bytes(data)
    return {name: str(folder / f"{name}.pem") for name in contents}


def _certificate(
    name: str, key: Key, issuer: str, issuer_key: Key, days: int, *, is_authority: bool = False
) -> x509.Certificate:
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - datetime.timedelta(days=2))
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .sign(issuer_key, hashes.SHA256())
    )
