"""Prices of a catalogue."""
