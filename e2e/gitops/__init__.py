"""What `gitops/` ships, held against the originals: Argo CD's own tests and types, kstatus, kubectl's kustomize."""
