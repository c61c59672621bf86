{{/* What an alert's query ends with, where it compares with a number that may be another one. */}}
{{- define "dynamo-platform.threshold" -}}
> [0-9.]+\s*$
{{- end -}}

{{/* Call with (list . ALERT): it, as metrics.prometheusRule.alerts wants it; nothing where that turns it off. */}}
{{- define "dynamo-platform.alert" -}}
{{- $rule := (index . 0).Values.metrics.prometheusRule -}}
{{- $alert := index . 1 -}}
{{- $wish := get $rule.alerts $alert.alert | default dict -}}
{{- if hasKey $wish "threshold" -}}
{{- $expr := regexReplaceAll (include "dynamo-platform.threshold" .) $alert.expr (printf "> %v" $wish.threshold) -}}
{{- $_ := set $alert "expr" $expr -}}
{{- end -}}
{{- with $wish.for -}}
{{- $_ := set $alert "for" . -}}
{{- end -}}
{{- with $wish.severity -}}
{{- $_ := set $alert.labels "severity" . -}}
{{- end -}}
{{- if $rule.runbookUrl -}}
{{- $_ := set $alert.annotations "runbook_url" ($alert.annotations.runbook_url | replace "RUNBOOKS#" (printf "%s#" $rule.runbookUrl)) -}}
{{- else -}}
{{- $_ := unset $alert.annotations "runbook_url" -}}
{{- end -}}
{{- if dig "enabled" true $wish -}}
{{- toYaml (list $alert) -}}
{{- end -}}
{{- end -}}
