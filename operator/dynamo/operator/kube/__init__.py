"""The Kubernetes API as this operator speaks it: client, errors, login, lease and the fence of writes."""
