{{/* The pods of the Deployment or StatefulSet: `template:` and what is below it. */}}

{{- define "shoal.podTemplate" -}}
{{- $repository := .Values.repository -}}
metadata:
  labels:
    {{- include "shoal.selectorLabels" . | nindent 4 }}
    {{- with .Values.commonLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "shoal.serviceAccountName" . }}
  automountServiceAccountToken: {{ .Values.serviceAccount.automountToken }}
  enableServiceLinks: false
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  {{- with .Values.podSecurityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  terminationGracePeriodSeconds: {{ include "shoal.terminationGracePeriodSeconds" . }}
  {{- if or .Values.extraInitContainers (eq $repository.source "pull") }}
  initContainers:
    {{- with .Values.extraInitContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- if eq $repository.source "pull" }}
    - name: pull
      {{- include "shoal.container" . | nindent 6 }}
      args:
        {{- include "shoal.pullArguments" . | trim | nindent 8 }}
      {{- with include "shoal.credentialVariables" . | trim }}
      env:
        {{- . | nindent 8 }}
      {{- end }}
      {{- with .Values.repository.credentials.secrets }}
      envFrom:
        {{- range . }}
        - secretRef: {name: {{ . }}}
        {{- end }}
      {{- end }}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        {{- include "shoal.commonMounts" . | nindent 8 }}
        - {name: models, mountPath: {{ $repository.path }}}
        {{- with include "shoal.credentialMount" . }}
        {{- . | trim | nindent 8 }}
        {{- end }}
    {{- end }}
  {{- end }}
  containers:
    - name: shoal
      {{- include "shoal.container" . | nindent 6 }}
      args:
        {{- include "shoal.serveArguments" . | trim | nindent 8 }}
      {{- with include "shoal.serverVariables" . | trim }}
      env:
        {{- . | nindent 8 }}
      {{- end }}
      {{- with include "shoal.serverEnvFrom" . | trim }}
      {{- . | nindent 6 }}
      {{- end }}
      ports:
        - {name: http, containerPort: 8000}
        - {name: grpc, containerPort: 8001}
        - {name: metrics, containerPort: 8002}
        - {name: health, containerPort: 8003}
        {{- range .Values.extraPorts }}
        - {name: {{ .name }}, containerPort: {{ .port }}}
        {{- end }}
      {{- include "shoal.probes" . | trim | nindent 6 }}
      {{- with .Values.drain.preStopSecs }}
      lifecycle:
        preStop:
          sleep: {seconds: {{ . }}}
      {{- end }}
      resources:
        {{- include "shoal.resources" . | nindent 8 }}
      volumeMounts:
        {{- include "shoal.serverMounts" . | nindent 8 }}
    {{- with .Values.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "shoal.volumes" . | nindent 4 }}
  {{- include "shoal.scheduling" . | trim | nindent 2 }}
{{- end }}

{{/* What the containers with Shoal's image share. */}}
{{- define "shoal.container" -}}
image: {{ include "shoal.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command: [shoal]
terminationMessagePolicy: FallbackToLogsOnError
{{- with .Values.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Where NVIDIA's runtime is the default of nodes, images would show all GPUs to pods that have none. */}}
{{- define "shoal.serverVariables" -}}
{{- if not .Values.gpu.count }}
- {name: NVIDIA_VISIBLE_DEVICES, value: void}
{{- end }}
{{- if eq .Values.repository.source "remote" }}
{{- include "shoal.credentialVariables" . }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "shoal.credentialVariables" -}}
{{- range $name, $value := .Values.repository.credentials.env }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- with .Values.repository.credentials.file }}
{{- if .secretName }}
- {name: {{ .variable }}, value: /etc/shoal/credentials/{{ .key }}}
{{- end }}
{{- end }}
{{- end }}

{{- define "shoal.serverEnvFrom" -}}
{{- $secrets := ternary .Values.repository.credentials.secrets (list) (eq .Values.repository.source "remote") }}
{{- if or $secrets .Values.extraEnvFrom }}
envFrom:
  {{- range $secrets }}
  - secretRef: {name: {{ . }}}
  {{- end }}
  {{- with .Values.extraEnvFrom }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}

{{/*
All probes use --health-port: plain HTTP without keys, whatever the other ports require. A server
that need not load all its models (exitOnError: false) has started when it is alive.
*/}}
{{- define "shoal.probes" -}}
{{- with .Values.probes.startup }}
{{- if .enabled }}
startupProbe:
  httpGet:
    path: /v2/health/{{ ternary "ready" "live" $.Values.repository.exitOnError }}
    port: health
  periodSeconds: {{ .periodSeconds }}
  timeoutSeconds: 2
  failureThreshold: {{ divf .timeoutSecs .periodSeconds | ceil | int }}
{{- end }}
{{- end }}
readinessProbe:
  httpGet: {path: /v2/health/ready, port: health}
  {{- toYaml .Values.probes.readiness | nindent 2 }}
livenessProbe:
  httpGet: {path: /v2/health/live, port: health}
  {{- toYaml .Values.probes.liveness | nindent 2 }}
{{- end }}

{{- define "shoal.resources" -}}
{{- $resources := deepCopy .Values.resources }}
{{- if .Values.gpu.count }}
{{- range list "requests" "limits" }}
{{- $kind := get $resources . | default dict }}
{{- $_ := set $kind $.Values.gpu.resource (int $.Values.gpu.count) }}
{{- $_ := set $resources . $kind }}
{{- end }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{- define "shoal.scheduling" -}}
{{- with .Values.gpu.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $gpuTaint := dict "key" "nvidia.com/gpu" "operator" "Exists" "effect" "NoSchedule" }}
{{- $gpuTolerations := ternary (list $gpuTaint) (list) (and (gt (int .Values.gpu.count) 0) .Values.gpu.toleration) }}
{{- with concat .Values.tolerations $gpuTolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  - labelSelector:
      matchLabels:
        {{- include "shoal.selectorLabels" $ | nindent 8 }}
    {{- if eq $.Values.workload.kind "Deployment" }}
    matchLabelKeys: [pod-template-hash]
    {{- end }}
    {{- toYaml (omit . "labelSelector" "matchLabelKeys") | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}
