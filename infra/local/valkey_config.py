"""What Valkey is told."""


def valkey_config(bind, port, folder, password=None):
    """The text of a valkey.conf: in memory only, since all that it holds is derived from the log."""
    lines = [f"bind {bind}", f"port {port}", f"dir {folder}", 'save ""', "appendonly no"]
    # When it is full, what was not touched for longest goes: the snapshots of long sleepers, which load from the log as well.
    # A lease is renewed every few seconds, so it is among the last; one that vanishes early costs a model call.
    lines += ["maxmemory 1gb", "maxmemory-policy volatile-lru"]
    if password:
        lines.append(f"requirepass {password}")
    return "\n".join(lines) + "\n"
