"""TLS of clients: whom they trust, what they show, and what to do about a connection that was not made."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass


@dataclass(frozen=True)
class Tls:
    """Files (PEM) for connections to an https:// address. What is not given is taken from the variables of the command line tools,
    TENURE_CLIENT_CA_FILE, TENURE_CLIENT_CERTIFICATE_FILE and TENURE_CLIENT_KEY_FILE."""

    ca_file: str | None = None
    """Roots that are trusted, in place of those of the system."""
    certificate_file: str | None = None
    """A certificate that is shown to a server that asks for one."""
    key_file: str | None = None
    """The private key of the certificate."""

    def context(self) -> ssl.SSLContext:
        """What connections are made with. Raises ValueError for files that cannot be used."""
        ca = self.ca_file or os.environ.get("TENURE_CLIENT_CA_FILE") or None
        certificate = self.certificate_file or os.environ.get("TENURE_CLIENT_CERTIFICATE_FILE") or None
        key = self.key_file or os.environ.get("TENURE_CLIENT_KEY_FILE") or None
        if (certificate is None) != (key is None):
            raise ValueError("certificate_file and key_file belong together: give both, or none")
        try:
            context = ssl.create_default_context(cafile=ca)
        except (OSError, ssl.SSLError) as bad:
            raise ValueError(f"ca_file={ca!r} cannot be used: {bad}") from bad
        if certificate is not None:
            try:
                context.load_cert_chain(certificate, key)
            except (OSError, ssl.SSLError) as bad:
                raise ValueError(f"certificate_file={certificate!r} and key_file={key!r} cannot be used: {bad}") from bad
        return context


_EXPIRED, _NOT_YET, _OTHER_NAME, _OTHER_ADDRESS = 10, 9, 62, 64
"""Reasons of OpenSSL (X509_V_ERR_…); all others that occur are about the authority."""


def advice(lost: BaseException) -> str:
    """What to do about an error of TLS, as the end of a sentence; empty for other errors."""
    if isinstance(lost, ssl.SSLCertVerificationError):
        if lost.verify_code == _EXPIRED:
            return (
                "; the server's certificate has expired: write a new one to its server.tls_certificate_file and server.tls_key_file, "
                "which the server reads without a restart"
            )
        if lost.verify_code == _NOT_YET:
            return "; the server's certificate is not valid yet: compare the clocks of both machines"
        if lost.verify_code in (_OTHER_NAME, _OTHER_ADDRESS):
            return "; call the server by a name that is in its certificate, or make a certificate for this name too"
        return (
            "; the server's certificate is signed by an authority that this client does not trust: name the file with the authority's "
            "certificate, Tls(ca_file=…) or TENURE_CLIENT_CA_FILE"
        )
    if isinstance(lost, ssl.SSLError):
        reason = lost.reason or ""
        if reason == "TLSV13_ALERT_CERTIFICATE_REQUIRED":
            return (
                "; the server asks for a client certificate: Tls(certificate_file=…, key_file=…), or TENURE_CLIENT_CERTIFICATE_FILE "
                "and TENURE_CLIENT_KEY_FILE"
            )
        if reason == "WRONG_VERSION_NUMBER":
            return "; what answers at this address does not speak TLS: begin the address with http://, if plain HTTP is meant"
        if "ALERT" in reason:
            return "; the server refuses this client's certificate, or its version of TLS"
    return ""
