"""Credentials per pipeline: NATS users and etcd users with rights for one Dynamo namespace.

`rights` and `nats_keys` are pure; the reconciler and the chart meet the rest in docs/design/cluster/credentials.md.
"""
