"""What Postgres is told: its settings, and the roles and database that the migrations then build on."""

from .settings import DATABASE, OWNER


def settings(port, for_tests=False):
    """The settings of a small local cluster. Commits are durable, but for tests."""
    return {
        "fsync": "off" if for_tests else "on",
        "full_page_writes": "off" if for_tests else "on",
        "listen_addresses": "127.0.0.1",
        "port": port,
        # TCP alone, so that a socket folder needs no care; roles have passwords.
        "unix_socket_directories": "",
        # The tests run many services side by side, each with pools of its own.
        "max_connections": 500 if for_tests else 200,
        "shared_buffers": "256MB",
        "wal_buffers": "16MB",
        "max_wal_size": "2GB",
        "checkpoint_timeout": "15min",
        "password_encryption": "scram-sha-256",
        "log_timezone": "UTC",
        "timezone": "UTC",
        "log_line_prefix": "%m [%p] %u@%d ",
    }


def bootstrap_sql(passwords):
    """psql input that makes the roles and the database, or brings their passwords up to date. Run as a superuser."""
    lines = ["\\set ON_ERROR_STOP on"]
    for name, password in passwords.items():
        if name != "postgres":
            lines.append(
                f"SELECT 'CREATE ROLE {name}' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{name}') \\gexec"
            )
            lines.append(f"ALTER ROLE {name} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD '{password}';")
    lines += [
        f"SELECT 'CREATE DATABASE {DATABASE} OWNER {OWNER}' "
        f"WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = '{DATABASE}') \\gexec",
        f"REVOKE ALL ON DATABASE {DATABASE} FROM PUBLIC;",
        f"GRANT CONNECT ON DATABASE {DATABASE} TO {', '.join(name for name in passwords if name != 'postgres')};",
    ]
    return "\n".join(lines) + "\n"
