{{/* What values.schema.json can't say. Every sentence ends with what to do. */}}
{{- define "dynamo-platform.checks" -}}
{{- if and .Values.etcd.enabled .Values.etcd.external.endpoints -}}
{{- fail "\n\netcd.enabled and etcd.external.endpoints exclude each other: set etcd.enabled=false to use the external one, or remove the endpoints." -}}
{{- end -}}
{{- if not (or .Values.etcd.enabled .Values.etcd.external.endpoints) -}}
{{- fail "\n\nno etcd: set etcd.enabled=true to install one, or name yours with --set 'etcd.external.endpoints={https://host:2379}'." -}}
{{- end -}}
{{- if and .Values.nats.enabled .Values.nats.external.url -}}
{{- fail "\n\nnats.enabled and nats.external.url exclude each other: set nats.enabled=false to use the external one, or remove the url." -}}
{{- end -}}
{{- if not (or .Values.nats.enabled .Values.nats.external.url) -}}
{{- fail "\n\nno NATS: set nats.enabled=true to install one, or name yours with --set nats.external.url=nats://host:4222." -}}
{{- end -}}
{{- range $name := list "etcd" "nats" -}}
{{- $server := index $.Values $name -}}
{{- if and $server.auth.existingSecret (not $server.auth.enabled) -}}
{{- fail (printf "\n\n%s.auth.existingSecret is set and %s.auth.enabled is not: set it to true to sign in, or remove the Secret's name." $name $name) -}}
{{- end -}}
{{- if and $server.auth.enabled (not $server.enabled) (not $server.auth.existingSecret) -}}
{{- fail (printf "\n\n%s.auth.enabled with an external server needs its credentials: name a Secret in %s.auth.existingSecret." $name $name) -}}
{{- end -}}
{{- end -}}
{{- if and (gt (int .Values.operator.replicaCount) 1) (not .Values.operator.leaderElection.enabled) -}}
{{- fail "\n\noperator.replicaCount is more than 1: set operator.leaderElection.enabled=true, or two operators would write at once." -}}
{{- end -}}
{{- range $name, $image := .Values.pipelines.images.workers -}}
{{- if not $image -}}
{{- fail (printf "\n\npipelines.images.workers.%s is empty: name an image, or remove the entry with %s=null." $name $name) -}}
{{- end -}}
{{- end -}}
{{- if not (hasKey .Values.pipelines.images.workers "default") -}}
{{- fail "\n\npipelines.images.workers.default is missing: name the image for engines without an entry of their own." -}}
{{- end -}}
{{- end -}}
