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

{{/* Seconds from SIGTERM to SIGKILL: a worker finishes its nodes, or releases them after RUNNER_SHUTDOWN_GRACE. */}}
{{- define "runner.grace" -}}
{{- add (.Values.settings.RUNNER_SHUTDOWN_GRACE | default "600" | int) (.Values.graceReserve | int) -}}
{{- end -}}

{{- define "runner.account" -}}
{{- .Values.serviceAccount.name | default (include "runner.name" .) -}}
{{- end -}}

{{- define "runner.env" -}}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
- name: RUNNER_REDIS_URL
{{- if .Values.redis.secret }}
  valueFrom:
    secretKeyRef: {name: {{ .Values.redis.secret | quote }}, key: {{ .Values.redis.key | quote }}}
{{- else }}
  value: {{ .Values.redis.url | quote }}
{{- end }}
{{- if .Values.broker.secret }}
- name: RUNNER_BROKER_URL
  valueFrom:
    secretKeyRef: {name: {{ .Values.broker.secret | quote }}, key: {{ .Values.broker.key | quote }}}
{{- end }}
{{- range $name, $value := .Values.settings }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{/* A pod: `root`, `program` (its name), `grace`, and `container`, what of it is the program's. */}}
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
  serviceAccountName: {{ include "runner.account" .root }}
  automountServiceAccountToken: false
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    fsGroup: 10001
    seccompProfile: {type: RuntimeDefault}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "runner.selector" .root | nindent 10 }}
          app.kubernetes.io/component: {{ .program }}
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
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      {{- .container | nindent 6 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- with .root.Values.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- with .mounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {}
    {{- with .root.Values.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- with .volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/*
A worker or keeper: `root`, `command`, `resources`. Its heartbeat thread touches the file from the moment at which the
store has accepted its first heartbeat, also while the store is away: Kubernetes must not restart workers because Redis
does. /tmp outlives the container, so the file of the one before is removed first, or it would pass the startup probe.
*/}}
{{- define "runner.process" -}}
command: {{ toJson (concat (list "sh" "-c" "rm -f \"$RUNNER_ALIVE_FILE\" && exec \"$@\"" "sh") .command) }}
env:
  {{- include "runner.env" .root | nindent 2 }}
  - name: RUNNER_ALIVE_FILE
    value: /tmp/runner-alive
readinessProbe:
  exec: {command: [test, -e, /tmp/runner-alive]}
  periodSeconds: 5
livenessProbe:
  exec: {command: [sh, -c, 'test $(( $(date +%s) - $(stat -c %Y /tmp/runner-alive) )) -lt 60']}
  periodSeconds: 20
  failureThreshold: 3
{{- /* An hour: one that starts while the store is away waits for it, and has nothing to lose. */}}
startupProbe:
  exec: {command: [test, -e, /tmp/runner-alive]}
  periodSeconds: 2
  failureThreshold: 1800
resources:
  {{- toYaml .resources | nindent 2 }}
{{- end -}}

{{/* At most one pod of a program is evicted at a time: `root`, `program`. */}}
{{- define "runner.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "runner.name" .root }}-{{ .program }}
  labels:
    {{- include "runner.labels" .root | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "runner.selector" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .program }}
{{- end -}}
