"""The stack's secrets: made once, kept in one file that only its owner can read."""

import hashlib
import json
import os
import secrets
from pathlib import Path

from .settings import DATABASE, OWNER, SERVICES, role

NATS_USERS = SERVICES + ("publisher", "operator")
POSTGRES_ROLES = ("postgres", OWNER) + tuple(role(service) for service in SERVICES)

# Who may do what over HTTP: the API tokens that a new stack comes with, all of the tenant `default`.
TOKEN_ROLES = {
    "operator": ["operator", "admin"],
    "user": ["user"],
    "viewer": ["viewer"],
    "publisher": ["publisher"],
}


class Credentials:
    """Passwords per NATS user and Postgres role, one for Valkey, the API tokens, the token between services."""

    def __init__(self, kept=None):
        kept = kept or {}
        self.nats = _each(NATS_USERS, kept.get("nats"))
        self.postgres = _each(POSTGRES_ROLES, kept.get("postgres"))
        self.valkey = kept.get("valkey") or _new()
        self.internal = kept.get("internal") or _new()
        self.tokens = _each(TOKEN_ROLES, kept.get("tokens"), "esc_")

    @classmethod
    def keep(cls, path):
        """Those kept in `path`; whatever it lacks is made and written back."""
        try:
            kept = json.loads(Path(path).read_text())
        except FileNotFoundError:
            kept = {}
        credentials = cls(kept)
        if vars(credentials) != kept:
            write_private(path, json.dumps(vars(credentials), indent=2) + "\n")
        return credentials

    def nats_url(self, user, at):
        """NATS at `host:port` as this user."""
        return f"nats://{user}:{self.nats[user]}@{at}"

    def database_url(self, name, at):
        """The product's database at `host:port` as this role."""
        return f"postgres://{name}:{self.postgres[name]}@{at}/{DATABASE}"

    def redis_url(self, at):
        """Valkey at `host:port`."""
        return f"redis://:{self.valkey}@{at}/0"

    def token_file(self):
        """What ingress reads: the API tokens by their hash."""
        rows = [
            {
                "name": name,
                "tenant": "default",
                "roles": roles,
                "sha256": hashlib.sha256(self.tokens[name].encode()).hexdigest(),
            }
            for name, roles in TOKEN_ROLES.items()
        ]
        return json.dumps(rows, indent=2) + "\n"


def write_private(path, text):
    """Replace a file whole, readable by its owner alone from its first byte."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".tmp")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    fresh.replace(path)


def _each(names, kept, prefix=""):
    kept = kept or {}
    return {name: kept.get(name) or _new(prefix) for name in names}


def _new(prefix=""):
    # Hex, so that it needs no quoting in a URL, in SQL or in a configuration file.
    return prefix + secrets.token_hex(20)
