"""Scoring what the observer concludes from labelled logs; `loadtest/score-observer` is the command."""
