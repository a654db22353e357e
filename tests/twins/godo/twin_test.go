// Package godo drives the twin of DigitalOcean with the vendor's own client: every call that a driver
// needs, its pages and its refusals. What the client does not understand is a fault of the twin.
package godo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/digitalocean/godo"
)

const (
	token  = "dop_v1_token-of-the-twin"
	region = "nyc1"
	// The droplets of the twin.
	first, second = 101, 102
)

// client starts a twin, and is the vendor's client for it.
func client(t *testing.T, flags ...string) *godo.Client {
	t.Helper()
	return clientOf(t, start(t, flags...), token)
}

func clientOf(t *testing.T, url, token string) *godo.Client {
	t.Helper()
	// Its own client for tokens repeats what was refused with 429.
	authorization := map[string]string{"Authorization": "Bearer " + token}
	client, err := godo.New(&http.Client{}, godo.SetBaseURL(url+"/"), godo.SetRequestHeaders(authorization))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func start(t *testing.T, flags ...string) string {
	t.Helper()
	program := os.Getenv("BELAY_TWINS")
	if program == "" {
		t.Fatal("BELAY_TWINS: set it to the program belay-twins, as `make twins` does")
	}
	command := exec.Command(program, append(flags, fmt.Sprint(first), fmt.Sprint(second))...)
	command.Stderr = os.Stderr
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		input.Close()
		if err := command.Wait(); err != nil {
			t.Errorf("the twin: %v", err)
		}
	})
	url, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(url)
}

var ctx = context.Background()

// refused fails unless the call was refused with that status and those words.
func refused(t *testing.T, what string, err error, status int, words string) {
	t.Helper()
	var response *godo.ErrorResponse
	if !errors.As(err, &response) {
		t.Fatalf("%s: %v, want a refusal", what, err)
	}
	if response.Response.StatusCode != status || !strings.Contains(response.Message, words) {
		t.Errorf("%s: %d %q, want %d %q", what, response.Response.StatusCode, response.Message, status, words)
	}
	if response.RequestID == "" {
		t.Errorf("%s: no request ID", what)
	}
}

func must[T any](t *testing.T, what string) func(T, *godo.Response, error) T {
	t.Helper()
	return func(value T, response *godo.Response, err error) T {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if response.Rate.Limit == 0 || response.Rate.Reset.IsZero() {
			t.Errorf("%s: no rate in the headers: %v", what, response.Rate)
		}
		return value
	}
}

func created(t *testing.T, client *godo.Client, name string) *godo.Volume {
	t.Helper()
	request := &godo.VolumeCreateRequest{
		Region: region, Name: name, SizeGigaBytes: 2, Description: "of a test", Tags: []string{"a:b"},
	}
	return must[*godo.Volume](t, "create")(client.Storage.CreateVolume(ctx, request))
}

// completed waits until the action has ended well.
func completed(t *testing.T, client *godo.Client, volume string, action *godo.Action) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("action %d: %s", action.ID, action.Status)
		}
		action = must[*godo.Action](t, "action")(client.StorageActions.Get(ctx, volume, action.ID))
		if action.Status == godo.ActionCompleted {
			break
		}
		if action.Status != godo.ActionInProgress || action.CompletedAt != nil {
			t.Fatalf("action %d: %s, %v", action.ID, action.Status, action.CompletedAt)
		}
	}
	if action.StartedAt == nil || action.CompletedAt == nil || action.RegionSlug != region || action.ResourceType != "volume" {
		t.Errorf("action: %+v", action)
	}
}

func droplets(t *testing.T, client *godo.Client, volume string) []int {
	t.Helper()
	return must[*godo.Volume](t, "get")(client.Storage.GetVolume(ctx, volume)).DropletIDs
}

func TestAccountAndDroplets(t *testing.T) {
	url := start(t)
	_, _, err := clientOf(t, url, "guess").Account.Get(ctx)
	refused(t, "a wrong token", err, http.StatusUnauthorized, "Unable to authenticate you.")
	client := clientOf(t, url, token)
	account := must[*godo.Account](t, "account")(client.Account.Get(ctx))
	if account.Status != "active" || account.VolumeLimit != 0 {
		t.Errorf("account: %+v", account)
	}
	droplet := must[*godo.Droplet](t, "droplet")(client.Droplets.Get(ctx, first))
	if droplet.ID != first || droplet.Region.Slug != region || droplet.Status != "active" || len(droplet.VolumeIDs) != 0 {
		t.Errorf("droplet: %+v", droplet)
	}
	_, _, err = client.Droplets.Get(ctx, 999)
	refused(t, "a droplet", err, http.StatusNotFound, "")
}

