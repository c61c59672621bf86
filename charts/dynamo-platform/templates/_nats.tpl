{{/* Core NATS only: nothing is stored, so nothing is persisted. Whom it trusts stands in the Secret. */}}
{{- define "dynamo-platform.natsConfig" -}}
port: 4222
http_port: 8222
server_name: {{ if .Values.ha }}$POD_NAME{{ else if include "dynamo-platform.natsApart" . }}dynamo-nats{{ else }}{{ include "dynamo-platform.nats" . }}{{ end }}
max_payload: {{ .Values.nats.maxPayload | int64 }}
max_pending: {{ .Values.nats.maxPending | int64 }}
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
{{- if .Values.ha }}
cluster {
  name: dynamo
  port: 6222
  # Where networks translate addresses, others would hear of the node's.
  advertise: $POD_IP
  include ./auth/routes.conf
  tls {
    ca_file: "/etc/nats/auth/peers.crt"
    cert_file: "/etc/nats/auth/peers.crt"
    key_file: "/etc/nats/auth/peers.key"
    verify: true
  }
}
{{- end }}
{{- end -}}

{{/* The user's tolerations, and short ones for a lost node, unless the user's match its taint: without NATS a namespace serves nothing, and Kubernetes' default is 300 s. */}}
{{- define "dynamo-platform.natsTolerations" -}}
{{- $tolerations := .Values.nats.tolerations -}}
{{- range list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable" -}}
{{- $key := . -}}
{{- $named := false -}}
{{- range $.Values.nats.tolerations -}}
{{- if and (has .key (list $key nil "")) (has .effect (list "NoExecute" nil "")) -}}
{{- $named = true -}}
{{- end -}}
{{- end -}}
{{- if not $named -}}
{{- $tolerations = append $tolerations (dict "key" $key "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" 10) -}}
{{- end -}}
{{- end -}}
{{- toYaml $tolerations -}}
{{- end -}}

{{/* Of a server's pod. Call with a dict: `root`, `config` (the volume with nats.conf), `auth` (the Secret with whom it trusts, or empty), `tolerations`. Several servers are always each namespace's own. */}}
{{- define "dynamo-platform.natsPod" -}}
{{- $root := .root -}}
{{- $nats := $root.Values.nats -}}
automountServiceAccountToken: false
enableServiceLinks: false
# With one server clients have nowhere else to go: the shorter the gap, the better.
terminationGracePeriodSeconds: 10
{{- with include "dynamo-platform.pullSecrets" $root }}
{{ . | trim }}
{{- end }}
securityContext:
  {{- toYaml $nats.podSecurityContext | nindent 2 }}
{{- with include "dynamo-platform.placement" (set (omit $nats "tolerations") "tolerations" .tolerations) }}
{{ . | trim }}
{{- end }}
containers:
  - name: nats
    image: {{ include "dynamo-platform.image" (list $root $nats.image "") | quote }}
    imagePullPolicy: {{ $nats.image.pullPolicy }}
    command: [nats-server, --config, /etc/nats/nats.conf]
    {{- if $root.Values.ha }}
    env:
      - name: POD_NAME
        valueFrom:
          fieldRef:
            fieldPath: metadata.name
      - name: POD_IP
        valueFrom:
          fieldRef:
            fieldPath: status.podIP
    {{- end }}
    ports:
      - name: client
        containerPort: 4222
        protocol: TCP
      - name: monitor
        containerPort: 8222
        protocol: TCP
      {{- if $root.Values.ha }}
      - name: routes
        containerPort: 6222
        protocol: TCP
      {{- end }}
    startupProbe:
      httpGet:
        path: /healthz
        port: monitor
      periodSeconds: 1
      timeoutSeconds: 5
      failureThreshold: 60
    livenessProbe:
      httpGet:
        path: /healthz
        port: monitor
      periodSeconds: 10
      timeoutSeconds: 5
      failureThreshold: 6
    readinessProbe:
      httpGet:
        path: /healthz
        port: monitor
      periodSeconds: 5
      timeoutSeconds: 5
      failureThreshold: 3
    resources:
      {{- toYaml $nats.resources | nindent 6 }}
    securityContext:
      {{- toYaml $nats.securityContext | nindent 6 }}
    terminationMessagePolicy: FallbackToLogsOnError
    volumeMounts:
      - name: config
        mountPath: /etc/nats/nats.conf
        subPath: nats.conf
        readOnly: true
      - name: tmp
        mountPath: /tmp
      {{- if .auth }}
      - name: auth
        mountPath: /etc/nats/auth
        readOnly: true
      {{- end }}
      {{- if $nats.tls.existingSecret }}
      - name: tls
        mountPath: /etc/nats/tls
        readOnly: true
      {{- end }}
volumes:
  - name: config
    {{- toYaml .config | nindent 4 }}
  - name: tmp
    emptyDir: {}
  {{- with .auth }}
  # The keys in it stay out: the server needs to know whom to trust, and what several of them show each other.
  - name: auth
    secret:
      secretName: {{ . }}
      items:
        - key: server.conf
          path: server.conf
        {{- if $root.Values.ha }}
        {{- range list "routes.conf" "peers.crt" "peers.key" }}
        - key: {{ . }}
          path: {{ . }}
        {{- end }}
        {{- end }}
      defaultMode: 0440
  {{- end }}
  {{- with $nats.tls.existingSecret }}
  - name: tls
    secret:
      secretName: {{ . }}
      defaultMode: 0440
  {{- end }}
{{- end -}}

{{/* What the operator makes in each namespace where pipelines are, instead of the one server; all of it is called dynamo-nats there. */}}
{{- define "dynamo-platform.natsPerNamespace" -}}
{{- $file := dict "key" "nats.conf" "path" "nats.conf" -}}
{{- $config := dict "secret" (dict "secretName" "dynamo-nats" "items" (list $file) "defaultMode" 288) -}}
tlsSecret: {{ .Values.nats.tls.existingSecret | quote }}
networkPolicy: {{ .Values.networkPolicy.enabled }}
replicas: {{ ternary 3 1 .Values.ha }}
config: |
  {{- include "dynamo-platform.natsConfig" . | nindent 2 }}
template:
  metadata:
    annotations: {{ .Values.nats.podAnnotations | toJson }}
    labels: {{ merge (dict) .Values.nats.podLabels .Values.commonLabels | toJson }}
  spec:
    {{- include "dynamo-platform.natsPod" (dict "root" . "config" $config "auth" "dynamo-nats" "tolerations" (include "dynamo-platform.natsTolerations" . | fromYamlArray)) | nindent 4 }}
{{- end -}}
