{{/* Names, labels and sums that several objects share. */}}

{{- define "shoal.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* 52 characters leave room for "-headless" and for the numbers of a StatefulSet's pods. */}}
{{- define "shoal.fullname" -}}
{{- $name := include "shoal.name" . }}
{{- $release := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- default $release .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "shoal.selectorLabels" -}}
app.kubernetes.io/name: {{ include "shoal.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "shoal.labels" -}}
{{ include "shoal.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* `metadata` of an object: (dict "root" $ "suffix" "-headless" "labels" … "annotations" …). */}}
{{- define "shoal.metadata" -}}
metadata:
  name: {{ include "shoal.fullname" .root }}{{ .suffix }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "shoal.labels" .root | nindent 4 }}
    {{- with .labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{- define "shoal.image" -}}
{{- $variant := ternary "gpu" "cpu" (gt (int .Values.gpu.count) 0) }}
{{- $tag := default (printf "%s-%s" .Chart.AppVersion $variant) .Values.image.tag }}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository $tag }}
{{- end }}
{{- end }}

{{- define "shoal.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "shoal.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "shoal.claimName" -}}
{{- default (printf "%s-models" (include "shoal.fullname" .)) .Values.repository.claim.existingClaim }}
{{- end }}

{{/* Whether pods share a claim that nodes cannot share: the chart made it, ReadWriteOnce. */}}
{{- define "shoal.singleNodeClaim" -}}
{{- with .Values.repository }}
{{- if and (eq .source "claim") (not .claim.existingClaim) }}
{{- if not (or (has "ReadWriteMany" .claim.accessModes) (has "ReadOnlyMany" .claim.accessModes)) }}true{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{/* From the deletion of a pod to the moment at which it is killed. */}}
{{- define "shoal.terminationGracePeriodSeconds" -}}
{{- add .Values.drain.preStopSecs .Values.drain.drainSecs .Values.drain.exitTimeoutSecs .Values.drain.unloadSecs }}
{{- end }}

{{- define "shoal.httpEncrypted" -}}
{{- if and .Values.tls.existingSecret .Values.tls.http }}true{{ end }}
{{- end }}

{{- define "shoal.grpcEncrypted" -}}
{{- if and .Values.tls.existingSecret .Values.tls.grpc }}true{{ end }}
{{- end }}

{{/* Host names under which browsers may use the console. */}}
{{- define "shoal.allowedHosts" -}}
{{- $ingress := ternary .Values.ingress.http.hosts (list) .Values.ingress.http.enabled }}
{{- concat .Values.server.allowedHosts $ingress | uniq | join "," }}
{{- end }}

{{/* The labels of this release's series in Prometheus, as a map in YAML. */}}
{{- define "shoal.seriesLabels" -}}
{{- with .Values.autoscaling.prometheus.labels }}
{{- toYaml . }}
{{- else }}
namespace: {{ .Release.Namespace }}
service: {{ include "shoal.fullname" . }}
{{- end }}
{{- end }}

{{/* The same as PromQL: {namespace="…",service="…"}. */}}
{{- define "shoal.seriesSelector" -}}
{{- $matchers := list }}
{{- range $name, $value := include "shoal.seriesLabels" . | fromYaml }}
{{- $matchers = append $matchers (printf "%s=%q" $name $value) }}
{{- end }}
{{- printf "{%s}" (join "," $matchers) }}
{{- end }}
