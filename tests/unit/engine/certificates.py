"""A certificate for TLS servers of tests."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path
from typing import TypeAlias

import pytest

Certificate: TypeAlias = tuple[Path, Path]
"""The files of the certificate and of its key."""


def make_certificate(folder: Path) -> Certificate:
    """A certificate for 127.0.0.1 and its key, made here."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl program to make a certificate")
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


def server_context(certificate: Certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


def trusting_context(certificate: Certificate) -> ssl.SSLContext:
    """A client's, that takes this certificate."""
    return ssl.create_default_context(cafile=str(certificate[0]))
