"""Inspection of real runs: facts of module calls, measured over the call tree."""