func TestVolumesAreCreatedFoundAndDeleted(t *testing.T) {
	client := client(t)
	volume := created(t, client, "pvc-1")
	if volume.Region.Slug != region || volume.SizeGigaBytes != 2 || volume.Description != "of a test" ||
		volume.CreatedAt.IsZero() || len(volume.DropletIDs) != 0 || !slices.Equal(volume.Tags, []string{"a:b"}) {
		t.Errorf("volume: %+v", volume)
	}
	same := must[*godo.Volume](t, "get")(client.Storage.GetVolume(ctx, volume.ID))
	if same.Name != "pvc-1" || !same.CreatedAt.Equal(volume.CreatedAt) {
		t.Errorf("volume: %+v", same)
	}
	for _, one := range []struct {
		what    string
		request godo.VolumeCreateRequest
		status  int
		words   string
	}{
		{"the name", godo.VolumeCreateRequest{Name: "pvc-1", Region: region, SizeGigaBytes: 2}, 409, "already exists"},
		{"no size", godo.VolumeCreateRequest{Name: "pvc-2", Region: region}, 422, "invalid size specified"},
		{"a large size", godo.VolumeCreateRequest{Name: "pvc-2", Region: region, SizeGigaBytes: 1 << 40}, 422, "invalid size specified"},
		{"capitals", godo.VolumeCreateRequest{Name: "PVC", Region: region, SizeGigaBytes: 1}, 422, "name"},
		{"a digit", godo.VolumeCreateRequest{Name: "1pvc", Region: region, SizeGigaBytes: 1}, 422, "name"},
		{"a long name", godo.VolumeCreateRequest{Name: strings.Repeat("a", 65), Region: region, SizeGigaBytes: 1}, 422, "name"},
		{"the region", godo.VolumeCreateRequest{Name: "pvc-2", Region: "moon1", SizeGigaBytes: 1}, 422, "region"},
		{"the snapshot", godo.VolumeCreateRequest{Name: "pvc-2", Region: region, SizeGigaBytes: 1, SnapshotID: "none"}, 404, "snapshot"},
	} {
		_, _, err := client.Storage.CreateVolume(ctx, &one.request)
		refused(t, one.what, err, one.status, one.words)
	}
	for _, one := range []struct {
		region, name string
		count        int
	}{{region, "pvc-1", 1}, {"fra1", "pvc-1", 0}, {region, "pvc", 0}, {"", "", 1}} {
		params := &godo.ListVolumeParams{Region: one.region, Name: one.name}
		found := must[[]godo.Volume](t, "list")(client.Storage.ListVolumes(ctx, params))
		if len(found) != one.count {
			t.Errorf("%+v: %d volumes", one, len(found))
		}
	}
	if _, err := client.Storage.DeleteVolume(ctx, volume.ID); err != nil {
		t.Error(err)
	}
	_, err := client.Storage.DeleteVolume(ctx, volume.ID)
	refused(t, "a second deletion", err, http.StatusNotFound, "")
	_, _, err = client.Storage.GetVolume(ctx, volume.ID)
	refused(t, "a deleted volume", err, http.StatusNotFound, "")
}

