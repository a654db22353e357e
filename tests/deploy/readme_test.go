package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// A helm that has no cluster, for the shell that runs a page's commands.
const clusterless = `helm() { command helm "$@" --dry-run=client --output json; }
`

// commands is the first block of shell below a heading, without its comments.
func commands(t *testing.T, page, heading string) []string {
	t.Helper()
	_, section, _ := strings.Cut(read(t, page), "\n"+heading+"\n")
	_, block, _ := strings.Cut(section, "\n```sh\n")
	block, _, ended := strings.Cut(block, "\n```\n")
	if !ended {
		t.Fatalf("%s has no shell below %s", page, heading)
	}
	return strings.Split(regexp.MustCompile(`(?m) +#.*$`).ReplaceAllString(block, ""), "\n")
}

// Run as they are in the page, in a directory that looks like a clone.
func TestTheReadmesCommandsInstallTheChart(t *testing.T) {
	lines := commands(t, "../../README.md", "## Install on Kubernetes")
	build, install := lines[0], lines[1:]
	dry := exec.Command("make", append(strings.Fields(build)[1:], "--dry-run", "--directory", "../..")...)
	out, err := dry.CombinedOutput()
	if err != nil || !strings.HasPrefix(build, "make ") || !strings.Contains(string(out), "/images/build.sh") {
		t.Errorf("%s does not build images: %v\n%s", build, err, out)
	}

	clone := t.TempDir()
	deploy, err := filepath.Abs("../../deploy")
	if err == nil {
		err = os.Symlink(deploy, filepath.Join(clone, "deploy"))
	}
	if err != nil {
		t.Fatal(err)
	}
	script := strings.Join(install, "\n")
	shell := exec.Command("bash", "-euo", "pipefail", "-c", clusterless+script)
	shell.Dir = clone
	shell.Stderr = os.Stderr
	out, err = shell.Output()
	var release object
	if err != nil || yaml.Unmarshal(out, &release) != nil {
		t.Fatalf("%v\n%s\n%s", err, script, out)
	}
	if release.text("name") != "belay" || release.text("namespace") != "belay-system" {
		t.Errorf("the release is %s in %s", release.text("name"), release.text("namespace"))
	}
	kinds := map[string]int{}
	for _, one := range parsed(t, release.text("manifest")) {
		kinds[one.text("kind")]++
	}
	if kinds["DaemonSet"] != 2 || kinds["Deployment"] != 1 {
		t.Errorf("not one node agent, one store and one controller: %v", kinds)
	}
	// Either helm makes the namespace or the chart does.
	if strings.Contains(script, " --create-namespace") != (kinds["Namespace"] == 0) {
		t.Errorf("%d namespaces in the chart, and\n%s", kinds["Namespace"], script)
	}
}

// So that the cluster of `make e2e`, which runs the quickstart, runs them as well.
func TestAllPagesInstallAsTheReadmeDoes(t *testing.T) {
	for _, page := range []string{"docs/quickstart.md", "docs/helm.md"} {
		lines := strings.Split(read(t, "../../"+page), "\n")
		for _, line := range commands(t, "../../README.md", "## Install on Kubernetes")[1:] {
			if !slices.Contains(lines, line) {
				t.Errorf("%s has no line: %s", page, line)
			}
		}
	}
}
