"""Models that are sharded over many ranks: memory, computation and communication of each rank."""
