"""TLS: a real server with certificates of its own, and clients that do and do not trust it."""

from __future__ import annotations

import ssl
import subprocess
import tempfile
import unittest
from pathlib import Path

from real import RealServer
from tenure import Client, Tls, Unreachable, Worker, tool
from tenure._tls import advice


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


def authority(at: Path, name: str) -> None:
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30", "-subj", f"/CN={name}",
            "-keyout", str(at / f"{name}.key"), "-out", str(at / f"{name}.crt"))


def signed(at: Path, by: str, name: str, alternative: str) -> None:
    extensions = at / f"{name}.ext"
    extensions.write_text(f"subjectAltName = {alternative}\n")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
            "-keyout", str(at / f"{name}.key"), "-out", str(at / f"{name}.csr"))
    openssl("x509", "-req", "-days", "30", "-in", str(at / f"{name}.csr"), "-CA", str(at / f"{by}.crt"), "-CAkey", str(at / f"{by}.key"),
            "-CAcreateserial", "-extfile", str(extensions), "-out", str(at / f"{name}.crt"))


@tool(name="tls.echo")
def echo(value: int) -> int:
    """Gives it back."""
    return value


class TlsRules(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        directory = tempfile.TemporaryDirectory(prefix="tenure-py-tls-")
        cls.addClassCleanup(directory.cleanup)
        cls.at = Path(directory.name)
        authority(cls.at, "ours")
        authority(cls.at, "theirs")
        signed(cls.at, "ours", "server", "IP:127.0.0.1,DNS:tenure.example")
        signed(cls.at, "ours", "client", "DNS:worker")

    def file(self, name: str) -> str:
        return str(self.at / name)

    def tls(self) -> Tls:
        return Tls(self.file("ours.crt"), self.file("client.crt"), self.file("client.key"))

    def server(self, *sets: str) -> RealServer:
        files = (f"server.tls_certificate_file={self.file('server.crt')}", f"server.tls_key_file={self.file('server.key')}")
        server = RealServer(*files, *sets, tls=self.tls())
        self.addCleanup(server.close)
        return server

    def refusal(self, url: str, tls: Tls | None) -> str:
        with Client(url, retry_for=0, tls=tls) as client, self.assertRaises(Unreachable) as caught:
            list(client.list())
        return str(caught.exception)

    def test_a_worker_and_a_client_with_the_root_certificate(self) -> None:
        server = self.server()
        self.assertTrue(server.url.startswith("https://"))
        with Worker(server.url, tools=[echo], tls=Tls(self.file("ours.crt"))):
            plan = {"version": 1, "steps": {"a": {"tool": "tls.echo", "input": {"value": 7}}}, "output": "${{ steps.a.output }}"}
            self.assertEqual(server.client.submit("plan", {"plan": plan}, wait=60).output, 7)
        self.assertIn("TENURE_CLIENT_CA_FILE", self.refusal(server.url, None))
        self.assertIn("TENURE_CLIENT_CA_FILE", self.refusal(server.url, Tls(self.file("theirs.crt"))))
        other_name = server.url.replace("127.0.0.1", "localhost")
        self.assertIn("a name that is in its certificate", self.refusal(other_name, Tls(self.file("ours.crt"))))

    def test_a_server_that_wants_client_certificates(self) -> None:
        server = self.server(f"server.tls_client_ca_file={self.file('ours.crt')}")
        self.assertEqual(list(server.client.list()), [])
        self.assertIn("TENURE_CLIENT_CERTIFICATE_FILE", self.refusal(server.url, Tls(self.file("ours.crt"))))

    def test_plain_http_is_told_apart(self) -> None:
        server = RealServer()
        self.addCleanup(server.close)
        refusal = self.refusal(server.url.replace("http://", "https://"), Tls(self.file("ours.crt")))
        self.assertIn("http://", refusal)
        self.assertIn("does not speak TLS", refusal)

    def test_files_that_cannot_be_used_are_named(self) -> None:
        for bad in (Tls(self.file("absent")), Tls(None, self.file("client.crt"), self.file("server.key")), Tls(None, "only one")):
            with self.assertRaises(ValueError) as caught:
                Client("https://127.0.0.1:1", tls=bad)
            self.assertRegex(str(caught.exception), "absent|client.crt|belong together")

    def test_an_expired_certificate_says_what_to_do(self) -> None:
        expired = ssl.SSLCertVerificationError("certificate has expired")
        expired.verify_code = 10
        self.assertIn("server.tls_certificate_file", advice(expired))
        self.assertEqual(advice(OSError("refused")), "")
