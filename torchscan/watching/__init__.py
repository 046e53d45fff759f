"""Training watched while it runs: probes in its process, a channel, a worker that keeps what it is given in a store."""
