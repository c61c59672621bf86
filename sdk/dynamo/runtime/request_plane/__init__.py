"""Requests and answers between processes: sent, streamed, counted and cancelled over a bus."""