func TestVolumesAreAttachedGrownAndDetached(t *testing.T) {
	client := client(t, "--delay-ms", "200")
	volume, other := created(t, client, "pvc-1"), created(t, client, "pvc-2")
	actions := client.StorageActions
	action := must[*godo.Action](t, "attach")(actions.Attach(ctx, volume.ID, first))
	if action.Status != godo.ActionInProgress {
		t.Errorf("action: %+v", action)
	}
	_, _, err := actions.Attach(ctx, other.ID, first)
	refused(t, "an overlap", err, 422, "Droplet already has a pending event")
	completed(t, client, volume.ID, action)
	if on := droplets(t, client, volume.ID); !slices.Equal(on, []int{first}) {
		t.Errorf("attached to %v", on)
	}
	droplet := must[*godo.Droplet](t, "droplet")(client.Droplets.Get(ctx, first))
	if !slices.Equal(droplet.VolumeIDs, []string{volume.ID}) {
		t.Errorf("droplet: %v", droplet.VolumeIDs)
	}
	for _, one := range []struct {
		volume  string
		droplet int
		status  int
		words   string
	}{
		{volume.ID, first, 422, "already attached"},
		{volume.ID, second, 422, "already attached"},
		{other.ID, 999, 404, ""},
		{"none", first, 404, ""},
	} {
		_, _, err := actions.Attach(ctx, one.volume, one.droplet)
		refused(t, fmt.Sprint(one), err, one.status, one.words)
	}
	_, err = client.Storage.DeleteVolume(ctx, volume.ID)
	refused(t, "deletion", err, http.StatusConflict, "attached volume cannot be deleted")
	completed(t, client, volume.ID, must[*godo.Action](t, "resize")(actions.Resize(ctx, volume.ID, 5, region)))
	if grown := must[*godo.Volume](t, "get")(client.Storage.GetVolume(ctx, volume.ID)); grown.SizeGigaBytes != 5 {
		t.Errorf("%d GiB", grown.SizeGigaBytes)
	}
	_, _, err = actions.Resize(ctx, volume.ID, 4, region)
	refused(t, "shrinking", err, 422, "invalid size")
	_, _, err = actions.DetachByDropletID(ctx, volume.ID, second)
	refused(t, "the wrong droplet", err, 422, "Attachment not found")
	completed(t, client, volume.ID, must[*godo.Action](t, "detach")(actions.DetachByDropletID(ctx, volume.ID, first)))
	_, _, err = actions.DetachByDropletID(ctx, volume.ID, first)
	refused(t, "a second detach", err, 422, "Attachment not found")
	if on := droplets(t, client, volume.ID); len(on) != 0 {
		t.Errorf("attached to %v", on)
	}
	list := must[[]godo.Action](t, "actions")(actions.List(ctx, volume.ID, nil))
	if len(list) != 3 {
		t.Errorf("%d actions", len(list))
	}
}

func TestADropletHasALimitOfVolumes(t *testing.T) {
	client := client(t)
	for n := range 16 {
		volume := created(t, client, fmt.Sprintf("pvc-%d", n))
		action, _, err := client.StorageActions.Attach(ctx, volume.ID, first)
		if n < 15 {
			if err != nil {
				t.Fatal(n, err)
			}
			completed(t, client, volume.ID, action)
			continue
		}
		refused(t, "one too many", err, 422, "cannot attach more volumes to the Droplet")
	}
}

func TestSnapshots(t *testing.T) {
	client := client(t)
	volume, other := created(t, client, "pvc-1"), created(t, client, "pvc-2")
	cut := func(volume, name string) (*godo.Snapshot, *godo.Response, error) {
		return client.Storage.CreateSnapshot(ctx, &godo.SnapshotCreateRequest{VolumeID: volume, Name: name})
	}
	snapshot := must[*godo.Snapshot](t, "snapshot")(cut(volume.ID, "s-1"))
	if snapshot.ResourceID != volume.ID || snapshot.ResourceType != "volume" || snapshot.MinDiskSize != 2 ||
		snapshot.Created == "" || !slices.Equal(snapshot.Regions, []string{region}) {
		t.Errorf("snapshot: %+v", snapshot)
	}
	_, _, err := cut(volume.ID, "s-2")
	refused(t, "too soon", err, http.StatusTooManyRequests, "one request per 10m0s")
	_, _, err = cut(other.ID, "s-1")
	refused(t, "the name", err, http.StatusConflict, "already exists")
	for what, list := range map[string]func() ([]godo.Snapshot, *godo.Response, error){
		"of the volume": func() ([]godo.Snapshot, *godo.Response, error) {
			return client.Storage.ListSnapshots(ctx, volume.ID, nil)
		},
		"of all volumes": func() ([]godo.Snapshot, *godo.Response, error) { return client.Snapshots.ListVolume(ctx, nil) },
	} {
		found := must[[]godo.Snapshot](t, what)(list())
		if len(found) != 1 || found[0].ID != snapshot.ID {
			t.Errorf("%s: %v", what, found)
		}
	}
	if all := must[[]godo.Snapshot](t, "all")(client.Snapshots.List(ctx, nil)); len(all) != 2 {
		t.Errorf("without a filter droplets' snapshots come too: %v", all)
	}
	same := must[*godo.Snapshot](t, "get")(client.Snapshots.Get(ctx, snapshot.ID))
	if same.Name != "s-1" {
		t.Errorf("snapshot: %+v", same)
	}
	request := &godo.VolumeCreateRequest{Region: region, Name: "pvc-3", SizeGigaBytes: 9, SnapshotID: snapshot.ID}
	restored := must[*godo.Volume](t, "restore")(client.Storage.CreateVolume(ctx, request))
	if restored.SizeGigaBytes != int64(snapshot.MinDiskSize) {
		t.Errorf("%d GiB: the size of the snapshot, or the driver's resize is not tested", restored.SizeGigaBytes)
	}
	request = &godo.VolumeCreateRequest{Region: "fra1", Name: "pvc-4", SizeGigaBytes: 9, SnapshotID: snapshot.ID}
	_, _, err = client.Storage.CreateVolume(ctx, request)
	refused(t, "another region", err, 422, "region")
	if _, err := client.Snapshots.Delete(ctx, snapshot.ID); err != nil {
		t.Error(err)
	}
	_, err = client.Snapshots.Delete(ctx, snapshot.ID)
	refused(t, "a second deletion", err, http.StatusNotFound, "")
	_, _, err = client.Snapshots.Get(ctx, snapshot.ID)
	refused(t, "a deleted snapshot", err, http.StatusNotFound, "")
}

