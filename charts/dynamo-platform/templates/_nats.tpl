{{/* Core NATS only: nothing is stored, so nothing is persisted. Whom it trusts stands in the Secret. */}}
{{- define "dynamo-platform.natsConfig" -}}
port: 4222
http_port: 8222
server_name: {{ include "dynamo-platform.nats" . }}
max_payload: {{ .Values.nats.maxPayload | int64 }}
{{- if .Values.nats.auth.enabled }}
include ./auth/server.conf
{{- end }}
{{- if .Values.nats.tls.existingSecret }}
tls {
  ca_file: "/etc/nats/tls/ca.crt"
  cert_file: "/etc/nats/tls/tls.crt"
  key_file: "/etc/nats/tls/tls.key"
}
{{- end }}
{{- end -}}
