{{/* What the operator may do where pipelines are. Server-side apply needs create and patch. */}}
{{- define "dynamo-platform.rules" -}}
- apiGroups: [dynamo.dev]
  resources: [dynamopipelines]
  verbs: [get, list, watch]
- apiGroups: [dynamo.dev]
  resources: [dynamopipelines/status]
  verbs: [patch]
# Owner references that block deletion need it (OwnerReferencesPermissionEnforcement, on in OpenShift).
- apiGroups: [dynamo.dev]
  resources: [dynamopipelines/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments, statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps, serviceaccounts, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [ingresses, networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
# Only where a pipeline asks for one; a cluster without the Gateway API has nothing that this could allow.
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, list, create, patch, delete]
# Claims with downloaded models go with their pipeline; the operator itself never deletes one.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- if eq .Values.operator.rbac.scope "cluster" }}
# Whether another operator, which a pipeline's status names, still lives.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get]
{{- end }}
{{- if or (include "dynamo-platform.natsApart" .) (include "dynamo-platform.secrets" . | fromJsonArray) }}
# Credentials for etcd and NATS, one Secret per pipeline, and what a NATS of a namespace trusts; a name that is not known yet can't be listed here. No list, no watch.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch]
{{- end }}
{{- if include "dynamo-platform.natsApart" . }}
# It is never deleted: OwnerReferencesPermissionEnforcement (OpenShift) asks it of whoever adds an owner.
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [dynamo-nats]
  verbs: [delete]
{{- end }}
{{- end -}}
