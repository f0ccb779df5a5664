"""A mixed load with people and an outside world in it, which knows what must have happened in the end."""

from .door import Door
from .load import Load
from .stage import staged
from .streams import Streams
from .world import World

__all__ = ["Door", "Load", "Streams", "World", "staged"]
