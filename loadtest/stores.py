"""What a stack of our own keeps in Postgres and in Valkey, and rows put there in bulk."""

import os
import socket
import subprocess

from stacks import Problem

from local.settings import OWNER


class Stores:
    """The stores of a started stack."""

    def __init__(self, stack):
        self._stack = stack
        self._psql = stack.parts[0].program.parent / "psql"

    def sql(self, text):
        """Run SQL as the owner, in the product's schema; the rows as lists of text."""
        words = [self._psql, "-qXAt", "-F", "\t", "-v", "ON_ERROR_STOP=1", self._stack.database_url(OWNER), "-f", "-"]
        done = subprocess.run(
            [str(word) for word in words],
            input=text,
            env={**os.environ, "PGOPTIONS": "-c search_path=escapement"},
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise Problem(f"Postgres refused: {done.stderr.strip()}")
        return [line.split("\t") for line in done.stdout.splitlines()]

    def postgres_bytes(self):
        """Bytes on disk by table, indexes included."""
        rows = self.sql(
            "select relname, pg_total_relation_size(oid) from pg_class"
            " where relkind = 'r' and relnamespace = 'escapement'::regnamespace;"
        )
        return {table: int(size) for table, size in rows}

    def redis_bytes(self):
        """Bytes that Valkey's data takes."""
        commands = "INFO memory\r\nQUIT\r\n"
        if self._stack.credentials:
            commands = f"AUTH {self._stack.credentials.valkey}\r\n{commands}"
        with socket.create_connection(("127.0.0.1", self._stack.ports["valkey"]), timeout=30) as connection:
            connection.sendall(commands.encode())
            answer = connection.makefile("rb").read().decode(errors="replace")
        for line in answer.splitlines():
            name, _, value = line.partition(":")
            if name == "used_memory":
                return int(value)
        raise Problem("Valkey does not tell its memory.")

    def timer_commit_lateness(self, since):
        """Milliseconds from when timers were due to the commit of their firing; Postgres must keep the times of commits."""
        rows = self.sql(
            "select percentile_cont(0.5) within group (order by late), percentile_cont(0.99) within group (order by late),"
            " max(late), count(*) from (select extract(epoch from pg_xact_commit_timestamp(xmin)"
            " - (data ->> 'due')::timestamptz) * 1000 as late from events"
            f" where type = 'timer.fired' and at >= '{since}') fired;"
        )
        median, last_percent, worst, _ = (round(float(figure or "nan"), 2) for figure in rows[0])
        return {"p50": median, "p99": last_percent, "worst": worst}

    def add_future_timers(self, count):
        """Timers that are due from a day on, of runs that do not exist: nobody looks at those before they are due."""
        self.sql(
            "insert into timers (timer_id, run_id, due, purpose)"
            " select gen_random_uuid(), gen_random_uuid(), now() + interval '1 day' + n * interval '1 second', 'wait'"
            f" from generate_series(1, {int(count)}) n;"
            " analyze timers;"
        )
