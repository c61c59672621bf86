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
frontendProbing:
  enabled: {{ .Values.operator.frontendProbing.enabled }}
pods:
  fsGroup: {{ if kindIs "invalid" .Values.pipelines.fsGroup }}null{{ else }}{{ .Values.pipelines.fsGroup | int64 }}{{ end }}
  networkPolicies: {{ .Values.pipelines.networkPolicies }}
  maxPods: {{ .Values.pipelines.maxPods | int }}
  podTemplatePolicy: {{ .Values.pipelines.podTemplatePolicy }}
  serviceAccounts: {{ .Values.pipelines.serviceAccounts | toJson }}
  httpRoutes: {{ .Values.pipelines.httpRoutes }}
  deniedIngressAnnotations: {{ .Values.pipelines.deniedIngressAnnotations | toJson }}
  metricsFrom: {{ .Values.pipelines.metricsFrom | toJson }}
  restrictEgress: {{ .Values.pipelines.restrictEgress }}
  egressPorts: {{ .Values.pipelines.egressPorts | toJson }}
  gracefulShutdownTimeoutSeconds: {{ .Values.pipelines.gracefulShutdownTimeoutSeconds | int }}
shareDynamoNamespaces: {{ .Values.pipelines.shareDynamoNamespaces }}
etcd:
  endpoints: {{ include "dynamo-platform.etcdEndpoints" . | splitList "," | toJson }}
  {{- include "dynamo-platform.signIn" (list . "etcd") | nindent 2 }}
  {{- with include "dynamo-platform.etcdPeers" . }}
  peers:
    secret: {{ . }}
    hosts:
      {{- range until 3 }}
      - {{ include "dynamo-platform.etcdSet" $ }}-{{ . }}.{{ include "dynamo-platform.etcdSet" $ }}.{{ $.Release.Namespace }}.svc
      {{- end }}
  {{- end }}
nats:
  url: {{ include "dynamo-platform.natsUrl" . | quote }}
  {{- include "dynamo-platform.signIn" (list . "nats") | nindent 2 }}
  {{- if include "dynamo-platform.natsApart" . }}
  perNamespace:
    {{- include "dynamo-platform.natsPerNamespace" . | nindent 4 }}
  {{- end }}
tracing:
  endpoint: {{ .Values.tracing.endpoint | quote }}
  protocol: {{ .Values.tracing.protocol }}
  ratio: {{ .Values.tracing.ratio }}
leaderElection:
  enabled: {{ .Values.operator.leaderElection.enabled }}
  lease: {{ include "dynamo-platform.operator" . }}
{{- end -}}

{{- define "dynamo-platform.signIn" -}}
{{- $server := index (index . 0).Values (index . 1) -}}
{{- $apart := and (eq (index . 1) "nats") (eq "true" (include "dynamo-platform.natsApart" (index . 0))) -}}
secret: {{ include "dynamo-platform.authSecret" . | quote }}
makeSecret: {{ and $server.auth.enabled (not $server.auth.existingSecret) (not $apart) }}
tlsSecret: {{ ternary "" $server.tls.existingSecret $apart | quote }}
ownServer: {{ and $server.enabled (not $apart) }}
{{- end -}}
