{{/* The volumes of a pod and where its containers mount them. */}}

{{- define "shoal.volumes" -}}
{{- $repository := .Values.repository -}}
- name: tmp
  emptyDir: {sizeLimit: {{ .Values.volumes.tmpSize }}}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ .Values.volumes.shmSize }}}
{{- if not .Values.cache.persistent }}
- name: cache
  emptyDir: {sizeLimit: {{ .Values.cache.size }}}
{{- end }}
{{- if eq $repository.source "claim" }}
- name: models
  persistentVolumeClaim:
    claimName: {{ include "shoal.claimName" . }}
    {{- /* A volume that was never written to must be attached for writing once, to be formatted. */}}
    {{- if and $repository.claim.readOnly (eq (toJson $repository.claim.accessModes) `["ReadOnlyMany"]`) }}
    readOnly: true
    {{- end }}
{{- else if eq $repository.source "pull" }}
- name: models
  emptyDir: {sizeLimit: {{ $repository.pull.size }}}
{{- end }}
{{- /* 288 is 0440: only the group fsGroup may read them, and YAML has no octal numbers that all readers share. */}}
{{- with .Values.apiKeys.existingSecret }}
- name: keys
  secret: {secretName: {{ . }}, defaultMode: 288}
{{- end }}
{{- with .Values.jwt.existingSecret }}
- name: jwt
  secret: {secretName: {{ . }}, defaultMode: 288}
{{- end }}
{{- with .Values.tls.existingSecret }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 288}
{{- end }}
{{- if has $repository.source (list "remote" "pull") }}
{{- with $repository.credentials.file.secretName }}
- name: credentials
  secret: {secretName: {{ . }}, defaultMode: 288}
{{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "shoal.commonMounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: cache, mountPath: /var/cache/shoal}
{{- end }}

{{- define "shoal.credentialMount" -}}
{{- if .Values.repository.credentials.file.secretName }}
- {name: credentials, mountPath: /etc/shoal/credentials, readOnly: true}
{{- end }}
{{- end }}

{{/* Secrets are mounted as folders: files that are mounted one by one (subPath) are not renewed. */}}
{{- define "shoal.serverMounts" -}}
{{- $repository := .Values.repository -}}
{{ include "shoal.commonMounts" . }}
- {name: shm, mountPath: /dev/shm}
{{- if eq $repository.source "claim" }}
- name: models
  mountPath: {{ $repository.path }}
  readOnly: {{ $repository.claim.readOnly }}
  {{- with $repository.claim.subPath }}
  subPath: {{ . }}
  {{- end }}
{{- else if eq $repository.source "pull" }}
- {name: models, mountPath: {{ $repository.path }}, readOnly: true}
{{- else if eq $repository.source "remote" }}
{{- include "shoal.credentialMount" . }}
{{- end }}
{{- if .Values.apiKeys.existingSecret }}
- {name: keys, mountPath: /etc/shoal/keys, readOnly: true}
{{- end }}
{{- if .Values.jwt.existingSecret }}
- {name: jwt, mountPath: /etc/shoal/jwt, readOnly: true}
{{- end }}
{{- if .Values.tls.existingSecret }}
- {name: tls, mountPath: /etc/shoal/tls, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}