func TestTags(t *testing.T) {
	client := client(t)
	volume := created(t, client, "pvc-1")
	tag := func(tag string) error {
		_, err := client.Tags.TagResources(ctx, tag, &godo.TagResourcesRequest{
			Resources: []godo.Resource{{ID: volume.ID, Type: godo.VolumeResourceType}},
		})
		return err
	}
	refused(t, "an unknown tag", tag("Team:blue"), http.StatusNotFound, "")
	made := must[*godo.Tag](t, "tag")(client.Tags.Create(ctx, &godo.TagCreateRequest{Name: "Team:blue"}))
	if made.Name != "Team:blue" {
		t.Errorf("tag: %+v", made)
	}
	// In any case, and as it was first written.
	if err := tag("team:blue"); err != nil {
		t.Fatal(err)
	}
	tagged := must[*godo.Volume](t, "get")(client.Storage.GetVolume(ctx, volume.ID))
	if !slices.Contains(tagged.Tags, "Team:blue") {
		t.Errorf("tags: %v", tagged.Tags)
	}
	_, _, err := client.Tags.Create(ctx, &godo.TagCreateRequest{Name: "a b"})
	refused(t, "a tag", err, 422, "name")
}

func TestPagesAreWalkedByTheClientsLinks(t *testing.T) {
	client := client(t)
	var names []string
	for n := range 21 {
		names = append(names, created(t, client, fmt.Sprintf("pvc-%02d", n)).Name)
	}
	for _, size := range []int{0, 4, 500} {
		var found []string
		options := &godo.ListOptions{Page: 1, PerPage: size}
		for {
			volumes, response, err := client.Storage.ListVolumes(ctx, &godo.ListVolumeParams{Region: region, ListOptions: options})
			if err != nil {
				t.Fatal(err)
			}
			for _, volume := range volumes {
				found = append(found, volume.Name)
			}
			if response.Meta == nil || response.Meta.Total != len(names) {
				t.Errorf("%d: meta %+v", size, response.Meta)
			}
			if response.Links.IsLastPage() {
				break
			}
			page, err := response.Links.CurrentPage()
			if err != nil || page != options.Page {
				t.Fatalf("%d: page %d, %v", size, page, err)
			}
			options.Page++
		}
		slices.Sort(found)
		if !slices.Equal(found, names) {
			t.Errorf("%d: %v", size, found)
		}
	}
	past := &godo.ListVolumeParams{ListOptions: &godo.ListOptions{Page: 99, PerPage: 4}}
	if volumes := must[[]godo.Volume](t, "past the end")(client.Storage.ListVolumes(ctx, past)); len(volumes) != 0 {
		t.Errorf("past the end: %v", volumes)
	}
}

func TestABurstIsRefusedWithTheTimeToWait(t *testing.T) {
	client := client(t, "--calls-a-minute", "5")
	for range 5 {
		must[*godo.Account](t, "account")(client.Account.Get(ctx))
	}
	_, response, err := client.Account.Get(ctx)
	var refusal *godo.ErrorResponse
	if !errors.As(err, &refusal) || refusal.Response.StatusCode != http.StatusTooManyRequests {
		t.Fatalf("the sixth: %v", err)
	}
	if response.Header.Get("retry-after") == "" || response.Rate.Limit != 5000 {
		t.Errorf("headers: %v", response.Header)
	}
}
