{{/* What the operator reads at start; docs/design/charts.md says what each key means. */}}
{{- define "dynamo-platform.config" -}}
{{- $workers := dict -}}
{{- range $engine, $image := .Values.pipelines.images.workers -}}
{{- $_ := set $workers $engine (include "dynamo-platform.pipelineImage" (list $ $image)) -}}
{{- end -}}
namespaces: {{ include "dynamo-platform.namespaces" . }}
images:
  frontend: {{ include "dynamo-platform.pipelineImage" (list . .Values.pipelines.images.frontend) | quote }}
  workers:
    {{- toYaml $workers | nindent 4 }}
  pullPolicy: {{ .Values.pipelines.images.pullPolicy }}
  pullSecrets: {{ .Values.global.imagePullSecrets | toJson }}
pods:
  fsGroup: {{ .Values.pipelines.fsGroup | toJson }}
  networkPolicies: {{ .Values.pipelines.networkPolicies }}
  graceSeconds: {{ .Values.pipelines.graceSeconds | int }}
etcd:
  endpoints: {{ include "dynamo-platform.etcdEndpoints" . }}
  secret: {{ .Values.etcd.auth.existingSecret | quote }}
nats:
  url: {{ include "dynamo-platform.natsUrl" . | quote }}
  secret: {{ .Values.nats.auth.existingSecret | quote }}
  tlsSecret: {{ .Values.nats.tls.existingSecret | quote }}
leaderElection:
  enabled: {{ .Values.operator.leaderElection.enabled }}
  lease: {{ include "dynamo-platform.operator" . }}
{{- end -}}
