"""TLS everywhere, as addresses and settings say: to NATS, Postgres and Valkey, with an authority that vouches for them and without, and
where a service listens."""

import asyncio
import os
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
from pathlib import Path
from urllib.parse import quote

from local.servers import Nats, Postgres, Valkey
from local.services import environment
from local.settings import OWNER, role

from .own import ROOT, own_stack

CERTIFICATES = Path(__file__).resolve().parent / "tls"
AUTHORITY, STRANGER = str(CERTIFICATES / "authority.pem"), str(CERTIFICATES / "stranger.pem")
PATIENCE = 60


class SafeNats(Nats):
    def prepare(self):
        super().prepare()
        config = self.home / "nats.conf"
        files = f'cert_file: "{CERTIFICATES / "server.pem"}", key_file: "{CERTIFICATES / "server.key"}"'
        config.write_text(f"{config.read_text()}tls {{ {files} }}\n")


class SafeDoor:
    """TLS in front of a server that is built without it, as a proxy would stand there. Clients of Postgres ask in clear text first."""

    def __init__(self, port, asked_first=False):
        self._behind, self._asked_first, self.port = port, asked_first, None
        self._loop = asyncio.new_event_loop()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
        ready = threading.Event()
        threading.Thread(target=self._run, args=(ready,), daemon=True).start()
        ready.wait(PATIENCE)

    def close(self):
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self, ready):
        asyncio.set_event_loop(self._loop)
        # Such as clients that don't believe the certificate.
        self._loop.set_exception_handler(lambda *_: None)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        self._loop.run_forever()

    async def _serve(self, reader, writer):
        try:
            if self._asked_first:
                if await reader.readexactly(8) != bytes([0, 0, 0, 8, 4, 210, 22, 47]):
                    return
                writer.write(b"S")
            await writer.start_tls(self._context)
            behind = await asyncio.open_connection("127.0.0.1", self._behind)
            await asyncio.gather(_pass(reader, behind[1]), _pass(behind[0], writer), return_exceptions=True)
        finally:
            writer.close()


async def _pass(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


def _get(port, path):
    """What is answered over TLS by whom the authority vouches for; None without an answer."""
    context = ssl.create_default_context(cafile=AUTHORITY)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(f"https://localhost:{port}{path}", timeout=10) as answer:
            return answer.read().decode(errors="replace")
    except OSError:
        return None


@unittest.skipIf(sys.version_info < (3, 11), "older streams can't begin TLS in the middle")
class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = own_stack(cls, "tls")
        cls.stack.parts = [Postgres(cls.stack), SafeNats(cls.stack), Valkey(cls.stack)]
        cls.stack.start_parts()
        cls.doors = {"valkey": SafeDoor(cls.stack.ports["valkey"]), "postgres": SafeDoor(cls.stack.ports["postgres"], True)}
        for door in cls.doors.values():
            cls.addClassCleanup(door.close)
        cls.migrated = cls.esc("migrate", **cls.addresses("operator", OWNER))

    @classmethod
    def addresses(cls, user, owner, authority=AUTHORITY):
        """The three addresses with TLS, and whom to believe."""
        secrets, ports = cls.stack.credentials, cls.stack.ports
        nats = secrets.nats_url(user, f"localhost:{ports['nats']}").replace("nats://", "tls://")
        database = secrets.database_url(owner, f"localhost:{cls.doors['postgres'].port}")
        redis = secrets.redis_url(f"127.0.0.1:{cls.doors['valkey'].port}").replace("redis://", "rediss://")
        return {
            "ESC_NATS_URL": nats,
            "ESC_DATABASE_URL": f"{database}?sslmode=verify-full&sslrootcert={quote(authority)}",
            "ESC_REDIS_URL": redis,
            "SSL_CERT_FILE": authority,
        }

    @classmethod
    def esc(cls, *words, **env):
        words = [str(cls.stack.program("esc")), *words]
        return subprocess.run(words, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=PATIENCE)

    def test_migrating_speaks_tls_with_whom_an_authority_vouches_for(self):
        self.assertEqual(self.migrated.returncode, 0, self.migrated.stderr)

    def test_whom_nobody_vouches_for_is_told_nothing(self):
        for name in ("ESC_NATS_URL", "ESC_DATABASE_URL"):
            own = self.addresses("operator", OWNER)
            strange = self.addresses("operator", OWNER, STRANGER)
            told = {**own, name: strange[name], "SSL_CERT_FILE": strange["SSL_CERT_FILE"] if name == "ESC_NATS_URL" else AUTHORITY}
            done = self.esc("migrate", **told)
            self.assertNotEqual(done.returncode, 0, name)
            self.assertNotIn("panicked", done.stderr)
            self.assertRegex(done.stderr, r"(?i)certificate|unknownissuer|tls", name)

    def test_a_service_works_over_tls_alone(self):
        port = self.stack.ports["ingress"]
        told = {**environment("ingress", port, self.stack), **self.addresses("ingress", role("ingress")), "ESC_LOG": "warn"}
        told |= {"ESC_TLS_CERTIFICATE": str(CERTIFICATES / "server.pem"), "ESC_TLS_KEY": str(CERTIFICATES / "server.key")}
        self.stack.token_file.write_text(self.stack.credentials.token_file())
        log = tempfile.TemporaryFile("w+")
        self.addCleanup(log.close)
        service = subprocess.Popen([str(self.stack.program("ingress"))], cwd=ROOT, env=told, stdout=log, stderr=log)
        self.addCleanup(service.wait)
        self.addCleanup(service.terminate)
        self._until(lambda: _get(port, "/readyz") is not None, service, log)
        self._until(lambda: self.esc("health", f"https://localhost:{port}", SSL_CERT_FILE=AUTHORITY).returncode == 0, service, log)
        self.assertNotEqual(self.esc("health", f"https://localhost:{port}", SSL_CERT_FILE=STRANGER).returncode, 0)
        self.assertNotEqual(self.esc("health", f"http://localhost:{port}").returncode, 0)
        # What comes from outside is read over a connection of ingress's own, which is safe as well.
        told = {**self.addresses("publisher", OWNER), "ESC_URL": f"https://localhost:{port}"}
        done = self.esc("publish", "shop", "shop.question", "--data", "{}", **told)
        self.assertEqual(done.returncode, 0, done.stderr)
        self._until(lambda: "ingress_events_total{" in (_get(port, "/metrics") or ""), service, log)
        log.seek(0)
        said = log.read()
        self.assertNotIn("can stop this consumer", said)
        self.assertNotIn("panicked", said)

    def _until(self, asked, service, log):
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if service.poll() is not None:
                log.seek(0)
                self.fail(f"ingress has ended: {log.read()[-2000:]}")
            if asked():
                return
            time.sleep(0.05)
        self.fail("not within a minute")


if __name__ == "__main__":
    unittest.main()
