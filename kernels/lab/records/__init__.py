"""Recorded GPU runs: their schema, how a run is written, found, judged stale and kept."""
