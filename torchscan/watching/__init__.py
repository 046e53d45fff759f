"""Watched training: probes in its process, a channel, and a worker that fills a store."""
