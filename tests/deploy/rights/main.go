// Command rights compares what the sidecars asked of the API server with what they may ask.
//
//	rights AUDIT-LOG ROLES
//
// The log has a JSON object a line; ROLES is a List of Roles and ClusterRoles. A role belongs to the
// sidecar that its name ends with. It fails if a right was not used, or a request was refused.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
)

// The role for the capacity objects is the provisioner's too: it is a Role, and needs its own name.
var sidecars = map[string]string{
	"provisioner": "csi-provisioner",
	"capacity":    "csi-provisioner",
	"attacher":    "csi-attacher",
	"resizer":     "csi-resizer",
	"snapshotter": "csi-snapshotter",
}

// right is one verb on one resource, for one sidecar.
type right struct {
	sidecar, verb, group, resource string
}

func (r right) String() string {
	resource := r.resource
	if r.group != "" {
		resource += "." + r.group
	}
	return fmt.Sprintf("%-15s %-6s %s", r.sidecar, r.verb, resource)
}

type role struct {
	Metadata struct{ Name string }
	Rules    []struct{ APIGroups, Resources, Verbs []string }
}

type event struct {
	Verb, UserAgent, RequestURI string
	ObjectRef                   *struct{ APIGroup, Resource, Subresource string }
	ResponseStatus              *struct {
		Code    int
		Message string
	}
}

func main() {
	if len(os.Args) != 3 {
		fail("usage: rights AUDIT-LOG ROLES")
	}
	granted := granted(os.Args[2])
	used, refused := asked(os.Args[1])
	if len(used) == 0 {
		fail("%s has no request of a sidecar: is it the audit log of a run of the chart?", os.Args[1])
	}
	wrong := len(refused)
	for _, one := range granted {
		fmt.Printf("%s %d\n", one, used[one])
		if used[one] == 0 {
			refused = append(refused, fmt.Sprintf("%s: never used; take it out of the chart, or let the scenario use it", one))
		}
	}
	for _, message := range refused {
		fmt.Fprintln(os.Stderr, message)
	}
	if len(refused) > 0 {
		fail("%d requests refused, %d rights not used", wrong, len(refused)-wrong)
	}
	fmt.Printf("%d rights, each used, and no request refused\n", len(granted))
}

func granted(path string) []right {
	content, err := os.ReadFile(path)
	if err != nil {
		fail("%v", err)
	}
	var list struct{ Items []role }
	if err := json.Unmarshal(content, &list); err != nil {
		fail("%s: %v", path, err)
	}
	var rights []right
	for _, one := range list.Items {
		name := one.Metadata.Name
		sidecar, ok := sidecars[name[strings.LastIndex(name, "-")+1:]]
		if !ok {
			fail("%s: whose role is %s?", path, name)
		}
		for _, rule := range one.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						rights = append(rights, right{sidecar, verb, group, resource})
					}
				}
			}
		}
	}
	slices.SortFunc(rights, func(a, b right) int { return strings.Compare(a.String(), b.String()) })
	return rights
}

func asked(path string) (map[right]int, []string) {
	log, err := os.Open(path)
	if err != nil {
		fail("%v", err)
	}
	defer log.Close()
	used := map[right]int{}
	var refused []string
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var one event
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			fail("%s: %v", path, err)
		}
		sidecar, _, _ := strings.Cut(one.UserAgent, "/")
		if !strings.HasPrefix(sidecar, "csi-") || one.ObjectRef == nil {
			continue
		}
		resource := one.ObjectRef.Resource
		if one.ObjectRef.Subresource != "" {
			resource += "/" + one.ObjectRef.Subresource
		}
		asked := right{sidecar, one.Verb, one.ObjectRef.APIGroup, resource}
		if one.ResponseStatus != nil && one.ResponseStatus.Code == 403 {
			message := fmt.Sprintf("%s: refused: %s", asked, one.ResponseStatus.Message)
			if !slices.Contains(refused, message) {
				refused = append(refused, message)
			}
			continue
		}
		used[asked]++
	}
	if err := lines.Err(); err != nil {
		fail("%s: %v", path, err)
	}
	return used, refused
}

func fail(format string, arguments ...any) {
	fmt.Fprintf(os.Stderr, "rights: "+format+"\n", arguments...)
	os.Exit(1)
}
