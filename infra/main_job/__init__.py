"""The main job as a play: the outside world, the person, the mishaps, and what must be true in the end."""

from .api import Api
from .chaos import Chaos, NoChaos
from .forge import Forge
from .play import MainJob

__all__ = ["Api", "Chaos", "Forge", "MainJob", "NoChaos"]
