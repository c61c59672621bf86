{{/* What the operator reads at start; operator/dynamo/operator/settings.py is its reader. */}}
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
  fsGroup: {{ if kindIs "invalid" .Values.pipelines.fsGroup }}null{{ else }}{{ .Values.pipelines.fsGroup | int64 }}{{ end }}
  networkPolicies: {{ .Values.pipelines.networkPolicies }}
  graceSeconds: {{ .Values.pipelines.graceSeconds | int }}
etcd:
  endpoints: {{ include "dynamo-platform.etcdEndpoints" . | splitList "," | toJson }}
  secret: {{ .Values.etcd.auth.existingSecret | quote }}
nats:
  url: {{ include "dynamo-platform.natsUrl" . | quote }}
  secret: {{ .Values.nats.auth.existingSecret | quote }}
  tlsSecret: {{ .Values.nats.tls.existingSecret | quote }}
leaderElection:
  enabled: {{ .Values.operator.leaderElection.enabled }}
  lease: {{ include "dynamo-platform.operator" . }}
{{- end -}}
