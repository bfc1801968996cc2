"""TLS for every port: contexts made of PEM files, replaced when the files are read again.

    TlsFiles --> ServerTls.context --> each new connection takes the one of that moment
                     ^-- reload

A context is never changed: connections that have one keep it, with its certificate.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

from shoal.errors import InvalidArgument

# Forward secrecy and authenticated encryption only; those of TLS 1.3 are always so.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


class PemFile(NamedTuple):
    """A file, and the option that names it."""

    flag: str
    path: str


class PemTexts(NamedTuple):
    """The contents of the files."""

    certificate: bytes
    key: bytes
    authorities: bytes | None


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of one port. Clients need a certificate if `clients_certified`."""

    certificate: PemFile
    key: PemFile
    authorities: PemFile | None = None  # whose certificates clients may have
    clients_certified: bool = False

    @property
    def paths(self) -> list[str]:
        """All of them, each once."""
        files = [self.certificate, self.key, *filter(None, [self.authorities])]
        return list(dict.fromkeys(file.path for file in files))

    def read(self) -> PemTexts:
        """Their contents. Raises InvalidArgument for a file that cannot be what it should be."""
        key = _read(self.key, b"PRIVATE KEY-----", "private key")
        if b"BEGIN ENCRYPTED PRIVATE KEY" in key or b"Proc-Type: 4,ENCRYPTED" in key:
            _refuse_passphrase(self.key)
        return PemTexts(
            _read(self.certificate, b"-----BEGIN CERTIFICATE-----", "certificate"),
            key,
            _read(self.authorities, b"-----BEGIN CERTIFICATE-----", "certificate")
            if self.authorities is not None
            else None,
        )

    def context(self, protocol: str) -> ssl.SSLContext:
        """A context that offers `protocol` ("http/1.1" or "h2"). Raises InvalidArgument."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(_CIPHERS)
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        context.set_alpn_protocols([protocol])
        try:
            # Without a function, OpenSSL would ask for a passphrase at the terminal.
            context.load_cert_chain(
                self.certificate.path, self.key.path, lambda: _refuse_passphrase(self.key)
            )
        except (ssl.SSLError, OSError) as error:
            flags = f"{self.certificate.flag} and {self.key.flag}"
            raise InvalidArgument(f"the files of {flags} do not go together: {error}") from None
        if self.authorities is not None:
            try:
                context.load_verify_locations(self.authorities.path)
            except (ssl.SSLError, OSError) as error:
                flag, path = self.authorities
                raise InvalidArgument(f"{flag}={path} cannot be used: {error}") from None
        if self.clients_certified:
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class ServerTls:
    """The TLS settings of a port, as of now."""

    def __init__(self, files: TlsFiles, protocol: str) -> None:
        """Reads the files. Raises InvalidArgument."""
        self.files = files
        self._protocol = protocol
        self.texts, self.context = files.read(), files.context(protocol)

    def reload(self) -> None:
        """Read the files again, on any thread; new connections use them.

        Raises InvalidArgument if they cannot be used; nothing has changed then.
        """
        texts, context = self.files.read(), self.files.context(self._protocol)
        self.texts, self.context = texts, context


def _read(file: PemFile, begins: bytes, kind: str) -> bytes:
    flag, path = file
    if not path:
        raise InvalidArgument(f"TLS needs {flag}: name a PEM file with the {kind}")
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{flag}={path} cannot be read: {error.strerror}") from None
    if begins not in text:
        raise InvalidArgument(f"{flag}={path} has no {kind} in PEM format")
    return text


def _refuse_passphrase(file: PemFile) -> NoReturn:
    raise InvalidArgument(
        f"{file.flag}={file.path} is protected by a passphrase, which the server cannot ask for; "
        f"remove it with 'openssl pkey -in <file> -out <new file>'"
    )
