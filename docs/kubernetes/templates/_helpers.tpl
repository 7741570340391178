{{/* How every object of a release begins. */}}
{{- define "runner.name" -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "runner.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "runner.selector" . }}
{{- end -}}

{{- define "runner.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The namespace of keys and queues: RUNNER_NAMESPACE. */}}
{{- define "runner.namespace" -}}
{{- .Values.settings.RUNNER_NAMESPACE | default "runner" -}}
{{- end -}}

{{/* Seconds from SIGTERM to SIGKILL: a worker finishes its nodes, or releases them after RUNNER_SHUTDOWN_GRACE. */}}
{{- define "runner.grace" -}}
{{- add (.Values.settings.RUNNER_SHUTDOWN_GRACE | default "600" | int) (.Values.graceReserve | int) -}}
{{- end -}}

{{- define "runner.env" -}}
{{- if .Values.redis.secret }}
- name: REDIS_PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ .Values.redis.secret | quote }}, key: {{ .Values.redis.key | quote }}}
{{- end }}
- name: RUNNER_REDIS_URL
  value: {{ printf "%s://%s%s:%d/%d" (ternary "rediss" "redis" .Values.redis.tls) (ternary ":$(REDIS_PASSWORD)@" "" (ne .Values.redis.secret "")) .Values.redis.host (int .Values.redis.port) (int .Values.redis.database) | quote }}
{{- if .Values.broker.secret }}
- name: RUNNER_BROKER_URL
  valueFrom:
    secretKeyRef: {name: {{ .Values.broker.secret | quote }}, key: {{ .Values.broker.key | quote }}}
{{- end }}
- name: RUNNER_ALIVE_FILE
  value: /tmp/runner-alive
{{- range $name, $value := .Values.settings }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
A pod: `root`, `program` (its name), `command`, `resources`, `grace`. Its heartbeat thread touches the file from the
moment at which the store has accepted its first heartbeat, also while the store is away: Kubernetes must not restart
workers because Redis does.
*/}}
{{- define "runner.pod" -}}
metadata:
  labels:
    {{- include "runner.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .program }}
  {{- with .root.Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  terminationGracePeriodSeconds: {{ .grace }}
  automountServiceAccountToken: false
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    seccompProfile: {type: RuntimeDefault}
  {{- with .root.Values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ .program }}
      image: {{ printf "%s:%s" .root.Values.image.repository .root.Values.image.tag | quote }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      command: {{ toJson .command }}
      env:
        {{- include "runner.env" .root | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        capabilities: {drop: [ALL]}
      readinessProbe:
        exec: {command: [test, -e, /tmp/runner-alive]}
        periodSeconds: 5
      livenessProbe:
        exec: {command: [sh, -c, 'test $(( $(date +%s) - $(stat -c %Y /tmp/runner-alive) )) -lt 60']}
        periodSeconds: 20
        failureThreshold: 3
      startupProbe:
        exec: {command: [test, -e, /tmp/runner-alive]}
        periodSeconds: 2
        failureThreshold: 150
      resources:
        {{- toYaml .resources | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
  volumes:
    - name: tmp
      emptyDir: {}
{{- end -}}
