"""Files of TLS: what is accepted, what is refused and how, what stays when a new file is broken."""

from __future__ import annotations

import ssl

import pytest

from shoal.errors import InvalidArgument
from shoal.frontends.tls import PemFile, ServerTls, TlsFiles
from tests.support.tls import issue, server_tls


@pytest.fixture
def folder(tmp_path):
    issue(tmp_path, 1)
    return tmp_path


def files(folder, **changes):
    return TlsFiles(
        PemFile("--cert", str(folder / changes.get("cert", "cert.pem"))),
        PemFile("--key", str(folder / changes.get("key", "key.pem"))),
        PemFile("--ca", str(folder / changes["ca"])) if "ca" in changes else None,
        clients_certified="ca" in changes,
    )


def test_what_a_context_allows(certificates):
    context = server_tls(certificates, clients=True).context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.verify_mode is ssl.CERT_REQUIRED
    names = [cipher["name"] for cipher in context.get_ciphers()]
    assert names
    assert all("GCM" in name or "CHACHA20" in name for name in names)
    assert all(name.startswith(("TLS_", "ECDHE-")) for name in names)
    assert server_tls(certificates).context.verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"cert": "nowhere"}, "--cert={}/nowhere cannot be read: No such file or directory"),
        ({"key": "."}, "--key={} cannot be read: Is a directory"),
        ({"cert": "key.pem"}, "--cert={}/key.pem has no certificate in PEM format"),
        ({"key": "cert.pem"}, "--key={}/cert.pem has no private key in PEM format"),
        ({"ca": "key.pem"}, "--ca={}/key.pem has no certificate in PEM format"),
        ({"ca": "broken.pem"}, "--ca={}/broken.pem cannot be used: "),
        ({"cert": "broken.pem"}, "the files of --cert and --key do not go together: "),
        ({"key": "other/key.pem"}, "the files of --cert and --key do not go together: "),
        (
            {"key": "locked/key.pem"},
            "--key={}/locked/key.pem is protected by a passphrase, which the server cannot ask for; remove it with 'openssl pkey -in <file> -out <new file>'",
        ),
    ],
)
def test_files_that_cannot_be_used(folder, change, text):
    for name in ("other", "locked"):
        (folder / name).mkdir()
    issue(folder / "other", 2)
    issue(folder / "locked", 3, passphrase="secret")
    (folder / "broken.pem").write_text(
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    )
    with pytest.raises(InvalidArgument) as caught:
        ServerTls(files(folder, **change), "http/1.1")
    assert caught.value.message.startswith(text.format(folder))


def test_one_file_for_certificate_and_key(folder):
    both = folder / "both.pem"
    both.write_bytes((folder / "key.pem").read_bytes() + (folder / "cert.pem").read_bytes())
    tls = ServerTls(files(folder, cert="both.pem", key="both.pem"), "http/1.1")
    assert tls.files.paths == [str(both)]


def test_broken_new_files_change_nothing(folder):
    tls = ServerTls(files(folder), "http/1.1")
    before = (tls.context, tls.texts)
    (folder / "cert.pem").write_text("nothing")
    with pytest.raises(InvalidArgument):
        tls.reload()
    assert (tls.context, tls.texts) == before
    issue(folder, 2)
    tls.reload()
    assert tls.context is not before[0]
    assert tls.texts != before[1]
