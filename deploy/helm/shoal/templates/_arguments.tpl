{{/* The command lines of the server and of `shoal pull`, as lists of YAML. */}}

{{- define "shoal.serveArguments" -}}
{{- $values := .Values }}
{{- $repository := .Values.repository }}
- serve
{{- if eq $repository.source "remote" }}
{{- range $repository.addresses }}
- {{ . | quote }}
{{- end }}
- --repository-cache=/var/cache/shoal/repositories
- --repository-offline={{ $repository.offline }}
{{- with .Values.cache.modelBytes }}
- --repository-cache-size={{ . }}
{{- end }}
{{- else }}
- {{ $repository.path }}
{{- end }}
- --checkpoint-cache=/var/cache/shoal/checkpoints
- --model-control-mode={{ $repository.controlMode }}
{{- if eq $repository.controlMode "poll" }}
- --repository-poll-secs={{ $repository.pollSecs }}
{{- end }}
{{- if has $repository.controlMode (list "explicit" "lazy") }}
{{- range $repository.loadModels }}
- {{ printf "--load-model=%s" . | quote }}
{{- end }}
{{- end }}
{{- if eq $repository.controlMode "lazy" }}
{{- with $repository.memoryBudget }}
- --model-memory-budget={{ . }}
{{- end }}
{{- end }}
- --exit-on-error={{ $repository.exitOnError }}
- --health-port=8003
{{- if ne .Values.server.address "0.0.0.0" }}
- {{ printf "--http-address=%s" .Values.server.address | quote }}
- {{ printf "--grpc-address=%s" .Values.server.address | quote }}
{{- end }}
- --drain-secs={{ .Values.drain.drainSecs }}
- --exit-timeout-secs={{ .Values.drain.exitTimeoutSecs }}
- --log-format={{ .Values.server.logFormat }}
- --console={{ .Values.server.console }}
{{- with include "shoal.allowedHosts" . }}
- --http-allowed-hosts={{ . }}
{{- end }}
- --grpc-max-connection-age={{ mul .Values.server.grpcMaxConnectionAgeSecs 1000 }}
{{- if .Values.apiKeys.existingSecret }}
- --api-keys=/etc/shoal/keys/{{ .Values.apiKeys.key }}
- --keyless-api={{ .Values.apiKeys.keyless | join "," | default "none" }}
{{- with .Values.apiKeys.header }}
- --api-key-header={{ . }}
{{- end }}
{{- end }}
{{- with .Values.jwt }}
{{- if .existingSecret }}
{{- with .jwksKey }}
- --jwt-jwks=/etc/shoal/jwt/{{ . }}
{{- end }}
{{- with .secretKey }}
- --jwt-secret-file=/etc/shoal/jwt/{{ . }}
{{- end }}
- {{ printf "--jwt-issuer=%s" .issuer | quote }}
- {{ printf "--jwt-audience=%s" .audience | quote }}
{{- range $name, $claim := .claims }}
- {{ printf "--jwt-claim=%s=%s" $name $claim | quote }}
{{- end }}
{{- with .defaultEntry }}
- --jwt-default-entry={{ . }}
{{- end }}
{{- end }}
{{- end }}
{{- if include "shoal.httpEncrypted" . }}
- --https-cert=/etc/shoal/tls/tls.crt
- --https-key=/etc/shoal/tls/tls.key
{{- if .Values.tls.clientCertificates }}
- --https-client-ca=/etc/shoal/tls/ca.crt
{{- end }}
{{- end }}
{{- if include "shoal.grpcEncrypted" . }}
- --grpc-use-ssl=true
- --grpc-server-cert=/etc/shoal/tls/tls.crt
- --grpc-server-key=/etc/shoal/tls/tls.key
{{- if .Values.tls.clientCertificates }}
- --grpc-use-ssl-mutual=true
- --grpc-root-cert=/etc/shoal/tls/ca.crt
{{- end }}
{{- end }}
{{- range .Values.server.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "shoal.pullArguments" -}}
- pull
{{- range .Values.repository.addresses }}
- {{ . | quote }}
{{- end }}
{{- range .Values.repository.pull.models }}
- {{ printf "--model=%s" . | quote }}
{{- end }}
{{- if .Values.repository.pull.allVersions }}
- --all-versions
{{- end }}
- --output={{ .Values.repository.path }}
- --repository-cache=/var/cache/shoal/repositories
{{- with .Values.cache.modelBytes }}
- --repository-cache-size={{ . }}
{{- end }}
{{- end }}
