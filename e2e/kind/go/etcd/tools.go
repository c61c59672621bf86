//go:build tools

// The etcd of the platform, which keeps tenants apart; Kubernetes' own is in ../node, of the version that kubeadm wants.
package tools

import _ "go.etcd.io/etcd/server/v3"
