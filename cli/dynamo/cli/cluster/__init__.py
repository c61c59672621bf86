"""The commands that speak to a cluster: install, apply, status, get-url, delete, and logs from pods.

`client.py`, `cluster/platform/helm.py` and `cluster/pipelines/port_forward.py` do the I/O; what is decided from the
answers is elsewhere, in functions. `kubernetes` and `pyhelm3` are imported only when a command runs.
"""
