"""A plan as Kubernetes manifests: pure builders, called by the reconciler and by the tests.

`render.manifests` is the way in. The same input gives the same bytes, so that an object
that is as it should be is recognised and not written again.
"""
