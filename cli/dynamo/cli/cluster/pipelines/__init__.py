"""Pipelines on a cluster: applied, waited for, shown, followed and deleted."""
