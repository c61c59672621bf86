"""The operator's process against a real kube-apiserver with etcd and the controller manager, without nodes.

`python -m pytest e2e/apiserver`, with `etcd`, `kube-apiserver`, `kube-controller-manager` and
`kubectl` in DYNAMO_E2E_BIN.
"""
