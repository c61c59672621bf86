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
{{- if .Values.nats.perNamespace -}}
{{- if not .Values.nats.enabled -}}
{{- fail "\n\nnats.perNamespace and nats.external.url exclude each other: set nats.enabled=true without a url, and the operator makes a NATS for each namespace, or remove nats.perNamespace." -}}
{{- end -}}
{{- if not .Values.nats.auth.enabled -}}
{{- fail "\n\nnats.perNamespace keeps tenants apart only where NATS asks who comes: set nats.auth.enabled=true, or remove nats.perNamespace." -}}
{{- end -}}
{{- if .Values.nats.auth.existingSecret -}}
{{- fail "\n\nnats.perNamespace and nats.auth.existingSecret exclude each other: each namespace's NATS has keys of its own, so remove the Secret's name." -}}
{{- end -}}
{{- if .Values.pipelines.shareDynamoNamespaces -}}
{{- fail "\n\nnats.perNamespace and pipelines.shareDynamoNamespaces exclude each other: pipelines of two namespaces would listen to two servers. Remove one of them." -}}
{{- end -}}
{{- end -}}
{{- range $name := list "etcd" "nats" -}}
{{- $server := index $.Values $name -}}
{{- if and $server.auth.existingSecret (not $server.auth.enabled) -}}
{{- fail (printf "\n\n%s.auth.existingSecret is set and %s.auth.enabled is not: set it to true to sign in, or remove the Secret's name." $name $name) -}}
{{- end -}}
{{- if and $server.auth.enabled (not $server.enabled) (not $server.auth.existingSecret) -}}
{{- $users := ternary "an etcd user that may make users (username, password; etcd 3.6.14 or later)" "keys or a user of that NATS (charts/dynamo-platform/README.md)" (eq $name "etcd") -}}
{{- fail (printf "\n\nPipelines sign in to %s, and for an external one that needs its credentials: name a Secret with %s in %s.auth.existingSecret, or set %s.auth.enabled=false where all who reach it may use it." $name $users $name $name) -}}
{{- end -}}
{{- end -}}
{{- if and (gt (int (include "dynamo-platform.operators" .)) 1) (not .Values.operator.leaderElection.enabled) -}}
{{- fail "\n\nmore than one operator is to run (operator.replicaCount, ha): set operator.leaderElection.enabled=true, or two operators would write at once." -}}
{{- end -}}
{{- if .Values.ha -}}
{{- if and .Values.nats.enabled (not (include "dynamo-platform.natsApart" .)) -}}
{{- fail "\n\nha makes three NATS servers in each namespace, and the values ask for one NATS for all: set nats.perNamespace=true, or name a NATS cluster of yours in nats.external.url with nats.enabled=false." -}}
{{- end -}}
{{- if and .Values.etcd.enabled (not .Values.etcd.persistence.enabled) -}}
{{- fail "\n\nha needs etcd.persistence.enabled=true: a member that comes back without its data can't join the others again." -}}
{{- end -}}
{{- end -}}
{{- range $name, $image := .Values.pipelines.images.workers -}}
{{- if not $image -}}
{{- fail (printf "\n\npipelines.images.workers.%s is empty: name an image, or remove the entry with %s=null." $name $name) -}}
{{- end -}}
{{- end -}}
{{- if not (hasKey .Values.pipelines.images.workers "default") -}}
{{- fail "\n\npipelines.images.workers.default is missing: name the image for mocker, echo_core, echo_full and python." -}}
{{- end -}}
{{- $queries := dict -}}
{{- range .Files.Get "files/alerts.yaml" | fromYamlArray -}}
{{- $_ := set $queries .alert .expr -}}
{{- end -}}
{{- range $name, $wish := .Values.metrics.prometheusRule.alerts -}}
{{- if not (hasKey $queries $name) -}}
{{- fail (printf "\n\nmetrics.prometheusRule.alerts.%s: there is no such alert. Use one of %s." $name (keys $queries | sortAlpha | join ", ")) -}}
{{- end -}}
{{- if and (hasKey $wish "threshold") (not (regexMatch (include "dynamo-platform.threshold" $) (get $queries $name))) -}}
{{- fail (printf "\n\nmetrics.prometheusRule.alerts.%s.threshold: this alert compares with no number. Remove it; for, severity and enabled may be set." $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
