"""The local executor: a pipeline's plan as processes of this machine, with etcd and NATS of its own."""
