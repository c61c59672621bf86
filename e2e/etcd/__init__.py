"""Tests on the platform's etcd, of the chart's version; they need neither a cluster nor an API server."""
