"""The NATS configuration, written from the permission table that local and container stacks share."""

import json
from pathlib import Path

PERMISSIONS = Path(__file__).parent.parent / "nats" / "permissions.json"


def nats_config(listen, store, passwords=None, monitor=None, for_tests=False):
    """The text of a nats.conf. Without `passwords` everybody may do everything (for tests on loopback)."""
    # The log in Postgres refills what a power cut takes from a stream, so a second between syncs is safe. Tests survive none.
    interval = "1h" if for_tests else "1s"
    lines = [
        f"listen: {json.dumps(listen)}",
        f"jetstream {{ store_dir: {json.dumps(str(store))}, sync_interval: {interval}, max_mem: 1G, max_file: 20G }}",
        "max_payload: 1MB",
        "write_deadline: 10s",
    ]
    if monitor:
        lines.append(f"http: {json.dumps(monitor)}")
    if passwords:
        users = [
            {"user": user, "password": passwords[user], "permissions": permissions}
            for user, permissions in permission_table().items()
        ]
        lines.append(
            "authorization {\n  users = [\n" + "".join(f"    {json.dumps(user)}\n" for user in users) + "  ]\n}"
        )
    return "\n".join(lines) + "\n"


def permission_table(path=PERMISSIONS):
    """For each NATS user what it may publish and subscribe to, in the server's own terms. infra/nats/README.md tells
    what the keys of the table mean."""
    table = json.loads(Path(path).read_text())
    return {user: _permissions(user, own, table) for user, own in table["users"].items()}


def _permissions(user, own, table):
    sources = [table["groups"][name] for name in own.get("groups", [])] + [own]

    def every(key):
        return [word.replace("{user}", user) for source in sources for word in source.get(key, [])]

    publish = every("publish")
    for stream in every("mends"):
        publish += _mends(stream, table["streams"][stream])
    for stream, consumers in own.get("consumes", {}).items():
        publish += _consumes(stream, consumers)
    result = {"publish": {"allow": publish}, "subscribe": {"allow": every("subscribe")}}
    others = [f"{event}.>" for event, owners in table["exclusive"].items() if user not in owners]
    if others and not own.get("sweeps"):
        result["publish"]["deny"] = others
    if any(source.get("replies") for source in sources):
        result["allow_responses"] = True
    return result


def _mends(stream, consumers):
    api = [f"$JS.API.STREAM.INFO.{stream}", f"$JS.API.STREAM.CREATE.{stream}"]
    for name in consumers:
        # With one filter its subject follows the name, with several nothing does.
        api += [f"$JS.API.CONSUMER.CREATE.{stream}.{name}", f"$JS.API.CONSUMER.CREATE.{stream}.{name}.>"]
    return api


def _consumes(stream, consumers):
    api = [f"$JS.API.STREAM.INFO.{stream}"]
    for name in consumers:
        api += [f"$JS.API.CONSUMER.{verb}.{stream}.{name}" for verb in ("INFO", "MSG.NEXT", "RESET")]
        api.append(f"$JS.ACK.{stream}.{name}.>")
    return api
