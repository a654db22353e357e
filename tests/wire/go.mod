module belay.dev/tests/wire

go 1.25.0

require (
	github.com/container-storage-interface/spec v1.13.0
	golang.org/x/net v0.56.0
	google.golang.org/protobuf v1.36.12-0.20260120151049-f2248ac996af
	gopkg.in/gcfg.v1 v1.2.3
	k8s.io/kubelet v0.35.10
)

require (
	golang.org/x/sys v0.46.0 // indirect
	golang.org/x/text v0.39.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20251202230838-ff82c1b0f217 // indirect
	google.golang.org/grpc v1.79.3 // indirect
	gopkg.in/warnings.v0 v0.1.2 // indirect
)
