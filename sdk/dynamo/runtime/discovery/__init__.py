"""Who serves what: instances in etcd or in memory, watched by clients, kept alive by leases."""
