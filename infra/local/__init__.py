"""The local stack as a library: the parts (NATS, Postgres, Valkey) and the seven services on one machine.

`infra/up`, `down`, `status`, `test` and `demo` are thin commands over `Stack`. Only the standard library is used.
"""

import sys

if sys.version_info < (3, 9):
    sys.exit("Python 3.9 or newer is needed and this is %d.%d: install a newer python3." % sys.version_info[:2])

from .problem import Problem, command, say
from .settings import PARTS, SERVICES, Ports
from .stack import Stack, own_stack

__all__ = ["PARTS", "SERVICES", "Ports", "Problem", "Stack", "command", "own_stack", "say"]
