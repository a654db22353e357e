package main

import (
	"slices"
	"strings"
	"testing"
)

func someRoles() roleList {
	return roleList{Items: []role{
		{
			Metadata: map[string]any{"name": "belay-controller-local-provisioner", "uid": "1"},
			Rules: []rule{
				{[]string{""}, []string{"events"}, []string{"create", "patch"}},
				{[]string{"storage.k8s.io"}, []string{"csinodes"}, []string{"list"}},
			},
		},
		{
			Metadata: map[string]any{"name": "belay-controller-cinder-attacher"},
			Rules:    []rule{{[]string{"storage.k8s.io"}, []string{"csinodes"}, []string{"list", "watch"}}},
		},
	}}
}

func TestARightIsTakenFromAllWhoHaveIt(t *testing.T) {
	left := without(someRoles(), "list", "csinodes.storage.k8s.io")
	want := []string{"create events", "patch events", "watch csinodes.storage.k8s.io"}
	if got := effective(left); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if len(left.Items[0].Rules) != 1 {
		t.Errorf("a rule without a verb is left: %v", left.Items[0].Rules)
	}
}

func TestEachRightCountsOnceForAllSidecars(t *testing.T) {
	want := []string{"create events", "list csinodes.storage.k8s.io", "patch events", "watch csinodes.storage.k8s.io"}
	if got := effective(someRoles()); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := granted(someRoles()); len(got) != 5 || got[0] != (right{"csi-attacher", "list", "csinodes.storage.k8s.io"}) {
		t.Errorf("%v", got)
	}
}

func TestTheRoleOfLeadersIsOfEachSidecarAndThoseOfProgramsAreOfNone(t *testing.T) {
	list := someRoles()
	list.Items = append(list.Items,
		role{Metadata: map[string]any{"name": "belay-controller-local-leader"}, Rules: []rule{{[]string{"coordination.k8s.io"}, []string{"leases"}, []string{"get"}}}},
		role{Metadata: map[string]any{"name": "belay-controller-local-objects"}, Rules: []rule{{[]string{""}, []string{"nodes"}, []string{"get"}}}},
		role{Metadata: map[string]any{"name": "belay-store"}, Rules: []rule{{[]string{"belay.dev"}, []string{"localdisks"}, []string{"create"}}}},
	)
	leases := 0
	for _, one := range granted(list) {
		if one.resource == "leases.coordination.k8s.io" {
			leases++
		}
	}
	if got := granted(list); leases != 2 || len(got) != 7 {
		t.Errorf("%v", got)
	}
}

func TestPlainRolesCanReplaceWhatThereIs(t *testing.T) {
	if metadata := plain(someRoles()).Items[0].Metadata; len(metadata) != 1 {
		t.Errorf("%v", metadata)
	}
}

func TestRequestsAreThoseOfSidecarsForObjects(t *testing.T) {
	log := `
{"verb":"patch","userAgent":"csi-resizer/v2 (linux)","objectRef":{"resource":"persistentvolumeclaims","subresource":"status"},"responseStatus":{"code":200}}
{"verb":"list","userAgent":"csi-attacher/v4","objectRef":{"resource":"csinodes","apiGroup":"storage.k8s.io"},"responseStatus":{"code":403,"message":"no"}}
{"verb":"get","userAgent":"csi-attacher/v4","requestURI":"/version"}
{"verb":"get","userAgent":"kubectl/v1","objectRef":{"resource":"pods"}}
`
	got := requests(strings.NewReader(strings.TrimSpace(log)))
	want := []request{
		{right: right{"csi-resizer", "patch", "persistentvolumeclaims/status"}},
		{right{"csi-attacher", "list", "csinodes.storage.k8s.io"}, true, "no"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}
