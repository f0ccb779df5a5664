"""Identity providers: tokens that another library signs, with keys that it makes, in every way that is accepted and in some that are not."""

import json
import sys
import tempfile
import threading
import time
import unittest
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from local import wheels
from .rust import needs_parts, passes

ROOT = Path(__file__).resolve().parent.parent.parent
LIBRARY = ("joserfc", "1.8.0")
TEST = "identity::tokens_that_another_library_signed_are_read_the_same_way"


class Provider:
    """An OpenID provider as far as anybody asks who only reads tokens: where its keys are, and the keys."""

    def __init__(self, keys):
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                answer = provider.pages.get(self.path)
                body = json.dumps(answer).encode()
                self.send_response(200 if answer else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # One that ends with a slash, as some do.
        self.issuer = f"http://127.0.0.1:{self.server.server_port}/tenant/"
        self.pages = {
            "/tenant/.well-known/openid-configuration": {"issuer": self.issuer, "jwks_uri": self.issuer + "jwks.json"},
            "/tenant/jwks.json": {"keys": keys},
        }
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@needs_parts
@unittest.skipIf(sys.version_info < (3, 11), "the library needs Python 3.11 or newer")
class Tokens(unittest.TestCase):
    def test_those_of_another_library_are_read_the_same_way(self):
        jwk, jwt = wheels.load(*LIBRARY, ROOT / ".local" / "parts", "joserfc.jwk", "joserfc.jwt")
        rsa = jwk.RSAKey.generate_key(2048, {"kid": "rsa", "use": "sig"})
        large = jwk.RSAKey.generate_key(4096, {"kid": "rsa-4096"})
        p256 = jwk.ECKey.generate_key("P-256", {"kid": "p-256"})
        p384 = jwk.ECKey.generate_key("P-384", {"kid": "p-384"})
        p521 = jwk.ECKey.generate_key("P-521", {"kid": "p-521"})
        ed = jwk.OKPKey.generate_key("Ed25519", {"kid": "ed25519"})
        secret = jwk.OctKey.import_key(json.dumps(rsa.as_dict(private=False)))
        published = [key.as_dict(private=False) for key in (rsa, p256, p384, p521, ed)]
        published.append({**large.as_dict(private=False), "alg": "RS384"})
        provider = Provider(published)
        self.addCleanup(provider.close)
        now = int(time.time())
        claims = {
            "iss": provider.issuer, "aud": ["escapement", "other"], "sub": "ann", "iat": now, "nbf": now, "exp": now + 3600,
            "groups": ["staff"],
        }

        def token(what, algorithm, key, reason=None, kid=None, typ=None, **changes):
            header = {"alg": algorithm, "kid": kid or key.kid, **({"typ": typ} if typ else {})}
            said = {name: value for name, value in {**claims, **changes}.items() if value is not None}
            with warnings.catch_warnings():
                # EdDSA by its old name, which the providers use.
                warnings.simplefilter("ignore")
                text = jwt.encode(header, said, key, algorithms=[algorithm])
            return {"what": what, "token": text, "reason": reason}

        good = [("RS256", rsa), ("RS384", rsa), ("RS512", rsa), ("PS256", rsa), ("PS384", rsa), ("PS512", rsa)]
        good += [("RS384", large), ("ES256", p256), ("ES384", p384), ("EdDSA", ed)]
        tokens = [token(f"{algorithm} with {key.kid}", algorithm, key) for algorithm, key in good]
        tokens += [
            token("an access token by RFC 9068", "ES256", p256, typ="at+jwt"),
            token("an algorithm that the key is not for", "RS256", large, reason="key_mismatch"),
            token("a curve that is not accepted", "ES512", p521, reason="algorithm"),
            token("a public key for a secret", "HS256", secret, reason="algorithm", kid="rsa"),
            token("another key's name", "ES256", p256, reason="key_mismatch", kid="p-384"),
            token("another key of its kind", "ES256", jwk.ECKey.generate_key("P-256"), reason="signature", kid="p-256"),
            token("over", "ES256", p256, reason="expired", exp=now - 3600),
            token("for somebody else", "ES256", p256, reason="audience", aud="other"),
            token("nobody's", "ES256", p256, reason="person", sub=None),
        ]
        rules = f"[{{issuer: '{provider.issuer}', audiences: [escapement], tenant: acme, roles: {{claim: groups, map: {{staff: viewer}}}}}}]"
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "signed.json"
            file.write_text(json.dumps({"rules": rules, "tokens": tokens}))
            passes(self, "ingress", TEST, ESC_TEST_SIGNED_TOKENS=str(file))


if __name__ == "__main__":
    unittest.main()
