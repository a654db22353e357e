package deploy

import (
	"encoding/base64"
	"maps"
	"net/url"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func metadata(t *testing.T) object {
	t.Helper()
	var found object
	if err := yaml.Unmarshal([]byte(read(t, chart+"/Chart.yaml")), &found); err != nil {
		t.Fatal(err)
	}
	return found
}

// annotation is a list that is the text of an annotation.
func annotation(t *testing.T, name string) []map[string]any {
	t.Helper()
	var entries []map[string]any
	text := metadata(t).text("annotations", "artifacthub.io/"+name)
	if err := yaml.UnmarshalStrict([]byte(text), &entries); err != nil || len(entries) == 0 {
		t.Fatalf("artifacthub.io/%s: %v in\n%s", name, err, text)
	}
	return entries
}

// The workspace has the version; what repeats it must not stay behind.
func TestTheVersionIsThatOfTheWorkspace(t *testing.T) {
	_, section, _ := strings.Cut(read(t, "../../Cargo.toml"), "\n[workspace.package]\n")
	match := regexp.MustCompile(`(?m)^version = "(.+)"$`).FindStringSubmatch(section)
	if match == nil {
		t.Fatal("Cargo.toml has no version of the workspace")
	}
	version := match[1]
	for _, key := range []string{"version", "appVersion"} {
		if found := metadata(t).text(key); found != version {
			t.Errorf("Chart.yaml: %s is %s, not %s", key, found, version)
		}
	}
	of := regexp.MustCompile(`(?:VERSION=|belay-(?:node|controller|\$image):|\$image:)(\d+\.\d+\.\d+[0-9A-Za-z.+-]*)`)
	tagged := of.FindAllStringSubmatch(read(t, "../../deploy/images/README.md"), -1)
	if len(tagged) == 0 {
		t.Error("deploy/images/README.md shows no tag")
	}
	for _, match := range tagged {
		if match[1] != version {
			t.Errorf("deploy/images/README.md: %s, not %s", match[0], version)
		}
	}
	// A release is a tag. An archive of the sources has none.
	tags, _ := exec.Command("git", "tag", "--points-at", "HEAD", "v[0-9]*").Output()
	for _, tag := range strings.Fields(string(tags)) {
		if tag != "v"+version {
			t.Errorf("this commit has the tag %s, but the version %s", tag, version)
		}
	}
	early := strings.HasPrefix(version, "0.") || strings.Contains(version, "-")
	if found := metadata(t).text("annotations", "artifacthub.io/prerelease"); (found == "true") != early {
		t.Errorf("Chart.yaml: prerelease is %q in version %s", found, version)
	}
}

func TestTheListedImagesAreThoseOfTheChart(t *testing.T) {
	listed := map[string]string{}
	for _, entry := range annotation(t, "images") {
		listed[entry["name"].(string)] = entry["image"].(string)
		isLocal := strings.HasPrefix(entry["image"].(string), "localhost/")
		if scanned := entry["whitelisted"] != true; scanned == isLocal {
			t.Errorf("%s: only images that are not published are left out of the scan", entry["name"])
		}
	}
	if want := images(t, rendered(t, openstack)); !maps.Equal(listed, want) {
		t.Errorf("Chart.yaml lists %v, the chart has %v", listed, want)
	}
}

func TestTheListedChangesAreInTheChangelog(t *testing.T) {
	plain := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	log := plain(read(t, "../../CHANGELOG.md"))
	for _, change := range annotation(t, "changes") {
		kinds := []any{"added", "changed", "deprecated", "removed", "fixed", "security"}
		if text, _ := change["description"].(string); !slices.Contains(kinds, change["kind"]) || text == "" || !strings.Contains(log, plain(text)) {
			t.Errorf("CHANGELOG.md has no %v: %q", change["kind"], text)
		}
	}
}

func TestLinksSourcesLicenceAndIconAreComplete(t *testing.T) {
	for _, link := range annotation(t, "links") {
		address, err := url.Parse(link["url"].(string))
		if err != nil || address.Scheme != "https" || address.Host == "" || link["name"] == "" {
			t.Errorf("link %v: %v", link, err)
		}
	}
	sources, _ := metadata(t)["sources"].([]any)
	for _, container := range pod(t, "Deployment", "openstack.yaml").list("containers")[1:] {
		source := "https://github.com/kubernetes-csi/" + strings.Replace(container.text("name"), "csi-", "external-", 1)
		if !slices.Contains(sources, any(source)) {
			t.Errorf("%s is not among the sources %v", source, sources)
		}
	}
	if !strings.Contains(read(t, "../../Cargo.toml"), `license = "`+metadata(t).text("annotations", "artifacthub.io/license")+`"`) {
		t.Error("the licence is another one than in Cargo.toml")
	}
	icon := "data:image/svg+xml;base64," + base64.StdEncoding.EncodeToString([]byte(read(t, chart+"/icon.svg")))
	if metadata(t).text("icon") != icon {
		t.Errorf("Chart.yaml: icon is not icon.svg, which is\n%s", icon)
	}
}

// What .helmignore leaves out is needed for nothing.
func TestTheArchiveMakesTheSameAsTheDirectory(t *testing.T) {
	directory := t.TempDir()
	if out, err := exec.Command("helm", "package", chart, "--destination", directory).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	archive := directory + "/belay-" + metadata(t).text("version") + ".tgz"
	values := []string{"--values", chart + "/ci/every-value.yaml", "--namespace", "belay-system"}
	out, err := helm(append([]string{"template", "belay", archive}, values...)...)
	if err != nil || out != template(t, chart+"/ci/every-value.yaml") {
		t.Errorf("the archive makes something else: %v\n%.500s", err, out)
	}
	list, err := exec.Command("tar", "-tzf", archive).Output()
	if err != nil || strings.Contains(string(list), "generate.sh") || strings.Contains(string(list), "/ci/") || !strings.Contains(string(list), "belay/README.md") {
		t.Errorf("%v\n%s", err, list)
	}
}
