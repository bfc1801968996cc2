{{/*
What a schema cannot say: values that contradict each other, and options that other values set.
Each message names the value and what to write.
*/}}

{{- define "shoal.validate" -}}
{{- $repository := .Values.repository }}
{{- if and (has $repository.source (list "remote" "pull")) (not $repository.addresses) }}
{{- fail (printf "repository.source is %s, but repository.addresses is empty; name a repository, such as s3://bucket/models" $repository.source) }}
{{- end }}
{{- if and (has $repository.source (list "claim" "image")) $repository.addresses }}
{{- fail (printf "repository.addresses has no effect with repository.source=%s; set it to remote or pull" $repository.source) }}
{{- end }}
{{- if and (eq $repository.source "pull") (eq $repository.controlMode "poll") }}
{{- fail "repository.controlMode=poll finds no changes with repository.source=pull, which downloads once; set repository.source=remote" }}
{{- end }}
{{- if and $repository.loadModels (not (has $repository.controlMode (list "explicit" "lazy"))) }}
{{- fail (printf "repository.loadModels has no effect with repository.controlMode=%s; set it to explicit or lazy" $repository.controlMode) }}
{{- end }}
{{- if and $repository.memoryBudget (ne $repository.controlMode "lazy") }}
{{- fail (printf "repository.memoryBudget has no effect with repository.controlMode=%s; set it to lazy" $repository.controlMode) }}
{{- end }}
{{- if and .Values.cache.persistent (ne .Values.workload.kind "StatefulSet") }}
{{- fail "cache.persistent needs a disk for each pod; set workload.kind=StatefulSet" }}
{{- end }}
{{- if .Values.jwt.existingSecret }}
{{- if not (or .Values.jwt.jwksKey .Values.jwt.secretKey) }}
{{- fail "jwt.existingSecret is set; name its entry with jwt.jwksKey or jwt.secretKey" }}
{{- end }}
{{- if not (and .Values.jwt.issuer .Values.jwt.audience) }}
{{- fail "jwt.existingSecret is set; set jwt.issuer and jwt.audience, too" }}
{{- end }}
{{- end }}
{{- if and .Values.tls.clientCertificates (not .Values.tls.existingSecret) }}
{{- fail "tls.clientCertificates needs certificates; name their Secret with tls.existingSecret" }}
{{- end }}
{{- range $name := list "http" "grpc" }}
{{- $ingress := index $.Values.ingress $name }}
{{- if and $ingress.enabled (not $ingress.hosts) }}
{{- fail (printf "ingress.%s.enabled is true, but ingress.%s.hosts is empty; name a host" $name $name) }}
{{- end }}
{{- end }}
{{- if and .Values.podDisruptionBudget.minAvailable (ne (toString .Values.podDisruptionBudget.maxUnavailable) "1") }}
{{- fail "podDisruptionBudget: set minAvailable or maxUnavailable, not both" }}
{{- end }}
{{- include "shoal.validateAutoscaling" . }}
{{- include "shoal.validateExtraArgs" . }}
{{- end }}

{{- define "shoal.validateAutoscaling" -}}
{{- $scaling := .Values.autoscaling }}
{{- if ne $scaling.kind "none" }}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) }}
{{- fail (printf "autoscaling.minReplicas (%d) is more than autoscaling.maxReplicas (%d)" (int $scaling.minReplicas) (int $scaling.maxReplicas)) }}
{{- end }}
{{- if not (or $scaling.pendingRequests $scaling.timeToDrainSecs $scaling.cpuPercent (and (eq $scaling.kind "keda") $scaling.keda.extraTriggers)) }}
{{- fail "autoscaling has nothing to look at; set autoscaling.pendingRequests, timeToDrainSecs or cpuPercent" }}
{{- end }}
{{- if eq (int $scaling.minReplicas) 0 }}
{{- if ne $scaling.kind "keda" }}
{{- fail "autoscaling.minReplicas is 0, which a HorizontalPodAutoscaler cannot do; set autoscaling.kind=keda, or use KServe to scale to zero" }}
{{- end }}
{{- if not $scaling.keda.extraTriggers }}
{{- fail "autoscaling.minReplicas is 0, but without pods there are no metrics that would start one; add autoscaling.keda.extraTriggers, or use KServe to scale to zero" }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "shoal.validateExtraArgs" -}}
{{- $managed := dict
  "--model-repository" "repository.path or repository.addresses"
  "--model-store" "repository.path or repository.addresses"
  "--model-control-mode" "repository.controlMode"
  "--load-model" "repository.loadModels"
  "--repository-poll-secs" "repository.pollSecs"
  "--model-memory-budget" "repository.memoryBudget"
  "--exit-on-error" "repository.exitOnError"
  "--repository-offline" "repository.offline"
  "--repository-cache-size" "cache.modelBytes"
  "--drain-secs" "drain.drainSecs"
  "--exit-timeout-secs" "drain.exitTimeoutSecs"
  "--http-address" "server.address"
  "--grpc-address" "server.address"
  "--log-format" "server.logFormat"
  "--console" "server.console"
  "--http-allowed-hosts" "server.allowedHosts"
  "--grpc-max-connection-age" "server.grpcMaxConnectionAgeSecs"
  "--api-keys" "apiKeys.existingSecret"
  "--api-key-header" "apiKeys.header"
  "--keyless-api" "apiKeys.keyless"
  "--jwt-jwks" "jwt.jwksKey"
  "--jwt-secret-file" "jwt.secretKey"
  "--jwt-issuer" "jwt.issuer"
  "--jwt-audience" "jwt.audience"
  "--jwt-default-entry" "jwt.defaultEntry"
  "--https-cert" "tls.existingSecret"
  "--https-key" "tls.existingSecret"
  "--https-client-ca" "tls.clientCertificates"
  "--grpc-use-ssl" "tls.grpc"
  "--grpc-use-ssl-mutual" "tls.clientCertificates"
  "--grpc-server-cert" "tls.existingSecret"
  "--grpc-server-key" "tls.existingSecret"
  "--grpc-root-cert" "tls.clientCertificates"
}}
{{- $fixed := list "--http-port" "--grpc-port" "--metrics-port" "--health-port" "--metrics-address" "--health-address" "--allow-http" "--allow-grpc" "--allow-metrics" "--repository-cache" "--checkpoint-cache" }}
{{- range .Values.server.extraArgs }}
{{- $flag := . | splitList "=" | first }}
{{- if hasKey $managed $flag }}
{{- fail (printf "server.extraArgs: %s is set by %s" $flag (get $managed $flag)) }}
{{- end }}
{{- if has $flag $fixed }}
{{- fail (printf "server.extraArgs: %s is fixed, because probes, Services and volumes depend on it" $flag) }}
{{- end }}
{{- end }}
{{- end }}
