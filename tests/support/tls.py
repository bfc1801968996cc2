"""Certificates made for a test, and the TLS settings of servers that use them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from shoal.frontends.tls import PemFile, ServerTls, TlsFiles


def server_tls(folder: Path, protocol: str = "http/1.1", *, clients: bool = False) -> ServerTls:
    """Those of the fixture `certificates`; with `clients`, clients must have a certificate."""
    return ServerTls(
        TlsFiles(
            PemFile("--cert", str(folder / "own.pem")),
            PemFile("--key", str(folder / "own.key")),
            PemFile("--ca", str(folder / "root.pem")) if clients else None,
            clients_certified=clients,
        ),
        protocol,
    )


def issue(folder: Path, number: int, *, passphrase: str = "") -> None:
    """Write cert.pem and key.pem for localhost, signed by their own key, with this serial number.

    Each is put in its place by a rename, as programs that renew certificates do.
    """
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    words += ["-passout", f"pass:{passphrase}"] if passphrase else ["-nodes"]
    words += ["-subj", "/CN=localhost", "-set_serial", str(number), "-days", "2"]
    words += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    words += ["-addext", "keyUsage=critical,digitalSignature,keyCertSign"]
    words += ["-keyout", "key.new", "-out", "cert.new"]
    subprocess.run(words, cwd=folder, check=True, capture_output=True)
    for name in ("cert", "key"):
        (folder / f"{name}.new").replace(folder / f"{name}.pem")
