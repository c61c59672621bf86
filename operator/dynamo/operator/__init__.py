"""The pipeline's types, its plan, and the reconciler that carries it out on Kubernetes.

`api` and `plan` import neither kopf nor anything else of ours, so that `dynamo up` runs
the same plan without a cluster.
"""
