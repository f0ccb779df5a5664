"""Drills: what is promised about mishaps, played on real processes."""

from .probe import ProbeDrill

__all__ = ["ProbeDrill"]
