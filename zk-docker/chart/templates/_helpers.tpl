{{- define "kafka-coord.name" -}}
{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "kafka-coord.selector" -}}
app.kubernetes.io/name: kafka-coord
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kafka-coord.labels" -}}
{{ include "kafka-coord.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "kafka-coord.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "kafka-coord.pod-security" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "kafka-coord.container-security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "kafka-coord.env" -}}
- name: KAFKA_COORD_ZOOKEEPER
  value: {{ required "zookeeper is not set" .Values.zookeeper | quote }}
{{- with .Values.bootstrap }}
- name: KAFKA_COORD_SERVE_BOOTSTRAP
  value: {{ . | quote }}
{{- end }}
{{- range $name, $value := .Values.env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- define "kafka-coord.ports" -}}
- {name: http, port: 9404, targetPort: http}
{{- if .Values.channel.enabled }}
- {name: channel, port: 7171, targetPort: channel}
{{- end }}
{{- if .Values.kafka.enabled }}
- {name: kafka, port: 9192, targetPort: kafka}
{{- end }}
{{- end }}
