"""TCP proxies on loopback whose connections can be cut: a network that fails, for who stands behind it.

`Proxies` runs them in a process of their own, so that they are as fast as Python goes; that process ends with ours.
"""

import asyncio
import json
import random
import socket
import struct
import subprocess
import sys
import threading

_HOST = "127.0.0.1"


class Proxies:
    """One proxy for each name, on a free port: `ports["nats"]`."""

    def __init__(self, targets):
        """`targets`: the port on loopback behind each name."""
        self._targets = targets
        self._process = None
        self._lock = threading.Lock()
        self.ports = {}

    def start(self):
        words = [sys.executable, __file__, json.dumps(self._targets)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.ports = json.loads(self._process.stdout.readline())

    def cut(self, name, share, seed):
        """Break this share (0 to 1) of the connections through a proxy, without a word to either side; how many it were."""
        with self._lock:
            self._process.stdin.write(json.dumps([name, share, seed]) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def stop(self):
        if self._process:
            self._process.stdin.close()
            self._process.wait(60)
            self._process.stdout.close()


class _Side(asyncio.Protocol):
    """One end of a proxied connection."""

    def __init__(self, other=None):
        self.transport, self.other = None, other

    def connection_made(self, transport):
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data):
        self.other.transport.write(data)

    def pause_writing(self):
        self.other.transport.pause_reading()

    def resume_writing(self):
        self.other.transport.resume_reading()

    def connection_lost(self, _error):
        if self.other and self.other.transport:
            self.other.transport.close()

    def reset(self):
        # Without lingering the other end gets a reset instead of an orderly end.
        with_reset = struct.pack("ii", 1, 0)
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, with_reset)
        self.transport.abort()


class _Client(_Side):
    """The end of whoever connects to the proxy."""

    def __init__(self, port, open_ones):
        super().__init__()
        self._port, self._open = port, open_ones

    def connection_made(self, transport):
        super().connection_made(transport)
        transport.pause_reading()
        self._open.add(self)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self):
        try:
            _, self.other = await asyncio.get_running_loop().create_connection(lambda: _Side(self), _HOST, self._port)
        except OSError:
            return self.transport.abort()
        if self.transport.is_closing():
            self.other.transport.close()
        else:
            self.transport.resume_reading()

    def connection_lost(self, error):
        super().connection_lost(error)
        self._open.discard(self)


async def _serve(targets):
    loop = asyncio.get_running_loop()
    connections, ports = {name: set() for name in targets}, {}
    for name, port in targets.items():
        made = lambda port=port, name=name: _Client(port, connections[name])  # noqa: E731
        server = await loop.create_server(made, _HOST, 0, backlog=512)
        ports[name] = server.sockets[0].getsockname()[1]
    print(json.dumps(ports), flush=True)
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        name, share, seed = json.loads(line)
        # A stable order, so that the same seed means the same connections as far as they are the same.
        there = sorted(connections[name], key=lambda side: side.transport.get_extra_info("peername") or ())
        victims = random.Random(seed).sample(there, round(len(there) * share))
        for victim in victims:
            victim.reset()
            if victim.other and victim.other.transport:
                victim.other.reset()
        print(len(victims), flush=True)


if __name__ == "__main__":
    try:
        asyncio.run(_serve(json.loads(sys.argv[1])))
    except KeyboardInterrupt:
        pass
