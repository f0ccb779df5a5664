"""Ports: where they come from, and what is said when one is taken."""

import os
import socket
import unittest

from local.problem import Problem
from local.settings import PARTS, SERVICES, Ports, check_free, holder, variable


class PortsFromTheEnvironment(unittest.TestCase):
    def test_defaults_are_the_documented_ones(self):
        ports = Ports.from_env({})
        self.assertEqual(
            [ports[name] for name in ("ingress", "nats", "postgres", "valkey")], [8080, 14222, 15432, 16379]
        )
        self.assertEqual([ports[name] for name in SERVICES[1:]], [8081, 8082, 8083, 8084, 8085, 8086])

    def test_each_can_be_moved(self):
        ports = Ports.from_env({"ESC_API_PORT": "9000", "ESC_NATS_PORT": "9001", "ESC_PORT_BASE": "9100"})
        self.assertEqual(
            (ports["ingress"], ports["nats"], ports["planner"], ports["artifact"]), (9000, 9001, 9100, 9105)
        )

    def test_nonsense_is_named(self):
        for text in ("eighty", "0", "70000", "-1"):
            with self.assertRaisesRegex(Problem, f"ESC_NATS_PORT is '{text}'"):
                Ports.from_env({"ESC_NATS_PORT": text})

    def test_one_port_for_two_is_named_with_both_variables(self):
        with self.assertRaisesRegex(Problem, "8083 .*ESC_API_PORT or ESC_PORT_BASE"):
            Ports.from_env({"ESC_API_PORT": "8083"})

    def test_free_ports_differ(self):
        ports = Ports.free()
        self.assertEqual(len({ports[name] for name in PARTS + SERVICES}), len(PARTS + SERVICES))


class TakenPorts(unittest.TestCase):
    def test_a_clash_names_port_variable_and_holder(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            with self.assertRaises(Problem) as caught:
                check_free("nats", port)
        said = str(caught.exception)
        self.assertIn(f"Port {port}, meant for nats", said)
        self.assertIn(variable("nats"), said)
        if os.path.exists("/proc/net/tcp"):
            self.assertIn(f"(pid {os.getpid()})", said)

    def test_a_free_port_is_free(self):
        port = Ports.free()["nats"]
        check_free("nats", port)
        self.assertIsNone(holder(port))


if __name__ == "__main__":
    unittest.main()
