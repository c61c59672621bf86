{{- define "dynamo-platform.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* The first part of all names; 45 characters leave room for "-operator-aggregate" within 63. */}}
{{- define "dynamo-platform.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "dynamo-platform.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "dynamo-platform.operator" -}}
{{- include "dynamo-platform.fullname" . }}-operator
{{- end -}}

{{- define "dynamo-platform.etcd" -}}
{{- include "dynamo-platform.fullname" . }}-etcd
{{- end -}}

{{/* etcd's StatefulSet, and the Service by which its members find each other. */}}
{{- define "dynamo-platform.etcdSet" -}}
{{- include "dynamo-platform.etcd" . }}{{ if .Values.ha }}-ha{{ end }}
{{- end -}}

{{/* The Secret with what members show each other; empty where there is one. */}}
{{- define "dynamo-platform.etcdPeers" -}}
{{- if and .Values.ha .Values.etcd.enabled }}{{ include "dynamo-platform.etcdSet" . }}-peers{{ end -}}
{{- end -}}

{{- define "dynamo-platform.nats" -}}
{{- include "dynamo-platform.fullname" . }}-nats
{{- end -}}

{{/* How many operators run. */}}
{{- define "dynamo-platform.operators" -}}
{{- ternary (max 2 (int .Values.operator.replicaCount)) (int .Values.operator.replicaCount) .Values.ha -}}
{{- end -}}

{{/* ClusterRoles have no namespace: two releases of one name must not share them. */}}
{{- define "dynamo-platform.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "dynamo-platform.operator" .) -}}
{{- end -}}

{{- define "dynamo-platform.serviceAccount" -}}
{{- if .Values.operator.serviceAccount.create -}}
{{- default (include "dynamo-platform.operator" .) .Values.operator.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.operator.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Call with (list . "operator"); these never change in a release's life. */}}
{{- define "dynamo-platform.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "dynamo-platform.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "dynamo-platform.labels" -}}
{{- $root := index . 0 -}}
{{ include "dynamo-platform.selector" . }}
app.kubernetes.io/part-of: dynamo
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Call with (list . IMAGE TAG): the digest wins over the tag, the global registry over the image's own. */}}
{{- define "dynamo-platform.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $registry := default $image.registry $root.Values.global.imageRegistry -}}
{{- if $registry }}{{ $registry }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ default (index . 2) $image.tag }}{{ end -}}
{{- end -}}

{{/* Call with (list . "repo/name[:tag][@digest]"): an image of pipelines. */}}
{{- define "dynamo-platform.pipelineImage" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $registry := default $root.Values.pipelines.images.registry $root.Values.global.imageRegistry -}}
{{- if $registry }}{{ $registry }}/{{ end -}}
{{- $name -}}
{{- $last := last (splitList "/" $name) -}}
{{- if not (or (contains ":" $last) (contains "@" $last)) }}:{{ $root.Chart.AppVersion }}{{ end -}}
{{- end -}}

{{- define "dynamo-platform.pullSecrets" -}}
{{- with .Values.global.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "dynamo-platform.etcdEndpoints" -}}
{{- if .Values.etcd.enabled -}}
{{- $scheme := ternary "https" "http" (ne .Values.etcd.tls.existingSecret "") -}}
{{- printf "%s://%s.%s.svc:2379" $scheme (include "dynamo-platform.etcd" .) .Release.Namespace -}}
{{- else -}}
{{- join "," .Values.etcd.external.endpoints -}}
{{- end -}}
{{- end -}}

{{/* "true" where the operator makes a NATS in each namespace: as nats.perNamespace says, or by what else is set. */}}
{{- define "dynamo-platform.natsApart" -}}
{{- $nats := .Values.nats -}}
{{- $shared := or (not $nats.enabled) (not $nats.auth.enabled) $nats.auth.existingSecret $nats.tls.existingSecret .Values.pipelines.shareDynamoNamespaces -}}
{{- if kindIs "invalid" $nats.perNamespace }}{{ if not $shared }}true{{ end }}{{ else if $nats.perNamespace }}true{{ end -}}
{{- end -}}

{{/* Empty where each namespace has its own. */}}
{{- define "dynamo-platform.natsUrl" -}}
{{- if include "dynamo-platform.natsApart" . -}}
{{- else if .Values.nats.enabled -}}
{{- $scheme := ternary "tls" "nats" (ne .Values.nats.tls.existingSecret "") -}}
{{- printf "%s://%s.%s.svc:4222" $scheme (include "dynamo-platform.nats" .) .Release.Namespace -}}
{{- else -}}
{{- .Values.nats.external.url -}}
{{- end -}}
{{- end -}}

{{/* Call with (list . "etcd") or (list . "nats"): the Secret with which users are made; empty: nobody signs in. */}}
{{- define "dynamo-platform.authSecret" -}}
{{- $root := index . 0 -}}
{{- $server := index . 1 -}}
{{- $auth := (index $root.Values $server).auth -}}
{{- if and $auth.enabled (not (and (eq $server "nats") (include "dynamo-platform.natsApart" $root))) -}}
{{- default (printf "%s-auth" (include (printf "dynamo-platform.%s" $server) $root)) $auth.existingSecret -}}
{{- end -}}
{{- end -}}

{{/* The Secrets that the operator reads, as a JSON list; empty where nothing asks for a sign-in. */}}
{{- define "dynamo-platform.secrets" -}}
{{- $etcd := include "dynamo-platform.authSecret" (list . "etcd") -}}
{{- $nats := include "dynamo-platform.authSecret" (list . "nats") -}}
{{- $tls := ternary "" .Values.nats.tls.existingSecret (eq "true" (include "dynamo-platform.natsApart" .)) -}}
{{- list $etcd .Values.etcd.tls.existingSecret (include "dynamo-platform.etcdPeers" .) $nats $tls | compact | uniq | toJson -}}
{{- end -}}

{{/* "true" where the operator makes a Secret that nobody named. */}}
{{- define "dynamo-platform.makesSecrets" -}}
{{- if include "dynamo-platform.etcdPeers" . }}true{{ end -}}
{{- range list .Values.etcd (ternary dict .Values.nats (eq "true" (include "dynamo-platform.natsApart" .))) -}}
{{- with .auth }}{{ if and .enabled (not .existingSecret) }}true{{ end }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* Where the operator may work, as a JSON list; empty: everywhere. */}}
{{- define "dynamo-platform.namespaces" -}}
{{- if and (eq .Values.operator.rbac.scope "namespace") (not .Values.operator.watchNamespaces) -}}
{{- list .Release.Namespace | toJson -}}
{{- else -}}
{{- .Values.operator.watchNamespaces | uniq | toJson -}}
{{- end -}}
{{- end -}}
