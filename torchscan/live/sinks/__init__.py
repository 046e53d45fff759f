"""Where a run goes besides its own file."""
