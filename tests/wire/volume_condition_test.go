package wire

// volumeCondition is all that Belay has and CSI 1.13 has not: the health bit of the versions up to
// 1.12 with its old field numbers, which are reserved since. Kubelets up to 1.36 read it.
var volumeCondition = []string{
	"added: message csi.v1.VolumeCondition: options[csi.v1.alpha_message=true]",
	"added: field csi.v1.VolumeCondition.abnormal: 1 optional bool json=abnormal",
	"added: field csi.v1.VolumeCondition.message: 2 optional string json=message",

	"added: field csi.v1.ControllerGetVolumeResponse.VolumeStatus.volume_condition: " +
		"2 optional message csi.v1.VolumeCondition json=volumeCondition presence",
	"differs: message csi.v1.ControllerGetVolumeResponse.VolumeStatus: " +
		"official (reserved[2..=2]), ours ()",

	"added: field csi.v1.ListVolumesResponse.VolumeStatus.volume_condition: " +
		"2 optional message csi.v1.VolumeCondition json=volumeCondition presence " +
		"options[csi.v1.alpha_field=true]",
	"differs: message csi.v1.ListVolumesResponse.VolumeStatus: " +
		"official (reserved[2..=2]), ours ()",

	"added: field csi.v1.NodeGetVolumeStatsResponse.volume_condition: " +
		"2 optional message csi.v1.VolumeCondition json=volumeCondition presence " +
		"options[csi.v1.alpha_field=true]",
	"differs: message csi.v1.NodeGetVolumeStatsResponse: " +
		"official (reserved[2..=2]), ours ()",

	"added: value csi.v1.ControllerServiceCapability.RPC.Type.VOLUME_CONDITION: " +
		"11 options[csi.v1.alpha_enum_value=true]",
	"differs: enum csi.v1.ControllerServiceCapability.RPC.Type: " +
		"official (reserved[11..=11]), ours ()",

	"added: value csi.v1.NodeServiceCapability.RPC.Type.VOLUME_CONDITION: " +
		"4 options[csi.v1.alpha_enum_value=true]",
	"differs: enum csi.v1.NodeServiceCapability.RPC.Type: " +
		"official (reserved[4..=4]), ours ()",
}
