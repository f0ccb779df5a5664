"""What Valkey is told."""


def valkey_config(bind, port, folder, password=None):
    """The text of a valkey.conf: in memory only, since all that it holds is derived from the log."""
    lines = [f"bind {bind}", f"port {port}", f"dir {folder}", 'save ""', "appendonly no"]
    # Refuse writes rather than evict: a lease that vanishes early costs a model call.
    lines += ["maxmemory 1gb", "maxmemory-policy noeviction"]
    if password:
        lines.append(f"requirepass {password}")
    return "\n".join(lines) + "\n"
